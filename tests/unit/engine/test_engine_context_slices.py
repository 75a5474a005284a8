"""Parts of files, found again after edits (K82)."""

import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.config.model import ContextFile
from aish.engine.steps.context_files.code_parts import code_part
from aish.engine.steps.context_files.slices import LineSpan, find_again, lines_of, slice_of, within
from aish.packs.pack_error import PackError
from aish.packs.parse_worker import ParseWorker

LINES = [f"line {number}" for number in range(1, 21)]


def again(lines: list[str], first: int, last: int, before: list[str] = LINES) -> LineSpan | None:
    """Where lines of an earlier text are now."""
    found = slice_of("\n".join(before) + "\n", first, last)
    assert found is not None
    return find_again("\n".join(lines) + "\n", *found)


@each_case(
    "after, wanted",
    [
        (LINES, (8, 12)),
        (["new", *LINES], (9, 13)),
        (LINES[5:], (3, 7)),
        # The text is there twice: the nearer one counts.
        ([*LINES, *LINES], (8, 12)),
        ([*LINES[7:12], *["x"] * 30, *LINES[7:12]], (1, 5)),
        # Changed within: from its first line to its last one.
        ([*LINES[:9], "a", "b", *LINES[10:]], (8, 13)),
        ([*LINES[:8], *LINES[11:]], (8, 9)),
        # Its first and its last line have changed places.
        ([*LINES[11:12], *LINES[7:8]], None),
        ([*LINES[:7], *LINES[8:]], None),
        ([], None),
    ],
)
def test_a_part_is_found_by_its_text_or_by_its_first_and_last_line(
    after: list[str], wanted: tuple[int, int] | None
) -> None:
    found = again(after, 8, 12)
    assert (None if found is None else (found.first, found.after - 1)) == wanted


def test_of_several_first_and_last_lines_the_nearest_count() -> None:
    before = ["{", "a", "}", "{", "b", "}", "{", "c", "}"]
    after = ["{", "a", "}", "{", "B", "B", "}", "{", "c", "}"]
    assert again(after, 4, 6, before) == LineSpan(4, 8)


def test_one_changed_line_is_lost() -> None:
    assert again([*LINES[:4], "other", *LINES[5:]], 5, 5) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\nb\nc", ("b\nc", LineSpan(2, 4))),
        ("a\nb\nc\n", ("b\nc", LineSpan(2, 4))),
        ("a\nb\n", ("b", LineSpan(2, 3))),
        ("a\n", None),
        ("", None),
    ],
)
def test_lines_beyond_the_end_are_left_out(text: str, wanted: tuple[str, LineSpan] | None) -> None:
    assert slice_of(text, 2, 9) == wanted


LINE = st.sampled_from(["", "a", "b", "}", "x = 1"])


@given(st.lists(LINE, min_size=1), st.lists(LINE), st.lists(LINE), st.data())
def test_what_was_only_moved_is_found_with_the_same_text(
    before: list[str], above: list[str], below: list[str], data: st.DataObject
) -> None:
    count = len(lines_of("\n".join(before) + "\n"))
    first = data.draw(st.integers(1, count))
    last = data.draw(st.integers(first, count))
    found = slice_of("\n".join(before) + "\n", first, last)
    assert found is not None

    after = "\n".join([*above, *before, *below]) + "\n"
    now = find_again(after, *found)

    assert now is not None
    assert within(lines_of(after), now) == found[0]
    # No other place is nearer.
    assert abs(now.first - first) <= len(above)


@pytest.mark.parametrize(("path", "extra"), [("a.py", "py"), ("a.c", "c")])
def test_parts_of_code_need_the_grammar_of_their_language(
    monkeypatch: pytest.MonkeyPatch, path: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    entry = ContextFile(path, Path(), name="f")
    with pytest.raises(PackError) as raised:
        anyio.run(code_part, ParseWorker(None), entry, b"", "")
    assert raised.value.code == "not_installed"
    assert f"pip install 'aish-pipelines[{extra}]'" in raised.value.message
