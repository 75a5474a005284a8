"""Bytes that are needed only later, in a file without a name instead of in memory."""

import os
import tempfile
from contextlib import suppress
from typing import BinaryIO, TypeAlias

Spooled: TypeAlias = tuple[int, int] | bytes
"""Offset and length in the file; the bytes themselves where the disk is full."""


class Spool:
    """A file that disappears with the process. It is emptied whenever nothing in it is needed."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._end = 0
        self._needed = 0

    def put(self, data: bytes) -> Spooled:
        """Write down; what is returned is to be given to `free` once."""
        offset, rest = self._end, memoryview(data)
        try:
            if self._file is None:
                # Closed by `close`, or with the process.
                self._file = tempfile.TemporaryFile(buffering=0)  # ruff: ignore[open-file-with-context-handler] - it stays open
            fd = self._file.fileno()
            while rest:
                rest = rest[os.pwrite(fd, rest, offset + len(data) - len(rest)) :]
        except OSError:
            return data
        self._end += len(data)
        self._needed += 1
        return offset, len(data)

    def read(self, spooled: Spooled) -> bytes:
        if isinstance(spooled, bytes):
            return spooled
        assert self._file is not None, "something was written"
        offset, length = spooled
        data = bytearray()
        while len(data) < length:
            part = os.pread(self._file.fileno(), length - len(data), offset + len(data))
            if not part:
                raise OSError("a temporary file was cut off")
            data += part
        return bytes(data)

    def free(self, spooled: Spooled) -> None:
        """Note that this is not needed any more."""
        if isinstance(spooled, bytes):
            return
        self._needed -= 1
        if not self._needed and self._file is not None:
            self._end = 0
            with suppress(OSError):
                self._file.truncate(0)

    def take(self, spooled: Spooled) -> bytes:
        """Read once, and free."""
        data = self.read(spooled)
        self.free(spooled)
        return data

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
