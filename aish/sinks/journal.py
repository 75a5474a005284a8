"""The journal of a run: `events.jsonl` in its folder (B2).

Every event but the deltas, which `turn.finished` has whole; each is written before any other sink
sees it. What says that something is over is synced too, so that it outlives the machine.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from aish.errors import UsageError
from aish.sinks.journal_record import sealed
from aish.sinks.lines import to_line
from aish.system.durable import THE_DISK, Disk, DurableFile, Need
from aish.system.files import open_append
from aish.system.one_writer import take
from aish.vocab.events import Event, RunFinished, Stamped, StepFinished, ToolFinished

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


def _prepare(descriptor: int, path: Path) -> None:
    status = os.fstat(descriptor)
    if not status.st_nlink:
        raise UsageError(f"`{path}` has just been deleted")
    if status.st_size:
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
