"""Text folded into rows by the cells it takes: nothing is cut off, and no row is too wide."""

from collections.abc import Iterator

from aish.output.style import cells

_TAB = 8


class Folding:
    """Folds a line that comes in pieces; `start` is what a row begins with."""

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


def folded(text: str, width: int) -> list[str]:
    """The rows of whole lines."""
    return [row for line in text.split("\n") for row in Folding(width).piece(line).split("\n")]
