"""A JSON file that is one array, read element by element: the file may be larger than memory.

JSON Lines: a value a line, of any kind; empty lines are left out.

The lines of a file as text: UTF-8 and nothing else, each with a cap.
"""

import codecs
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from json import JSONDecodeError
from typing import BinaryIO

from aish.core.json import JsonValue
from aish.items.source import LONGEST_ITEM, ItemsError, read, value_at, value_of

NO_UTF8 = "save the file as UTF-8"


class JsonLineReader:
    """Iterates over lines with their ends; `number` is that of the line that came last, from 1.

    `taken` counts the bytes read since it was last set to 0.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self.number = 0
        self.taken = 0
        self._file = file
        self._offset = 0

    def __iter__(self) -> Iterator[str]:
        """Each line.

        Raises:
            ItemsError: a line is too long, or not UTF-8.
        """
        while line := self._line():
            self.number += 1
            size = len(line)
            self.taken += size
            if size > LONGEST_ITEM:
                raise self.error(f"the line is longer than {LONGEST_ITEM} bytes")
            yield self._text(line)
            self._offset += size

    def error(
        self, message: str, *, line: int | None = None, hint: str | None = None
    ) -> ItemsError:
        """An error at `line`, or at the line that came last."""
        return ItemsError(message, where=f"{self.name}:{line or self.number or 1}", hint=hint)

    def _line(self) -> bytes:
        try:
            return self._file.readline(LONGEST_ITEM + 1)
        except OSError as error:
            raise self.error(f"the items cannot be read: {error.strerror}") from error

    def _text(self, line: bytes) -> str:
        offset = self._offset
        if self.number == 1:
            if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                raise self.error("the file is UTF-16, and only UTF-8 is read", hint=NO_UTF8)
            if line.startswith(BOM_UTF8):
                line = line[len(BOM_UTF8) :]
                offset += len(BOM_UTF8)
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            place = offset + error.start
            said = f"byte {place} of the file (0x{line[error.start]:02x}) is not UTF-8"
            raise self.error(said, hint=NO_UTF8) from error
        if "\0" in text:
            place = offset + line.index(b"\0")
            raise self.error(f"byte {place} of the file is a NUL, which no text has")
        return text


_CHUNK = 1 << 17
_SPACE = re.compile(r"[ \t\n\r]*")


def json_array(file: BinaryIO, name: str) -> Iterator[tuple[int, JsonValue]]:
    """Each element, with the line that it begins in.

    Raises:
        ItemsError: it is not a JSON array, or an element is too long.
    """
    text = _TextWindow(file, name)
    if text.after_space() != "[":
        raise text.error("the file is not one JSON array" if text.here else "the file is empty")
    text.skip()
    if text.after_space() == "]":
        text.skip()
    else:
        yield from _elements(text)
    if text.after_space():
        raise text.error("something follows the array")


def _elements(text: "_TextWindow") -> Iterator[tuple[int, JsonValue]]:
    """The elements of an array that has been opened, and its end."""
    while True:
        text.after_space()
        line = text.line
        value, end = text.element()
        yield line, value
        if end == "]":
            return


class _TextWindow:
    """A moving window of the file's text; `here` is the next character."""

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
        """The line of the next character."""
        self._line += self._text.count("\n", self._counted, self._place)
        self._counted = self._place
        return self._line

    def skip(self) -> None:
        self._place += 1

    def after_space(self) -> str:
        """The next character that is not white space, or nothing at the end of the file."""
        while True:
            self._place = _end_of_space(self._text, self._place)
            if self._place < len(self._text) or not self._more():
                return self.here

    def element(self) -> tuple[JsonValue, str]:
        """The value that begins here, and the comma or bracket after it, both consumed.

        What looks invalid may only be cut off by the window's end, so more is read first.
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
                raise self._json_error(trouble, cut=True)
            if not self._more():
                raise self._json_error(trouble)
            # It holds the window, and this frame it: only the collector would free the two.
            del trouble

    def error(self, said: str, place: int | None = None) -> ItemsError:
        """An error here, or at a place of the window."""
        until = self._place if place is None else place
        line = self._line + self._text.count("\n", self._counted, until)
        return ItemsError(said, where=f"{self._name}:{line}")

    def _json_error(self, trouble: ValueError, *, cut: bool = False) -> ItemsError:
        if not isinstance(trouble, JSONDecodeError):
            return self.error(f"the element is not valid JSON: {trouble}")
        at_end = trouble.pos >= len(self._text) - 1 or trouble.msg.startswith("Unterminated")
        if cut and at_end:
            return self.error(f"the element is longer than {LONGEST_ITEM} characters")
        return self.error(f"this is not valid JSON: {trouble.msg}", trouble.pos)

    def _more(self) -> bool:
        """Read as much again as a value already has; returns whether there was anything."""
        if self._ended:
            return False
        left = len(self._text) - self._place
        self._line, self._counted = self.line, 0
        self._text, self._place = self._text[self._place :], 0
        data = read(self._file, max(_CHUNK, left), self._name)
        self._ended = not data
        self._text += self._decode_text(data)
        return not self._ended

    def _decode_text(self, data: bytes) -> str:
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


def json_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, JsonValue]]:
    """Each line's value, with the line.

    Raises:
        ItemsError: a line is not valid JSON, or too long.
    """
    lines = JsonLineReader(file, name)
    for line in lines:
        if line.isspace() or not line:
            continue
        try:
            value = value_of(line)
        except JSONDecodeError as error:
            said = f"the line is not valid JSON: {error.msg} (column {error.colno})"
            raise lines.error(said) from error
        except ValueError as error:
            raise lines.error(f"the line is not valid JSON: {error}") from error
        yield lines.number, value
