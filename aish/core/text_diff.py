"""Differences between two texts, line by line, at a bounded cost.

The cost of a comparison grows with the product of the line counts: common first and last lines are
excluded, and too many other lines are not compared. The texts remain untrusted.
"""

from collections.abc import Iterator, Sequence
from typing import AnyStr

from aish.core.frozen import frozen
from aish.core.phrases import shorten_counted

_AROUND = 2
_MOST_LINES = 1_000
_WIDEST = 2_000


@frozen
class Hunk:
    """Lines that differ and those around them; each begins with `-`, `+` or a space.

    `old` and `new` are the indices, from 0, of its first line in the two texts.
    """

    old: int
    new: int
    rows: tuple[str, ...]


def hunks(before: Sequence[str], after: Sequence[str], around: int, most: int) -> Iterator[Hunk]:
    """The differences between two texts, with `around` lines of context.

    If more than `most` lines would have to be compared, all old lines precede all new ones.
    """
    start, end = _equal_ends(before, after)
    if start == len(before) == len(after):
        return
    begin = max(0, start - around)
    lead, tail = before[begin:start], before[len(before) - end :][:around]
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    if max(len(old), len(new)) > most:
        rows = [*_mark(" ", lead), *_mark("-", old), *_mark("+", new), *_mark(" ", tail)]
        yield Hunk(begin, begin, tuple(rows))
        return
    # Rarely needed, and slow to import.
    from difflib import SequenceMatcher

    old, new = [*lead, *old, *tail], [*lead, *new, *tail]
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(around):
        rows = []
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                rows += _mark(" ", old[i:i_end])
            else:
                rows += [*_mark("-", old[i:i_end]), *_mark("+", new[j:j_end])]
        yield Hunk(begin + group[0][1], begin + group[0][3], tuple(rows))


def diff_rows(
    before: str, after: str, around: int, most: int, old_first: int = 1, new_first: int = 1
) -> Iterator[str]:
    """The rows of a unified diff, without the names of files and without line ends.

    The texts begin at these lines of theirs. A last line that has gained or lost its end is marked
    as in `diff`.
    """
    for hunk in hunks(_diff_lines(before), _diff_lines(after), around, most):
        old = _range(hunk.old + old_first, sum(row[0] != "+" for row in hunk.rows))
        new = _range(hunk.new + new_first, sum(row[0] != "-" for row in hunk.rows))
        yield f"@@ -{old} +{new} @@"
        yield from hunk.rows


def _diff_lines(text: str) -> list[str]:
    """The lines of a text; a last one without an end is marked."""
    lines = text.split("\n")
    last = lines.pop()
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


def _range(first: int, count: int) -> str:
    """A range of lines as in `diff`: of an empty one, the line before it."""
    if count == 1:
        return f"{first}"
    return f"{first if count else first - 1},{count}"


def line_changes(before: str, after: str) -> tuple[str, ...]:
    """Lines that begin with `-`, `+`, a space for context, or `@@`; no file names.

    A long line is shown from near the position of the change.
    """
    shown: list[str] = []
    old, new = before.split("\n"), after.split("\n")
    start, end = _equal_ends(old, new)
    if max(len(old), len(new)) - start - end > _MOST_LINES:
        return (
            f"@@ from line {start + 1} @@",
            f"-{len(old) - start - end} lines",
            f"+{len(new) - start - end} lines, too many to be compared",
        )
    for hunk in hunks(old, new, _AROUND, _MOST_LINES):
        shown += [f"@@ line {hunk.old + 1} @@", *_near_change(hunk.rows)]
    return tuple(shown)


def equal_lines(one: Sequence[str], other: Sequence[str]) -> int:
    """Count the first lines that two texts have in common."""
    most = min(len(one), len(other))
    return next((n for n in range(most) if one[n] != other[n]), most)


def _equal_ends(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    start = equal_lines(before, after)
    return start, equal_lines(before[start:][::-1], after[start:][::-1])


def equal_start(one: AnyStr, other: AnyStr) -> int:
    """Count the first characters or bytes that two texts have in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _mark(mark: str, lines: Sequence[str]) -> list[str]:
    return [f"{mark}{line}" for line in lines]


def _near_change(rows: Sequence[str]) -> Iterator[str]:
    """The lines; most of what a long replaced line shares with its replacement is omitted."""
    changed, skipped = [row for row in rows if row[0] != " "], 0
    if [row[0] for row in changed] == ["-", "+"] and max(map(len, changed)) > _WIDEST:
        skipped = max(0, equal_start(changed[0][1:], changed[1][1:]) - _WIDEST // 10)
    for row in rows:
        text = f"…{row[1 + skipped :]}" if skipped and row[0] != " " else row[1:]
        yield row[0] + shorten_counted(text, _WIDEST)
