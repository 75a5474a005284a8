"""The lines of a file as text: UTF-8 and nothing else, each with a cap (X6)."""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from typing import BinaryIO

from aish.items.source import LONGEST_ITEM, ItemsError

NO_UTF8 = "save the file as UTF-8"


class Lines:
    """Iterates over lines with their ends; `number` is that of the line that came last, from 1.

    `taken` counts the bytes that came since somebody set it to 0.
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
            ItemsError: a line is too long, or no UTF-8.
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
