"""Text in rows of a terminal.

Our own sentences are folded between words, with the rows after the first indented; a word wider
than a row is left whole for the terminal to break, so that a path or an address can still be
copied. Untrusted text is broken within words too, so that no row is too wide; text that arrives in
pieces is folded by its width in cells.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal

from aish.output.style import cells, without_styles

GAP = "  "
"""What stands between columns."""
Side = Literal["left", "center", "right"]
_NARROW = 40
_WORDS = re.compile(r" *[^ ]+")
_TAB = 8


def sentence(text: str, width: int, indent: str = "  ") -> Iterator[str]:
    """The rows of one line, at most `width` cells wide where its words allow it."""
    row, used, start = "", 0, ""
    for match in _WORDS.finditer(text.rstrip(" ")):
        word = match[0]
        size = cells(word)
        if used > len(indent) and used + size > width:
            yield start + row
            start = indent
            row = word.lstrip(" ")
            used = cells(start) + cells(row)
        else:
            row += word
            used += size
    yield start + row


def parts_in_rows(parts: Sequence[str], dot: str, width: int, start: str = "") -> Iterator[str]:
    """Parts separated by dots, after `start`; a part that fits into a row is not broken."""
    row = ""
    for part in filter(None, parts):
        longer = f"{row} {dot} {part}" if row else f"{start}{part}"
        if row and cells(longer) > width:
            yield row
            longer = f"  {part}"
        row = longer
    yield row


def hint_rows(hint: str, width: int) -> Iterator[str]:
    return sentence(f"  hint: {hint}", width, " " * (8 if width >= _NARROW else 2))


def column_rows(
    line: Sequence[Sequence[str]], widths: Sequence[int], sides: Sequence[Side] = ()
) -> Iterator[str]:
    """The rows of a line of cells, each of which has rows of its own."""
    for number in range(max(map(len, line))):
        parts = (
            _pad(cell[number] if number < len(cell) else "", width, side)
            for cell, width, side in zip_longest(line, widths, sides)
        )
        yield GAP.join(parts).rstrip(" ")


def _pad(text: str, width: int, side: Side | None) -> str:
    left = max(0, width - cells(without_styles(text)))
    before = left if side == "right" else left // 2 if side == "center" else 0
    return " " * before + text + " " * (left - before)


def spans(text: str, width: int) -> Iterator[tuple[int, int]]:
    """The start and end of each row of a text."""
    start = 0
    width = max(1, width)
    for line in text.split("\n"):
        if len(line) <= width and cells(line) <= width:
            yield start, start + len(line)
        else:
            for begin, end in _break_spans(line, width):
                yield start + begin, start + end
        start += len(line) + 1


def _break_spans(line: str, width: int) -> Iterator[tuple[int, int]]:
    start = end = used = 0
    for word in _WORDS.finditer(line.rstrip(" ")):
        size = cells(word[0])
        if used + size <= width:
            end = word.end()
            used += size
            continue
        begin = word.end() - len(word[0].lstrip(" "))
        long = cells(line[begin : word.end()])
        if long <= width:
            yield start, end
            start, end, used = begin, word.end(), long
            continue
        # A word wider than a row begins where the last one ended.
        at = begin if used == 0 else word.start()
        start = begin if used == 0 else start
        for index in range(at, word.end()):
            step = cells(line[index])
            if used + step > width and index > start:
                yield start, index
                start, used = index, 0
            used += step
        end = word.end()
    yield start, end


class Folding:
    """Folds a line that arrives in pieces; each row begins with `start`."""

    def __init__(self, width: int, start: str = "") -> None:
        self._room = max(1, width)
        self._start = start
        self._column = 0

    def piece(self, text: str) -> str:
        """The next piece of a line, with the ends of its rows."""
        if text.isascii() and "\t" not in text:
            return "".join(self._ascii(text))
        return "".join(self._any(text))

    def _ascii(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            if self._column >= self._room:
                yield f"\n{self._start}"
                self._column = 0
            row = text[at : at + self._room - self._column]
            yield row
            at += len(row)
            self._column += len(row)

    def _any(self, text: str) -> Iterator[str]:
        for character in text:
            size = _TAB - self._column % _TAB if character == "\t" else cells(character)
            if self._column and self._column + size > self._room:
                yield f"\n{self._start}"
                self._column = 0
                size = min(size, _TAB)
            if character == "\t":
                size = min(size, self._room)
                yield " " * size
            else:
                yield character
            self._column += size


def fold(text: str, width: int) -> list[str]:
    return [row for line in text.split("\n") for row in Folding(width).piece(line).split("\n")]
