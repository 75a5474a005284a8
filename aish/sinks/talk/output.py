"""What a local command prints, in a frame that grows while it runs."""

import re
from collections.abc import Iterator, Sequence

from aish.core.text import for_terminal
from aish.sinks.look import Look, Style, cells
from aish.sinks.screen import Screen
from aish.sinks.talk.cleaning import Cleaner
from aish.sinks.talk.folding import Folding, folded
from aish.sinks.talk.lines import LONGEST, Line

_ENDS = re.compile(r"([\r\n])")


class Overwritten:
    r"""Lines of which the part after the last `\r` counts, as progress bars use it.

    A part that is too long to wait for is handed on in pieces.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._kept = ""
        self._parts: list[str] = []
        self._size = 0
        self._is_long = False

    @property
    def partial(self) -> str:
        """What there is of the line that has not ended; may be asked for by another thread."""
        return "".join(tuple(self._parts)) or self._kept

    def feed(self, text: str) -> Iterator[Line]:
        """What `text` makes complete."""
        if "\n" not in text and "\r" not in text:
            yield from self._add(text)
            return
        for part in _ENDS.split(text):
            if part == "\n":
                yield from self._ended(always=True)
            elif part == "\r":
                yield from self._returned()
            else:
                yield from self._add(part)

    def end(self) -> Iterator[Line]:
        """Nothing more comes."""
        yield from self._ended(always=False)

    def _add(self, text: str) -> Iterator[Line]:
        if self._is_long:
            if text:
                yield Line(text, "next")
            return
        self._parts.append(text)
        self._size += len(text)
        if self._size >= self._longest:
            yield Line("".join(self._parts), "first")
            self._parts.clear()
            self._kept = ""
            self._is_long = True

    def _returned(self) -> Iterator[Line]:
        if self._is_long:
            yield Line("", "end")
        elif self._size:
            self._kept = "".join(self._parts)
        self._parts.clear()
        self._size = 0
        self._is_long = False

    def _ended(self, *, always: bool) -> Iterator[Line]:
        if self._is_long:
            yield from self._returned()
        elif always or self.partial:
            yield Line(self.partial)
        self._parts.clear()
        self._kept = ""
        self._size = 0


class _Stream:
    """One of the two that a command writes to."""

    def __init__(self, look: Look, style: Style) -> None:
        self.lines = Overwritten()
        self.bar = look.paint(style, f"  {look.glyphs.bar} ")
        self.cleaner = Cleaner()
        self.folding = Folding(1)


class OutputFrame:
    """Below the line that names the command; what is on stderr has a bar of another colour."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        look = screen.look
        self._margin = 2 + len(look.glyphs.bar) + 1
        self._streams = {"stdout": _Stream(look, "dim"), "stderr": _Stream(look, "yellow")}
        self._in_line: _Stream | None = None
        self.is_empty = True
        screen.end_line()
        screen.pin(self._tail)

    def feed(self, text: str, name: str) -> None:
        """Some output has come."""
        stream = self._streams[name]
        self.is_empty = self.is_empty and not text
        self._draw(stream, stream.lines.feed(text))

    def end(self) -> None:
        """The command has ended."""
        for stream in self._streams.values():
            self._draw(stream, stream.lines.end())
        self._screen.pin(None)
        self._screen.end_line()

    def _draw(self, stream: _Stream, lines: Iterator[Line]) -> None:
        room = self._screen.width - self._margin
        if shown := "".join([self._row(stream, line, room) for line in lines]):
            self._screen.instead(shown)

    def _row(self, stream: _Stream, line: Line, room: int) -> str:
        goes_on = self._in_line is stream
        if line.part == "end":
            self._in_line = None if goes_on else self._in_line
            return "\n" if goes_on else ""
        if goes_on:
            return stream.folding.piece(stream.cleaner.piece(line.text))
        broken = "" if self._in_line is None else "\n"
        if line.part == "whole":
            self._in_line = None
            shown = for_terminal(line.text)
            if "\t" in shown or cells(shown) > room:
                shown = Folding(room, stream.bar).piece(shown)
            return f"{broken}{stream.bar}{shown}\n"
        stream.folding = Folding(room, stream.bar)
        if line.part == "first":
            stream.cleaner = Cleaner()
        self._in_line = stream
        return broken + stream.bar + stream.folding.piece(stream.cleaner.piece(line.text))

    def _tail(self, width: int, height: int) -> Sequence[str]:
        """Lines that have not ended: a bar of progress, a question."""
        rows = [
            stream.bar + row
            for stream in self._streams.values()
            if stream.lines.partial
            for row in folded(
                for_terminal(stream.lines.partial[-width * height :]), width - 1 - self._margin
            )
        ]
        return rows[-max(1, height) :]
