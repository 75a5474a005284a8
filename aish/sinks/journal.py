"""The journal of a run: `events.jsonl` in its folder (B2).

One `os.write` a record, so that a killed program leaves whole records. Deltas are not journaled:
`turn.finished` has the whole text.
"""

import errno
import os
from pathlib import Path

from aish.sinks.lines import to_line
from aish.system.files import open_append
from aish.vocab.events import Stamped


class Journal:
    """Appends to an open descriptor, which it owns."""

    name = "the journal"
    deltas = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, stamped: Stamped) -> None:
        """Append the event's record."""
        record = to_line(stamped)
        written = os.write(self._descriptor, record)
        if written < len(record):
            # A full disk writes a part; half a record would spoil the next one too.
            size = os.fstat(self._descriptor).st_size
            os.ftruncate(self._descriptor, size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def open_journal(folder: Path) -> Journal:
    """The journal of the run in `folder`.

    Raises:
        UsageError: what stands there is no plain file of our own.
        OSError: it cannot be opened.
    """
    return Journal(open_append(folder / "events.jsonl"))
