"""A table in rows: columns as wide as they need to be, or folded to what there is."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from aish.sinks.look import Look, cells, without_styles
from aish.sinks.talk.layout import Run, rows

Side = Literal["left", "center", "right"]
Cell = Sequence[Run]

_GAP = "  "
_SIDES: Mapping[object, Side] = {"text-align:right": "right", "text-align:center": "center"}


def side_of(style: object) -> Side:
    """The side that a column keeps to, of the style that the parser gives its cells."""
    return _SIDES.get(style, "left")


def table_rows(
    lines: Sequence[Sequence[Cell]], sides: Sequence[Side], look: Look, width: int
) -> Iterator[str]:
    """The table, its head first; what does not fit into a cell is folded."""
    needed = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    widths = _shared(needed, width - len(_GAP) * (len(sides) - 1))
    head, *body = lines
    bold = [[Run(run.text, f"1;{run.codes}".rstrip(";")) for run in cell] for cell in head]
    yield from _line(bold if look.color else head, sides, widths)
    yield look.paint("dim", _GAP.join(look.glyphs.rule * one for one in widths))
    is_tall = any(need > have for need, have in zip(needed, widths, strict=True))
    for number, line in enumerate(body):
        if is_tall and number:
            # Between lines that may be folded only an empty one tells where the next begins.
            yield ""
        yield from _line(line, sides, widths)


def _line(line: Sequence[Cell], sides: Sequence[Side], widths: Sequence[int]) -> Iterator[str]:
    drawn = list(map(rows, line, widths))
    for number in range(max(map(len, drawn))):
        parts = (
            _padded(column[number] if number < len(column) else "", side, width)
            for column, side, width in zip(drawn, sides, widths, strict=True)
        )
        yield _GAP.join(parts).rstrip(" ")


def _padded(text: str, side: Side, width: int) -> str:
    left = max(0, width - cells(without_styles(text)))
    if side == "right":
        return " " * left + text
    before = left // 2 if side == "center" else 0
    return " " * before + text + " " * (left - before)


def _width(cell: Cell) -> int:
    return max((cells(line) for line in "".join(run.text for run in cell).split("\n")), default=0)


def _shared(needed: Sequence[int], width: int) -> Sequence[int]:
    """The room of each column: the narrow ones have what they need, the others share the rest."""
    given = [max(1, need) for need in needed]
    left, open_columns = width, sorted(range(len(given)), key=given.__getitem__)
    while open_columns:
        share = max(1, left // len(open_columns))
        column = open_columns.pop(0)
        given[column] = min(given[column], share)
        left -= given[column]
    return given
