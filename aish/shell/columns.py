"""Text folded, and rows in columns, at the width of a terminal; nothing is cut off. Pure."""

from collections.abc import Iterator, Sequence

from aish.output.rows import spans
from aish.output.style import cells

_GAP = "  "
_INDENT = "    "
_LAST = 24
"""How narrow the last column may become before another one does."""
_OTHER = 16
_LEAST = 8


def fold(text: str, room: int) -> list[str]:
    """Rows that fit into `room` cells, folded between words; they begin where the text does."""
    if cells(text) <= room:
        return [text]
    bare = text.lstrip(" ")
    indent = text[: min(len(text) - len(bare), max(room - _LEAST, 0))]
    return [indent + bare[start:end] for start, end in spans(bare, room - len(indent))]


def columns(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Each row as lines; without a `width` a row is one line.

    Where there is no room for all columns, cells are folded, and where that is not enough they
    follow one another.
    """
    if not rows:
        return
    natural = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    widths = natural if width is None else _fitted(natural, width)
    for row in rows:
        yield from _flowing(row, width or 0) if widths is None else _in_columns(row, widths)


def _fitted(natural: Sequence[int], width: int) -> list[int] | None:
    """The widths of columns that fit, the last one narrowed first; `None` if none do."""
    found = list(natural)
    excess = sum(found) + len(_GAP) * (len(found) - 1) - width
    order = [len(found) - 1, *sorted(range(len(found) - 1), key=lambda at: -found[at])]
    for at in order:
        least = _LAST if at == len(found) - 1 else _OTHER
        less = min(excess, max(found[at] - least, 0))
        if less > 0:
            found[at] -= less
            excess -= less
    return found if excess <= 0 else None


def _in_columns(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    folded = list(map(fold, row, widths))
    for at in range(max(map(len, folded))):
        parts = (cell[at] if at < len(cell) else "" for cell in folded)
        padded = (
            part + " " * (width - cells(part)) for part, width in zip(parts, widths, strict=True)
        )
        yield _GAP.join(padded).rstrip()


def _flowing(row: Sequence[str], width: int) -> Iterator[str]:
    """The cells one after the other; one that has no room begins a line."""
    line = row[0]
    for cell in row[1:]:
        if cells(line) + len(_GAP) + cells(cell) <= width:
            line += _GAP + cell
            continue
        yield from fold(line, width)
        line = _INDENT + cell
    yield from fold(line, width)
