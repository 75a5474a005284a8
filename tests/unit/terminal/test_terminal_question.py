import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from aish.terminal.question import Sheet, sheet_of
from aish.vocab.event_parts import Place
from aish.vocab.json import JsonObject
from aish.vocab.protocols import Question
from aish.vocab.tools import Tool, ToolName

BAR = "  │ "
FOLD = "  ┆ "


def question(arguments: JsonObject) -> Question:
    tool = Tool(ToolName("repo", "file_write"), "repo__file_write", "", {})
    reason = "no rule approves repo__file_write"
    return Question(tool, arguments, reason, Place(step="write", item="3"))


def text_of(sheet: Sheet) -> str:
    return "\n".join(sheet.whole())


@pytest.mark.requirement("P2")
def test_what_a_person_is_shown(snapshot: SnapshotAssertion) -> None:
    arguments: JsonObject = {
        "path": "docs/notes.md",
        "content": "# Notes\n\n" + "A long line that goes on. " * 6,
        "hidden": "a\u200bb\u202ec\x1b[2J",
        "force": False,
    }
    assert text_of(sheet_of(question(arguments), 72)) == snapshot


@pytest.mark.requirement("P2", "X3")
@given(
    arguments=st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=4),
    width=st.integers(0, 200),
)
def test_every_line_of_the_arguments_stands_behind_the_bar(
    arguments: dict[str, str], width: int
) -> None:
    sheet = sheet_of(question(arguments), width)
    lines = sheet.whole()
    assert all(line.startswith((BAR, FOLD)) for line in sheet.arguments)
    assert all(len(line) <= max(width, 16) for line in sheet.arguments)
    categories = {unicodedata.category(character) for line in lines for character in line}
    assert not categories & {"Cc", "Cs", "Zl", "Zp"}
