"""The file of staged calls, written while a run goes on: JSON after every call (B16, X9).

A call is a line. Each is written over the end of the list, with a new end, in one write that is
synced before the model hears of it. What a killed process may leave is mended when the run goes on.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from aish.config.documents import parse_json
from aish.core.errors import UsageError
from aish.core.json_text import json_text
from aish.run.staging.call import StagedCall, StagedHead, head_row, row_of
from aish.run.staging.reading import (
    LIMIT,
    VERSION,
    VERSION_KEY,
    StagedError,
    checked_call,
    read_staged,
)
from aish.system.file_lock import take
from aish.system.files import atomic_write, open_update, read_capped

_END = b"\n]}\n"


class StagedFile:
    """An open file of staged calls, of this process alone."""

    def __init__(self, path: Path, head: StagedHead, calls: tuple[StagedCall, ...]) -> None:
        self._path = path
        self._head = head
        self._calls = list(calls)
        self._descriptor = -1
        self._write_all()

    @property
    def calls(self) -> tuple[StagedCall, ...]:
        """The calls that are in it."""
        return tuple(self._calls)

    def add(self, call: StagedCall) -> None:
        """Put a call down; it is on the disk on return.

        Raises:
            OSError: it is not, and the file is as it was.
        """
        line = (b",\n" if self._calls else b"\n") + _line(call)
        data = line + _END
        written = os.pwrite(self._descriptor, data, self._offset)
        if written < len(data):
            os.ftruncate(self._descriptor, self._offset)
            os.pwrite(self._descriptor, _END, self._offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(self._descriptor)
        self._offset += len(line)
        self._calls.append(call)

    def forget(self, gone: frozenset[str]) -> None:
        """Take out the calls with these digests."""
        self._calls = [call for call in self._calls if call.digest not in gone]
        self._write_all()

    def close(self) -> None:
        """Close it; it was whole all the time."""
        os.close(self._descriptor)

    def _write_all(self) -> None:
        text = b",\n".join(map(_line, self._calls))
        head = _head_line(self._head)
        atomic_write(self._path, head + (b"\n" + text if text else b"") + _END)
        descriptor = open_update(self._path)
        try:
            take(descriptor, self._path)
        except UsageError:
            os.close(descriptor)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._offset = len(head) + (1 + len(text) if text else 0)


def open_staged(path: Path, head: StagedHead) -> StagedFile:
    """The file for a run's staged calls; one of the same run goes on.

    Raises:
        UsageError: calls of another run are in it, or it cannot be written.
    """
    try:
        calls = tuple(_earlier(path, head))
        return StagedFile(path, head, calls)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _earlier(path: Path, head: StagedHead) -> Iterator[StagedCall]:
    if not path.exists():
        return
    _refuse_while_written(path)
    try:
        staged = read_staged(path)
    except StagedError:
        yield from _mended(path, head)
        return
    if staged.head.run == head.run:
        yield from staged.calls
    elif staged.calls:
        raise UsageError(
            f"the staged calls of the run `{staged.head.run}` are in it",
            where=str(path),
            hint="apply them and move the file away, or name another one",
        )


def _refuse_while_written(path: Path) -> None:
    descriptor = open_update(path)
    try:
        take(descriptor, path)
    finally:
        os.close(descriptor)


def _mended(path: Path, head: StagedHead) -> Iterator[StagedCall]:
    """The whole calls of a file of this run whose last one was cut off."""
    first, *lines = read_capped(path, LIMIT).splitlines()
    if first + b"\n" != _head_line(head) + b"\n":
        raise StagedError("there is a file, and it is none of this run", where=str(path))
    for line in lines:
        try:
            row = parse_json(line.removesuffix(b",").decode())
            call = checked_call(row, head, "a call")
        except (ValueError, StagedError):
            return
        yield call


def _head_line(head: StagedHead) -> bytes:
    opened = json_text({VERSION_KEY: VERSION, **head_row(head), "calls": []})
    return opened.removesuffix("]}").encode()


def _line(call: StagedCall) -> bytes:
    return json_text(row_of(call)).encode()
