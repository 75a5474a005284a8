r"""A part of a file, found again after the file was edited.

By its text; else by its first and its last line, those nearest to the old place. Lines end at `\n`
only; the last one may have no end.
"""

from bisect import bisect_left

from aish.core.frozen import frozen


@frozen
class LineSpan:
    """Lines of a text: the first, counted from 1, and the number after the last."""

    first: int
    after: int

    @property
    def shown(self) -> str:
        """The numbers as in `lines 40-90`."""
        last = self.after - 1
        return f"line {self.first}" if last <= self.first else f"lines {self.first}-{last}"


def lines_of(text: str) -> list[str]:
    """The lines without their ends; an end after the last one begins no other line."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def slice_of(text: str, first: int, last: int) -> tuple[str, LineSpan] | None:
    """The lines from `first` to `last`, as far as there are any."""
    lines = lines_of(text)
    if first > len(lines):
        return None
    span = LineSpan(first, min(last, len(lines)) + 1)
    return within(lines, span), span


def within(lines: list[str], span: LineSpan) -> str:
    return "\n".join(lines[span.first - 1 : span.after - 1])


def find_again(text: str, part: str, old: LineSpan) -> LineSpan | None:
    """The present lines of a part of an earlier text; `None` if it is lost."""
    lines, sought = lines_of(text), part.split("\n")
    same = _nearest_same(lines, sought, old.first)
    if same is not None:
        return LineSpan(same, same + len(sought))
    if len(sought) < 2:  # ruff: ignore[magic-value-comparison] - its only line is gone
        return None
    return _between(lines, sought, old)


def _nearest_same(lines: list[str], sought: list[str], old: int) -> int | None:
    """The number of the line where the same text begins, nearest to the old one."""
    whole, part = "\n".join(["", *lines, ""]), "\n".join(["", *sought, ""])
    best: int | None = None
    number, counted = 1, 0
    at = whole.find(part)
    while at >= 0:
        number += whole.count("\n", counted, at)
        counted = at
        if best is not None and abs(number - old) >= abs(best - old):
            # They come in order: each further one is further away.
            return best
        best = number
        at = whole.find(part, at + 1)
    return best


def _between(lines: list[str], sought: list[str], old: LineSpan) -> LineSpan | None:
    """From the nearest line that is the first one, to the nearest after it that is the last."""
    firsts = [number for number, line in enumerate(lines, 1) if line == sought[0]]
    lasts = [number for number, line in enumerate(lines, 1) if line == sought[-1]]
    if not firsts or not lasts:
        return None
    size = old.after - old.first
    for first in sorted(firsts, key=lambda number: abs(number - old.first)):
        behind = bisect_left(lasts, first + 1)
        if behind < len(lasts):
            expected = first + size - 1
            last = min(lasts[behind:], key=lambda number: abs(number - expected))
            return LineSpan(first, last + 1)
    return None
