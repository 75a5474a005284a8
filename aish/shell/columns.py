"""Rows in columns that fit a width: the last column is folded, nothing is cut off. Pure."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

_GAP = "  "
_NARROWEST = 24


def columns(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Each row as lines; without a `width` a row is one line.

    Where the last column would be too narrow it goes below the others, indented.
    """
    if not rows:
        return
    count = len(rows[0])
    widths = [max(len(row[at]) for row in rows) for at in range(count - 1)]
    before = sum(one + len(_GAP) for one in widths)
    for row in rows:
        cells = (f"{cell:{size}}{_GAP}" for cell, size in zip(row, widths, strict=False))
        yield from _row("".join(cells), row[-1], before, width)


def _row(head: str, last: str, before: int, width: int | None) -> Iterator[str]:
    if width is None or before + len(last) <= width:
        yield f"{head}{last}".rstrip()
        return
    if width - before >= _NARROWEST:
        first, *rest = wrap(last, width - before, break_long_words=True)
        yield f"{head}{first}"
        yield from (f"{'':{before}}{line}" for line in rest)
        return
    yield head.rstrip()
    yield from (f"    {line}" for line in wrap(last, max(width - 4, 8), break_long_words=True))
