"""The journal of a run: `events.jsonl` in its folder (B2).

Contains every event but the deltas, whose text is in `turn.finished`; each is written before any
other sink sees it. Events that end something are synced too, so that they survive a crash of the
machine.

A record of the journal: a line of the event stream with a checksum as its last key (B2).

`crc` is the CRC-32 (as of zlib, PNG, gzip) of the line without it: of the UTF-8 bytes from the
first `{` to the last `}`, with `,"crc":"xxxxxxxx"` removed and without the line end. Eight
lower-case hexadecimal digits, so that it is at the same place in every line.

The torn tail of a journal, cut off before anything is appended to it (B2).

Appending after a torn record would lose the next record too. The part cut off is kept in a file
next to it.
"""

import errno
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Self
from zlib import crc32

from aish.core.errors import UsageError
from aish.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    RunFinished,
    Stamped,
    StepFinished,
    ToolFinished,
    to_line,
)
from aish.core.patterns import lazy_pattern
from aish.journal.questions import ends_questions
from aish.system.durable import THE_DISK, Disk, DurableFile, Need
from aish.system.file_lock import take
from aish.system.files import open_append, open_own, write_private

_SEAL = lazy_pattern(rb',"crc":"([0-9a-f]{8})"\}\Z')
_LENGTH = len(b',"crc":"00000000"}')


ALTERED = "events.jsonl.altered"
"""Stands beside a journal in which somebody else wrote about approvals."""
_ALTERED = "its records of approvals were changed by another process while the run went on"
_OF_APPROVALS = b'"type":"approval.'


class JournalError(UsageError):
    """A journal that cannot be read; `where` is file and line."""

    code = "journal"


def sealed(line: bytes) -> bytes:
    """A line of the event stream, line end included, with its checksum."""
    body = line[:-1]
    return b'%b,"crc":"%08x"}\n' % (body[:-1], crc32(body))


def is_unwritten(line: bytes) -> bool:
    """Whether a part of a line never reached the disk: there are NUL bytes, and no record after.

    A record has none: JSON escapes them.
    """
    return b"\0" in line and opened(line.rpartition(b"\0")[2].rstrip(b"\n")) is None


def opened(record: bytes) -> bytes | None:
    """The line in a record (without its end), or `None` where the checksum is not right."""
    seal = _SEAL.match(record, len(record) - _LENGTH) if len(record) > _LENGTH else None
    if seal is None:
        return None
    body = record[:-_LENGTH] + b"}"
    return body if crc32(body) == int(seal[1], 16) else None


# Starts and decisions are written without sync: after a crash of the machine they may be missing,
# and then their results are missing too.
SYNCED: Mapping[type[Event], Need] = {
    ApprovalAsked: "soon",
    ApprovalAnswered: "now",
    ToolFinished: "soon",
    StepFinished: "soon",
    RunFinished: "now",
}


class Journal:
    """Appends each event to an open file, which it owns.

    A command that Landlock alone confines may write the file too. So the records about approvals in
    it are compared at the end with those that were written, where the run may be resumed (T38).
    """

    name = "the journal"
    deltas = False

    def __init__(self, file: DurableFile, path: Path, approvals: list[bytes]) -> None:
        self._file = file
        self._path = path
        self._approvals = approvals
        self._may_be_resumed = False

    def __call__(self, stamped: Stamped) -> None:
        """Append the event's record."""
        record, event = sealed(to_line(stamped)), stamped.event
        self._file.append(record, SYNCED.get(type(event), "written"))
        if _OF_APPROVALS in record:
            self._approvals.append(record)
        if isinstance(event, RunFinished):
            self._may_be_resumed = not ends_questions(event)

    def close(self) -> None:
        """Sync and close the file.

        Raises:
            OSError: it cannot be, or somebody else wrote about approvals: the run is not resumed.
        """
        self._file.close()
        if self._may_be_resumed and _approvals_in(self._path) != self._approvals:
            with suppress(FileExistsError):
                write_private(self._path.with_name(ALTERED), b"")
            raise OSError(errno.ESTALE, _ALTERED)


def _approvals_in(path: Path) -> list[bytes]:
    with os.fdopen(open_own(path), "rb") as file:
        return [record for record in file if _OF_APPROVALS in record]


def open_journal(folder: Path, disk: Disk = THE_DISK) -> Journal:
    """The journal of the run in `folder`, for this process alone; a torn tail is cut off.

    Raises:
        UsageError: another process writes it; or not a regular file owned by the user.
        OSError: it cannot be opened.
    """
    path = folder / "events.jsonl"
    descriptor = open_append(path)
    try:
        take(descriptor, path)
        _prepare(descriptor, path)
    except (OSError, UsageError):
        os.close(descriptor)
        raise
    return _journal(path, descriptor, disk)


