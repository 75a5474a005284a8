"""The journal of a run: `events.jsonl` in its folder.

Contains every event but the deltas, whose text is in `turn.finished`; each is written before any
other sink sees it. Events that end something are synced too, so that they survive a crash of the
machine.

A record of the journal: a line of the event stream with a checksum as its last key.

`crc` is the CRC-32 (as of zlib, PNG, gzip) of the line without it: of the UTF-8 bytes from the
first `{` to the last `}`, with `,"crc":"xxxxxxxx"` removed and without the line end. Eight
lower-case hexadecimal digits, so that it is at the same place in every line.

A record about an approval has `mac` before that. A command may be able to write the journal: only
with the key in the user's state folder, which no sandbox shows, it could record a yes.

The torn tail of a journal, cut off before anything is appended to it.

Appending after a torn record would lose the next record too. The part cut off is kept in a file
next to it.
"""

import hmac
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Self
from zlib import crc32

from aish.core.errors import UsageError
from aish.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BatchPlanned,
    BatchSubmitted,
    Event,
    RunFinished,
    Stamped,
    StepFinished,
    ToolFinished,
    to_line,
)
from aish.core.json import JsonObject, canonical
from aish.system.durable import THE_DISK, Disk, DurableFile, Need
from aish.system.file_lock import take
from aish.system.files import open_append, open_own, secret_path, state_folder

_SEAL = b',"crc":"%08x"}'
_LENGTH = len(_SEAL % 0)
LINE_SEAL = _SEAL + b"\n"
"""The end of every line, with the checksum of what is before it and a brace."""
LINE_SEAL_LENGTH = _LENGTH + 1
_SIGNED = (ApprovalAsked, ApprovalAnswered)
_KEY_FILE = "approvals.key"


class JournalError(UsageError):
    """A journal that cannot be read; `where` is file and line."""

    code = "journal"


def seal(line: bytes) -> bytes:
    """A line of the event stream, line end included, with its checksum."""
    return line[:-2] + LINE_SEAL % crc32(line[:-1])


def user_key() -> bytes:
    """The key of this user for records about approvals; it is made if it is missing.

    Raises:
        UsageError: it is not private.
        OSError: it cannot be made.
    """
    return _key_in(state_folder())


@lru_cache
def _key_in(folder: Path) -> bytes:
    from aish.net.listen.tokens import ensure_token

    return ensure_token("approvals", secret_path(folder, _KEY_FILE), ()).value.encode()


def _mac_of(record: JsonObject, run: str) -> bytes:
    signed = canonical([run, {key: value for key, value in record.items() if key != "mac"}])
    return hmac.digest(user_key(), signed.encode("ascii"), "sha256").hex().encode()


def is_signed(record: JsonObject, run: str) -> bool:
    """True if a process of this user and machine has written this record for the run."""
    try:
        return hmac.compare_digest(str(record.get("mac")).encode(), _mac_of(record, run))
    except (OSError, UsageError, ValueError):
        return False


def is_unwritten(line: bytes) -> bool:
    """True if a part of a line never reached the disk: it has NUL bytes, and no record after.

    A record has none: JSON escapes them.
    """
    return b"\0" in line and open_record(line.rpartition(b"\0")[2].rstrip(b"\n")) is None


def open_record(record: bytes) -> bytes | None:
    """The line in a record (without its end), or `None` where the checksum is not right."""
    body = record[:-_LENGTH] + b"}"
    is_whole = len(record) > _LENGTH and record[-_LENGTH:] == _SEAL % crc32(body)
    return body if is_whole else None


# Starts and decisions are written without sync: after a crash of the machine they may be missing,
# and then their results are missing too.
SYNCED: Mapping[type[Event], Need] = {
    ApprovalAsked: "soon",
    ApprovalAnswered: "now",
    BatchPlanned: "now",
    BatchSubmitted: "now",
    ToolFinished: "soon",
    StepFinished: "soon",
    RunFinished: "now",
}


class Journal:
    """Appends each event to an open file, which it owns."""

    name = "the journal"
    deltas = False

    def __init__(self, file: DurableFile, run: str) -> None:
        self._file = file
        self._run = run

    def __call__(self, stamped: Stamped) -> None:
        line, event = to_line(stamped), stamped.event
        if isinstance(event, _SIGNED):
            # Without a key the answer counts in this process only: a resumed run asks again.
            with suppress(OSError, UsageError):
                line = b'%b,"mac":"%b"}\n' % (line[:-2], _mac_of(json.loads(line), self._run))
        self._file.append(seal(line), SYNCED.get(type(event), "written"))

    def close(self) -> None:
        self._file.close()


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
    return Journal(DurableFile(descriptor, disk, before_first_sync=names), path.parent.name)


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
    return open_record(_read(descriptor, begin, end).rstrip(b"\n"))


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
