import json
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from samples import each_case
from syrupy.assertion import SnapshotAssertion

from aish.core.events import Place
from aish.core.json import JsonObject
from aish.core.protocols import Question
from aish.core.tools import Tool, ToolName
from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import Sheet, sheet_of
from aish.terminal.visible_text import cells, visible, with_label

BAR = "  │ "
FOLD = "  ┆ "


def question(arguments: JsonObject) -> Question:
    tool = Tool(ToolName("repo", "file_write"), "repo__file_write", "", {})
    reason = "no rule approves repo__file_write"
    return Question(tool, arguments, reason, Place(step="write", item="3"))


def text_of(sheet: Sheet) -> str:
    return "\n".join(sheet.whole())


def test_what_a_person_is_shown(snapshot: SnapshotAssertion) -> None:
    arguments: JsonObject = {
        "path": "docs/notes.md",
        "content": "# Notes\n\n" + "A long line that goes on. " * 6,
        "hidden": "a\u200bb\u202ec\x1b[2J",
        "force": False,
    }
    assert text_of(sheet_of(question(arguments), 72)) == snapshot


def short(arguments: JsonObject, width: int = 80, tool: str = "file_write") -> tuple[str, ...]:
    asked = question(arguments)
    named = replace(asked.tool, name=ToolName("repo", tool))
    return sheet_of(replace(asked, tool=named), width, secrets()).short


def secrets() -> Secrets:
    secrets = Secrets()
    secrets.add("TOKEN", "s3cr3t-of-the-house")
    return secrets


def test_a_call_that_fits_on_a_line_is_that_line_and_the_reason() -> None:
    arguments: JsonObject = {"path": "größe.md", "lines": ["# N\n", 1], "force": None}
    assert short(arguments) == (
        "",
        'repo__file_write {"path": "größe.md", "lines": ["# N\\n", 1], "force": null}',
        "    no rule approves repo__file_write (step write, item 3)",
    )


def test_only_the_reason_of_a_short_question_is_folded() -> None:
    assert short({"path": "a.md"}, 40) == (
        "",
        'repo__file_write {"path": "a.md"}',
        "    no rule approves repo__file_write ",
        "  ┆ (step write, item 3)",
    )
    # The last column stays free, and nothing is shortened.
    assert len('repo__file_write {"path": "a.md"}') == 33
    assert short({"path": "a.md"}, 34)
    assert not short({"path": "a.md"}, 33)


@each_case(
    "arguments, tool",
    [
        ({"path": "x" * 80}, "file_write"),
        ({"path": "a\u202eb"}, "file_write"),
        ({"path": "a\u00a0b"}, "file_write"),
        ({"p\u0430th": 1}, "file_write"),
        ({"to": "s3cr3t-of-the-house"}, "file_write"),
        # A terminal that knows directions would exchange the two.
        ({"names": ["אב", "גד"]}, "file_write"),
        # Where does the name end?
        ({}, 'file_read {"path": "a.md"}'),
        ({}, "file_r\u0435ad"),
    ],
)
def test_what_needs_more_than_a_line_to_be_seen_is_shown_at_length(
    arguments: JsonObject, tool: str
) -> None:
    assert short(arguments, tool=tool) == ()


def test_the_question_of_a_program_is_shown_at_length() -> None:
    asked = question({"title": "Deploy?"})
    tool = replace(asked.tool, name=ToolName("", "ask"))
    assert sheet_of(replace(asked, tool=tool), 80).short == ()


def test_a_reason_of_many_rows_makes_the_question_long() -> None:
    asked = replace(question({"path": "a.md"}), reason="a reason " * 30)
    assert sheet_of(asked, 80).short == ()


@given(
    arguments=st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=2),
    width=st.integers(0, 120),
)
def test_a_short_question_is_the_call_and_fits(arguments: dict[str, str], width: int) -> None:
    rows = sheet_of(question(arguments), width).short
    if rows:
        assert json.loads(rows[1].removeprefix("repo__file_write ")) == arguments
        assert all(sum(map(cells, row)) < width for row in rows)
        assert all(visible(row) == row for row in rows)


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


def test_keys_that_look_alike_are_told_apart() -> None:
    shown = text_of(sheet_of(question({"path": 1, "p\u0430th": 2, "pa\u200bth": [{"x": 1}]}), 80))
    assert "  beware: lookalike letters: p\\u0430th\n" in shown
    assert '"pa\\u200bth"' in shown
    assert "beware" not in text_of(sheet_of(question({"größe": "p\u0430th"}), 80))


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


def test_what_we_say_of_a_call_is_broken_between_words() -> None:
    tool = Tool(ToolName("everything", "trigger-request"), "everything__trigger-request", "", {})
    reason = "no rule approves everything__trigger-request, and nobody has said so before"
    asked = Question(tool, {}, reason, Place(step="line-1"), "everything__trigger-request")

    assert list(sheet_of(asked, 60).whole()[-1:]) == ["        ┆ this session or run"]
    assert text_of(sheet_of(asked, 60)).split("\n")[5:7] == [
        "     why: no rule approves everything__trigger-request, ",
        "        ┆ and nobody has said so before",
    ]


@given(
    value=st.text(st.sampled_from("ab ­é漢\n:"), max_size=120).map(visible),
    width=st.integers(10, 60),
)
@example(value=":  \\xad  \\xad", width=10)
def test_nothing_of_a_value_is_cut_where_it_is_folded(value: str, width: int) -> None:
    first, *others = with_label("why", value, width)
    size = first.index(": ") + 2
    rows = [first[size:], *(row[size:] for row in others)]

    assert "".join(rows) == value
    assert all(row[:size] == f"{'':>{size - 2}}┆ " for row in others)
    # Of several spaces none stands at the end of a row, where nobody could count them; where
    # there is nothing else in a row they have no other place.
    room = max(width - size - 1, 12)
    short = [row for row in rows[:-1] if sum(map(cells, row)) < room - 1]
    assert not [row for row in short if row.endswith("  ") and row.strip()]
