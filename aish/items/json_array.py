"""A JSON file that is one array, read element by element: the file may be larger than memory."""

import codecs
import re
from collections.abc import Iterator
from json import JSONDecodeError
from typing import BinaryIO

from aish.core.json import JsonValue
from aish.items.lines import NO_UTF8
from aish.items.source import LONGEST_ITEM, ItemsError, read
from aish.items.values import value_at

_CHUNK = 1 << 17
_SPACE = re.compile(r"[ \t\n\r]*")


def json_array(file: BinaryIO, name: str) -> Iterator[tuple[int, JsonValue]]:
    """Each element, with the line that it begins in.

    Raises:
        ItemsError: it is no JSON array, or an element is too long.
    """
    text = _Text(file, name)
    if text.after_space() != "[":
        raise text.error("the file is not one JSON array" if text.here else "the file is empty")
    text.skip()
    if text.after_space() == "]":
        text.skip()
    else:
        yield from _elements(text)
    if text.after_space():
        raise text.error("something follows the array")


def _elements(text: "_Text") -> Iterator[tuple[int, JsonValue]]:
    """The elements of an array that has been opened, and its end."""
    while True:
        text.after_space()
        line = text.line
        value, end = text.element()
        yield line, value
        if end == "]":
            return


class _Text:
    """A window of the file's text, which moves on; `here` is the character that comes next."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._place = 0
        self._line = 1
        # Up to where in the window the line ends are counted.
        self._counted = 0
        self._read = 0
        self._ended = False

    @property
    def here(self) -> str:
        return self._text[self._place : self._place + 1]

    @property
    def line(self) -> int:
        """That of the character that comes next."""
        self._line += self._text.count("\n", self._counted, self._place)
        self._counted = self._place
        return self._line

    def skip(self) -> None:
        """Go on by a character."""
        self._place += 1

    def after_space(self) -> str:
        """The next character that is no white space, or nothing at the end of the file."""
        while True:
            self._place = _end_of_space(self._text, self._place)
            if self._place < len(self._text) or not self._more():
                return self.here

    def element(self) -> tuple[JsonValue, str]:
        """The value that begins here, and the comma or bracket behind it, which are gone by.

        What looks broken may only be cut off by the window's end, so more is read first.
        """
        while True:
            try:
                value, end = value_at(self._text, self._place)
                end = _end_of_space(self._text, end)
                if self._text[end : end + 1] in {",", "]"}:
                    self._place = end + 1
                    return value, self._text[end]
                trouble: ValueError = JSONDecodeError("Expecting ',' or ']'", self._text, end)
            except ValueError as error:
                trouble = error
            if len(self._text) - self._place > LONGEST_ITEM:
                raise self._broken(trouble, cut=True)
            if not self._more():
                raise self._broken(trouble)
            # It holds the window, and this frame it: only the collector would free the two.
            del trouble

    def error(self, said: str, place: int | None = None) -> ItemsError:
        """An error here, or at a place of the window."""
        until = self._place if place is None else place
        line = self._line + self._text.count("\n", self._counted, until)
        return ItemsError(said, where=f"{self._name}:{line}")

    def _broken(self, trouble: ValueError, *, cut: bool = False) -> ItemsError:
        if not isinstance(trouble, JSONDecodeError):
            return self.error(f"the element is no JSON that can be used: {trouble}")
        at_end = trouble.pos >= len(self._text) - 1 or trouble.msg.startswith("Unterminated")
        if cut and at_end:
            return self.error(f"the element is longer than {LONGEST_ITEM} characters")
        return self.error(f"this is no JSON: {trouble.msg}", trouble.pos)

    def _more(self) -> bool:
        """Read on, as much again as there is of a value already; whether there was anything."""
        if self._ended:
            return False
        left = len(self._text) - self._place
        self._line, self._counted = self.line, 0
        self._text, self._place = self._text[self._place :], 0
        data = read(self._file, max(_CHUNK, left), self._name)
        self._ended = not data
        self._text += self._decoded(data)
        return not self._ended

    def _decoded(self, data: bytes) -> str:
        held = len(self._decode.getstate()[0])
        try:
            text = self._decode.decode(data, final=not data)
        except UnicodeDecodeError as error:
            place = self._read - held + error.start
            said = f"byte {place} of the file (0x{error.object[error.start]:02x}) is not UTF-8"
            where = f"{self._name}:{self._line_of(error)}"
            raise ItemsError(said, where=where, hint=NO_UTF8) from error
        self._read += len(data)
        return text

    def _line_of(self, error: UnicodeDecodeError) -> int:
        return (
            self._line
            + self._text.count("\n", self._counted)
            + error.object[: error.start].count(b"\n")
        )


def _end_of_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place