class HeldJournal:
    """The journal of a run that may be resumed: locked against other writers.

    It is read first, without being changed: what is found may prevent resuming. Closed on exit,
    unless it was handed over.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def go_on(self, disk: Disk = THE_DISK) -> Journal:
        """The journal for appending; a torn tail is cut off."""
        assert self._descriptor is not None, "it is handed on once"
        _prepare(self._descriptor, self.path)
        journal = _journal(self.path, self._descriptor, disk)
        self._descriptor = None
        return journal

    def append(self, stamped: Stamped, disk: Disk = THE_DISK) -> None:
        """Append one record, synced; the journal remains locked.

        Raises:
            OSError: it could not be written and synced; nothing of it is left in the journal.
        """
        assert self._descriptor is not None, "it was handed on"
        _prepare(self._descriptor, self.path)
        size = os.fstat(self._descriptor).st_size
        # A duplicate shares the lock: closing it does not release that.
        journal = _journal(self.path, os.dup(self._descriptor), disk)
        try:
            journal(stamped)
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise
        journal.close()


def hold_journal(folder: Path) -> HeldJournal:
    """The journal of the run in `folder`, locked before it is read.

    Raises:
        UsageError: another process writes it, or there is no regular file owned by the user.
        OSError: it cannot be opened.
    """
    path = folder / "events.jsonl"
    if not path.is_symlink() and not path.exists():
        raise UsageError("the run has no journal", where=str(folder))
    if path.with_name(ALTERED).exists():
        raise UsageError(f"the run is not resumed: {_ALTERED}", where=str(path))
    descriptor = open_append(path)
    try:
        take(descriptor, path)
        _check_linked(descriptor, path)
    except (OSError, UsageError):
        os.close(descriptor)
        raise
    return HeldJournal(path, descriptor)


def _check_linked(descriptor: int, path: Path) -> None:
    if not os.fstat(descriptor).st_nlink:
        raise UsageError(f"`{path}` has just been deleted")


def _prepare(descriptor: int, path: Path) -> None:
    _check_linked(descriptor, path)
    if os.fstat(descriptor).st_size:
        cut_torn_tail(path)


def _journal(path: Path, descriptor: int, disk: Disk) -> Journal:
    # Deferred: syncing two folders takes milliseconds, and an unsynced record needs no name.
    names = partial(_sync_names, path.parent)
    written = DurableFile(descriptor, disk, before_first_sync=names)
    return Journal(written, path, _approvals_in(path) if os.fstat(descriptor).st_size else [])


def _sync_names(folder: Path) -> None:
    """Sync the directories too: a synced record is lost if the file's name is not on disk."""
    for place in (folder, folder.parent):
        # Not supported by every file system, and not every folder is readable.
        with suppress(OSError), ExitStack() as stack:
            held = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, held)
            os.fsync(held)


_BLOCK = 1 << 16


def cut_torn_tail(path: Path) -> int:
    """Move what follows the last whole record of `path` to a file next to it; returns its size.

    That is half a record, NUL bytes if a crash of the machine left blocks unwritten, or both.

    Raises:
        UsageError: one of the two paths is not a regular file.
    """
    reading = open_own(path)
    try:
        size = os.fstat(reading).st_size
        begin = _after_last_record(reading, size)
        if begin == size:
            return 0
        _keep(reading, begin, size, path)
    finally:
        os.close(reading)
    cutting = open_append(path)
    try:
        os.ftruncate(cutting, begin)
        os.fsync(cutting)
    finally:
        os.close(cutting)
    return size - begin


def _after_last_record(descriptor: int, size: int) -> int:
    """Where the last complete line ends."""
    end = _after_last_line_end(descriptor, size)
    while end:
        begin = _after_last_line_end(descriptor, end - 1)
        if not is_unwritten(_read(descriptor, begin, end)):
            break
        end = begin
    return end


def last_record(descriptor: int) -> bytes | None:
    """The line in the last whole record of an open journal; `None` if that is damaged or missing.

    Only the end of the file is read.
    """
    end = _after_last_record(descriptor, os.fstat(descriptor).st_size)
    begin = _after_last_line_end(descriptor, end - 1) if end else 0
    return opened(_read(descriptor, begin, end).rstrip(b"\n"))


def _read(descriptor: int, begin: int, end: int) -> bytes:
    blocks = []
    while begin < end and (block := os.pread(descriptor, end - begin, begin)):
        blocks.append(block)
        begin += len(block)
    return b"".join(blocks)


def _after_last_line_end(descriptor: int, size: int) -> int:
    end = size
    while end:
        begin = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _keep(descriptor: int, begin: int, size: int, path: Path) -> None:
    """Copy the tail, and sync the copy before the tail is cut off."""
    kept = open_append(path.with_name(f"{path.name}.torn"))
    try:
        while begin < size and (block := os.pread(descriptor, min(_BLOCK, size - begin), begin)):
            begin += os.write(kept, block)
        os.write(kept, b"\n")
        os.fsync(kept)
    finally:
        os.close(kept)
