import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from aish.terminal.question import Sheet, sheet_of
from aish.terminal.sight import visible
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


@pytest.mark.requirement("P2", "P9")
def test_keys_that_look_alike_are_told_apart() -> None:
    shown = text_of(sheet_of(question({"path": 1, "p\u0430th": 2, "pa\u200bth": [{"x": 1}]}), 80))
    assert "  beware: letters that look like others: p\\u0430th\n" in shown
    assert '"pa\\u200bth"' in shown
    assert "beware" not in text_of(sheet_of(question({"größe": "p\u0430th"}), 80))


@pytest.mark.requirement("P2", "P9")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u00a0b\u3000c\u2800", "a\\u00a0b\\u3000c\\u2800"),
        ("\u2764\ufe0f 1\ufe0f\u20e3", "\u2764\\ufe0f 1\\ufe0f\\u20e3"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("s\u0336 \u0301 =\u0338", "s\\u0336 \\u0301 =\\u0338"),
        ("e" + "\u0301" * 5, "e" + "\u0301" * 3 + "\\u0301" * 2),
        ("\ue000\ud800\U0001d159", "\\ue000\\ud800\\U0001d159"),
        ("naïve e\u0301 नमस्ते 漢字 😀", "naïve e\u0301 नमस्ते 漢字 😀"),
    ],
)
def test_what_has_no_ink_is_spelled_out_and_what_people_write_is_not(text: str, shown: str) -> None:
    assert visible(text) == shown
