"""Rows of a unified diff: what is put together from them is the text after (K84)."""

import re

from hypothesis import given
from hypothesis import strategies as st

from aish.core.text_diff import diff_rows

_HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
TEXT = st.lists(st.sampled_from(["a", "b", "", "c d", "@@ x", "-"])).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join([*lines, ""])])
)


def patched(before: str, rows: list[str], first: int, new_first: int) -> list[str]:
    """The lines after; a line without an end is marked in the rows, and so it is here."""
    old = rows_of(before)
    found: list[str] = []
    done = 0
    for row in rows:
        # A row of text begins with a space, `-` or `+`.
        if head := _HEAD.fullmatch(row):
            begin, count, new, new_count = (1 if one is None else int(one) for one in head.groups())
            start = begin - first + (count == 0)
            found += old[done:start]
            assert len(found) == new - new_first + (new_count == 0)
            done = start
            continue
        if row[0] in " -":
            assert row[1:] == old[done]
            done += 1
        if row[0] in " +":
            found.append(row[1:])
    return found + old[done:]


def rows_of(text: str) -> list[str]:
    lines = text.split("\n")
    last = lines.pop()
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


@given(TEXT, TEXT, st.integers(0, 3), st.integers(1, 50), st.integers(1, 50))
def test_the_rows_lead_from_one_text_to_the_other(
    before: str, after: str, around: int, first: int, new_first: int
) -> None:
    for most in (1000, 1):
        rows = list(diff_rows(before, after, around, most, first, new_first))
        assert patched(before, rows, first, new_first) == rows_of(after)
        assert bool(rows) == (before != after)


def test_a_line_end_that_is_gone_is_marked() -> None:
    assert list(diff_rows("a\nb\n", "a\nb", 3, 1000)) == [
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+b\n\\ No newline at end of file",
    ]
    assert list(diff_rows("", "a\n", 3, 1000)) == ["@@ -0,0 +1 @@", "+a"]
