"""Pieces of text put together to lines; a line too long to wait for is handed on in pieces."""

from collections.abc import Iterator
from typing import Literal

from aish.core.frozen import frozen

LONGEST = 16_384


@frozen
class Line:
    """A whole line, or of a long one its `first` piece, one of its `next`, or its `end`."""

    text: str
    part: Literal["whole", "first", "next", "end"] = "whole"


_END = Line("", "end")


class LineAssembler:
    """The same lines come out wherever a text is cut."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._pieces: list[str] = []
        self._size = 0
        self._is_long = False

    @property
    def partial(self) -> str:
        """The line that is not whole yet; may be asked for by another thread."""
        return "".join(tuple(self._pieces))

    def held(self, text: str) -> bool:
        """Whether `text` completes nothing and was only kept; the fast way for most pieces."""
        if self._is_long or self._size + len(text) >= self._longest or "\n" in text:
            return False
        if text:
            self._pieces.append(text)
            self._size += len(text)
        return True

    def feed(self, text: str) -> Iterator[Line]:
        """What `text` makes complete."""
        if "\n" not in text:
            yield from self._add(text)
            return
        first, *others, last = text.split("\n")
        yield from self._add(first)
        yield self._ended()
        for line in others:
            if len(line) < self._longest:
                yield Line(line)
            else:
                yield Line(line, "first")
                yield _END
        yield from self._add(last)

    def end(self) -> Iterator[Line]:
        """The text is over; its last line need not end with a line's end."""
        if self._is_long or self._pieces:
            yield self._ended()

    def _add(self, text: str) -> Iterator[Line]:
        if not text:
            return
        if self._is_long:
            yield Line(text, "next")
            return
        self._pieces.append(text)
        self._size += len(text)
        if self._size >= self._longest:
            yield Line(self.partial, "first")
            self._pieces.clear()
            self._is_long = True

    def _ended(self) -> Line:
        line = _END if self._is_long else Line(self.partial)
        self._pieces.clear()
        self._size = 0
        self._is_long = False
        return line
