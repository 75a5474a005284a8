"""Odd characters in a line that is edited: shown, kept, and the cursor where it belongs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.processors import Transformation, TransformationInput

from aish.core.text import for_terminal
from aish.shell.input.editor import OddText


def transformed(line: str) -> Transformation:
    control = BufferControl(Buffer())
    return OddText().apply_transformation(
        TransformationInput(
            control, Document(line), 0, lambda at: at, [("", line)], len(line) + 1, 1
        )
    )


def shown(line: str) -> str:
    return "".join(fragment[1] for fragment in transformed(line).fragments)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a\tb", "a    b"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb\0", "a\\u202eb\\x00"),
        ("größer ❤\ufe0f 🦉", "größer ❤\ufe0f 🦉"),
        ("\udcff", "\\udcff"),
    ],
)
def test_what_is_odd_is_spelled_out(line: str, expected: str) -> None:
    assert shown(line) == expected


@given(st.text(st.characters(exclude_characters="\n"), max_size=60))
def test_nothing_that_steers_a_terminal_is_shown(line: str) -> None:
    text = shown(line).replace("\ufe0f", "").replace("\ufe0e", "")
    assert for_terminal(text) == text
    assert "\t" not in text


@given(st.text(st.sampled_from("ab\t\x1b\u202e\0é"), max_size=30))
def test_the_cursor_goes_there_and_back(line: str) -> None:
    result = transformed(line)
    for at in range(len(line) + 1):
        assert result.display_to_source(result.source_to_display(at)) == at
    assert result.source_to_display(len(line)) == len(shown(line))
