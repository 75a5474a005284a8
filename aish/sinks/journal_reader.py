"""A journal read back: one record after the other, none of them on trust (B2).

A torn tail, which a killed process or a crash of the machine may leave, is recognised and left out:
half a record, NUL bytes, or both. Anything else that is not as it was written is refused with its
line and place: what was done once must not be done again because its record was skipped.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.sinks.journal_record import JournalError, is_unwritten, opened
from aish.sinks.lines import VERSION
from aish.system.files import open_own

LONGEST = 256 * 1024 * 1024
_BUFFER = 1 << 18


@frozen
class Torn:
    """What stands after the last whole record: where it begins, and how long it is."""

    line: int
    offset: int
    size: int


def torn_tail(torn: Torn) -> str:
    """What is told of a tail that is cut off before anything is appended."""
    size = f"{torn.size:,} bytes" if torn.size != 1 else "1 byte"
    return (
        f"the journal ends in {size} that are no whole record, as after a crash; they are kept in"
        " `events.jsonl.torn`"
    )


class JournalReading:
    """The records of an open journal, in memory that does not grow with it.

    `torn` is known once all records were read. Closes the file that it is given.
    """

    def __init__(self, file: BinaryIO, name: str, longest: int = LONGEST) -> None:
        self._longest = longest
        self.torn: Torn | None = None
        self._file = file
        self._name = name
        self._line = 0
        self._offset = 0
        self._seq = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[JsonObject]:
        """Each record without its checksum.

        Raises:
            JournalError: something is not as it was written, or a newer aish wrote it.
        """
        while line := self._file.readline(self._longest):
            self._line += 1
            if not line.endswith(b"\n"):
                self._end(line)
                return
            body = opened(line[:-1])
            if body is None:
                if not is_unwritten(line) or not self._rest_is_empty(line):
                    raise self._damage(line[:-1])
                return
            yield self._record(body)
            self._offset += len(line)

    @property
    def where(self) -> str:
        """File and line of the record that was read last."""
        return f"{self._name}:{self._line}"

    def _record(self, body: bytes) -> JsonObject:
        try:
            record: Any = _whole(body.decode())
        except (ValueError, RecursionError) as error:
            raise self._error("is no record", "it was not written by aish") from error
        version, seq = record.get("v"), record.get("seq")
        if version != VERSION:
            raise self._newer(version)
        if type(seq) is not int or seq <= self._seq:
            raise self._error(f"has the number {seq} after {self._seq}", _COPY)
        self._seq = seq
        return record  # type: ignore[no-any-return]  # a mapping: it ended in `}` and had a key

    def _end(self, line: bytes) -> None:
        if len(line) == self._longest:
            raise self._error(f"is longer than {self._longest} bytes", _COPY)
        self.torn = Torn(self._line, self._offset, len(line))

    def _rest_is_empty(self, line: bytes) -> bool:
        """Whether nothing but NUL bytes comes after a line that was not written whole."""
        size = len(line)
        while block := self._file.read(_BUFFER):
            if block.strip(b"\0\n"):
                return False
            size += len(block)
        self.torn = Torn(self._line, self._offset, size)
        return True

    def _damage(self, line: bytes) -> JournalError:
        """What has become of a line that is not as it was written."""
        if b"\0" in line:
            said = "has NUL bytes in it, and records stand after it"
            return self._error(said, _COPY)
        if line.endswith(b"\r") and opened(line[:-1]) is not None:
            back = "turn them back, for example with `dos2unix`"
            return self._error("ends in CRLF: the line ends were converted", back)
        try:
            version = json.loads(line)["v"]
        except (ValueError, RecursionError, KeyError, TypeError):
            version = VERSION
        if type(version) is int and version > VERSION:
            return self._newer(version)
        if b',"crc":"' not in line:
            return self._error("has no checksum: it is no record of a journal", _COPY)
        return self._error("is damaged: its checksum does not fit", _COPY)

    def _newer(self, version: object) -> JournalError:
        said = f"was written by another version of aish: `v` is {str(version)[:20]}, not {VERSION}"
        return self._error(said, "use that version, or a newer one")

    def _error(self, what: str, hint: str) -> JournalError:
        said = f"this line (at byte {self._offset}) {what}"
        return JournalError(said, where=self.where, hint=hint)


def _whole(text: str) -> Any:
    # As `json.loads`, which looks for blanks around it twice: a tenth of the time.
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(text[end:])
    return value


_DECODER = json.JSONDecoder()
_COPY = "nothing was skipped or changed; put back a copy of the file, or run anew"


def read_journal(path: Path) -> JournalReading:
    """The records of a journal; use it in a `with`.

    Raises:
        UsageError: what stands there is no plain file of our own.
        OSError: it cannot be opened.
    """
    return JournalReading(os.fdopen(open_own(path), "rb", buffering=_BUFFER), str(path))
