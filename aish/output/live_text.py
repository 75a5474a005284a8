r"""Text that is drawn while it arrives: an answer as written, the output of a command.

`for_terminal` depends on a character's neighbours in two cases: `\r\n` is a line end, and emoji
selectors are harmless after a symbol. Where a text is split there, its end is held back.

Pieces are joined to lines; a line too long to hold back is passed on in pieces.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from aish.core.frozen import frozen
from aish.core.text import for_terminal
from aish.output.rows import Folding, fold
from aish.output.screen import Screen
from aish.output.style import Look, Style, cells

LONGEST = 16_384
_SELECTORS = "\ufe0e\ufe0f"
_WAITING = f"\r{_SELECTORS}"
_ENDS = re.compile(r"(\n)")
_RETURNS = re.compile(r"([\r\n])")


class Cleaner:
    """The pieces written are together what `for_terminal` returns for the whole text."""

    def __init__(self) -> None:
        self._held = ""
        self._last = ""

    def piece(self, text: str) -> str:
        """Return what can be written now that `text` has arrived."""
        if not self._held and text.isascii() and text.isprintable():
            self._last = text[-1:] or self._last
            return text
        whole = self._held + text
        sure = whole.rstrip(_WAITING)
        self._held = whole[len(sure) :]
        if len(self._held) > 1:
            # Of several only the last one has a neighbour that is not known yet.
            sure, self._held = whole[:-1], whole[-1]
        return self._clean(sure)

    def rest(self) -> str:
        """Return what was held back; no text follows."""
        held, self._held = self._held, ""
        return self._clean(held)

    def _clean(self, text: str) -> str:
        if not text:
            return ""
        before = self._last if text[0] in _SELECTORS else ""
        self._last = text[-1]
        line = for_terminal(before + text)
        return line[len(for_terminal(before)) :]


@frozen
class LinePiece:
    """A whole line; or of a long one the `first` piece, a `next` one, or its `end`."""

    text: str
    part: Literal["whole", "first", "next", "end"] = "whole"


_END = LinePiece("", "end")


class LineAssembler:
    r"""Returns the same lines wherever a text is split.

    With `overwrites`, the part after the last `\r` of a line counts, as progress bars use it.
    """

    def __init__(self, longest: int = LONGEST, *, overwrites: bool = False) -> None:
        self._longest = longest
        self._overwrites = overwrites
        self._kept = ""
        self._pieces: list[str] = []
        self._size = 0
        self._is_long = False

    @property
    def partial(self) -> str:
        """The incomplete line; may be read by another thread."""
        return "".join(tuple(self._pieces)) or self._kept

    def hold(self, text: str) -> bool:
        """Store `text` and return true if it completes nothing; the fast path for most pieces."""
        if self._is_long or self._size + len(text) >= self._longest or self._has_end(text):
            return False
        if text:
            self._pieces.append(text)
            self._size += len(text)
        return True

    def feed(self, text: str) -> Iterator[LinePiece]:
        """The lines that `text` completes."""
        if not self._has_end(text):
            yield from self._add(text)
            return
        for part in (_RETURNS if self._overwrites else _ENDS).split(text):
            if part == "\n":
                yield _END if self._is_long else LinePiece(self.partial)
                self._restart()
            elif part == "\r" and self._overwrites:
                if self._is_long:
                    yield _END
                self._restart("".join(self._pieces) or self._kept)
            else:
                yield from self._add(part)

    def end(self) -> Iterator[LinePiece]:
        """No text follows; its last line need not have a line end."""
        if self._is_long:
            yield _END
        elif partial := self.partial:
            yield LinePiece(partial)
        self._restart()

    def _has_end(self, text: str) -> bool:
        return "\n" in text or (self._overwrites and "\r" in text)

    def _add(self, text: str) -> Iterator[LinePiece]:
        if not text:
            return
        if self._is_long:
            yield LinePiece(text, "next")
            return
        self._pieces.append(text)
        self._size += len(text)
        if self._size >= self._longest:
            yield LinePiece("".join(self._pieces), "first")
            self._restart()
            self._is_long = True

    def _restart(self, rest: str = "") -> None:
        self._kept = rest
        self._pieces.clear()
        self._size = 0
        self._is_long = False


class LiveAnswer(Protocol):
    """The answer of one turn: as written, or drawn as Markdown."""

    def feed(self, text: str) -> None:
        """More of it has arrived."""

    def end(self) -> None:
        """It is complete."""

    def drop(self) -> None:
        """It is withdrawn; what is not final on the screen is removed."""


class RawAnswer:
    """Each piece as it arrives; `elsewhere`: another sink writes it to this terminal."""

    def __init__(self, screen: Screen, *, elsewhere: bool = False) -> None:
        self._screen = screen
        self._elsewhere = elsewhere
        self._cleaner = Cleaner()
        screen.end_line()

    def feed(self, text: str) -> None:
        self._screen.text(self._cleaner.piece(text), elsewhere=self._elsewhere)

    def end(self) -> None:
        """Write what was held back; the caller ends its line."""
        self._screen.text(self._cleaner.rest(), elsewhere=self._elsewhere)

    def drop(self) -> None:
        """Leave what was written."""
        self._screen.end_line()


class _CommandStream:
    """An output stream of a command."""

    def __init__(self, look: Look, style: Style) -> None:
        self.lines = LineAssembler(overwrites=True)
        self.bar = look.paint(style, f"  {look.glyphs.bar} ")
        self.cleaner = Cleaner()
        self.folding = Folding(1)


class CommandOutput:
    """Below the line with the command's name; stderr has a bar of another colour."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        look = screen.look
        self._margin = 2 + len(look.glyphs.bar) + 1
        self._streams = {
            "stdout": _CommandStream(look, "dim"),
            "stderr": _CommandStream(look, "yellow"),
        }
        self._in_line: _CommandStream | None = None
        self.is_empty = True
        screen.end_line()
        screen.pin(self._tail)

    def feed(self, text: str, name: str) -> None:
        stream = self._streams[name]
        self.is_empty = self.is_empty and not text
        self._draw(stream, stream.lines.feed(text))

    def end(self) -> None:
        for stream in self._streams.values():
            self._draw(stream, stream.lines.end())
        self._screen.pin(None)
        self._screen.end_line()

    def _draw(self, stream: _CommandStream, lines: Iterator[LinePiece]) -> None:
        room = self._screen.width - self._margin
        if rows := "".join([self._row(stream, line, room) for line in lines]):
            self._screen.instead(rows)

    def _row(self, stream: _CommandStream, line: LinePiece, room: int) -> str:
        goes_on = self._in_line is stream
        if line.part == "end":
            self._in_line = None if goes_on else self._in_line
            return "\n" if goes_on else ""
        if goes_on:
            return stream.folding.piece(stream.cleaner.piece(line.text))
        broken = "" if self._in_line is None else "\n"
        if line.part == "whole":
            self._in_line = None
            text = for_terminal(line.text)
            if "\t" in text or cells(text) > room:
                text = Folding(room, stream.bar).piece(text)
            return f"{broken}{stream.bar}{text}\n"
        stream.folding = Folding(room, stream.bar)
        if line.part == "first":
            stream.cleaner = Cleaner()
        self._in_line = stream
        return broken + stream.bar + stream.folding.piece(stream.cleaner.piece(line.text))

    def _tail(self, width: int, height: int) -> Sequence[str]:
        """Incomplete lines: a progress bar, a prompt."""
        rows = [
            stream.bar + row
            for stream in self._streams.values()
            if stream.lines.partial
            for row in fold(
                for_terminal(stream.lines.partial[-width * height :]), width - 1 - self._margin
            )
        ]
        return rows[-max(1, height) :]
