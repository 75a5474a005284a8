"""The journal of a run: `events.jsonl` in its folder (B2).

Every event but the deltas, which `turn.finished` has whole; each is written before any other sink
sees it. What says that something is over is synced too, so that it outlives the machine.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from aish.core.errors import UsageError
from aish.core.events import Event, RunFinished, Stamped, StepFinished, ToolFinished
from aish.sinks.journal_record import sealed
from aish.sinks.lines import to_line
from aish.system.durable import THE_DISK, Disk, DurableFile, Need
from aish.system.file_lock import take
from aish.system.files import open_append

# What is begun, and what is decided, is written only: after a crash of the machine it may be
# missing, and then nothing that it announces has a result either.
SYNCED: Mapping[type[Event], Need] = {
    ToolFinished: "soon",
    StepFinished: "soon",
    RunFinished: "now",
}


class Journal:
    """Appends each event to an open file, which it owns."""

    name = "the journal"
    deltas = False

    def __init__(self, file: DurableFile) -> None:
        self._file = file

    def __call__(self, stamped: Stamped) -> None:
        """Append the event's record."""
        self._file.append(sealed(to_line(stamped)), SYNCED.get(type(stamped.event), "written"))

    def close(self) -> None:
        """Sync and close the file."""
        self._file.close()


def open_journal(folder: Path, disk: Disk = THE_DISK) -> Journal:
    """The journal of the run in `folder`, for this process alone; a torn tail is cut off.

    Raises:
        UsageError: another process writes it; or what stands there is no plain file of our own.
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
    return Journal(DurableFile(descriptor, disk))


class HeldJournal:
    """The journal of a run that may be gone on with: nobody else writes it from now on.

    It is read first, and nothing is changed by that: what is found may be a reason to leave it.
    Closed by leaving it, unless it was handed on.
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
        """The journal, to be appended to; a torn tail is cut off."""
        assert self._descriptor is not None, "it is handed on once"
        _prepare(self._descriptor, self.path)
        journal = Journal(DurableFile(self._descriptor, disk))
        self._descriptor = None
        return journal


def hold_journal(folder: Path) -> HeldJournal:
    """The journal of the run in `folder`, locked before anybody reads it.

    Raises:
        UsageError: another process writes it, there is none, or it is no plain file of our own.
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
        from aish.sinks.journal_tail import cut_torn_tail

        cut_torn_tail(path)
    else:
        _sync_names(path.parent)


def _sync_names(folder: Path) -> None:
    """A record that outlives the machine is worth little in a file whose name does not."""
    for place in (folder, folder.parent):
        # Not every file system can, and not every folder may be read.
        with suppress(OSError), ExitStack() as stack:
            held = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, held)
            os.fsync(held)
