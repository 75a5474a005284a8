import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from aish.terminal.question import PROMPT, question_text
from aish.vocab.event_parts import Place
from aish.vocab.json import JsonObject
from aish.vocab.protocols import Question
from aish.vocab.tools import Tool, ToolName

BAR = "  │ "


def question(arguments: JsonObject) -> Question:
    tool = Tool(ToolName("repo", "file_write"), "repo__file_write", "", {})
    reason = "no rule approves repo__file_write"
    return Question(tool, arguments, reason, Place(step="write", item="3"))


@pytest.mark.requirement("P2")
def test_what_a_person_is_shown(snapshot: SnapshotAssertion) -> None:
    arguments: JsonObject = {
        "path": "docs/notes.md",
        "content": "# Notes\n\n" + "A long line that goes on. " * 6,
        "hidden": "a\u200bb\u202ec\x1b[2J",
        "force": False,
    }
    assert question_text(question(arguments), 72) == snapshot


@pytest.mark.requirement("P2", "X3")
@given(
    arguments=st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=4),
    width=st.integers(0, 200),
)
def test_every_line_of_the_arguments_stands_behind_the_bar(
    arguments: dict[str, str], width: int
) -> None:
    lines = question_text(question(arguments), width).split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith("arguments"))
    assert all(line.startswith(BAR) for line in lines[start + 1 : -1])
    assert lines[-1] == PROMPT
    categories = {unicodedata.category(character) for line in lines for character in line}
    assert not categories & {"Cc", "Cs", "Zl", "Zp"}
