"""A process that writes a real journal and dies in it, at a named place.

    python journal_process.py FOLDER FAILPOINT AT [COUNT]

Writes COUNT records; after each it says its number on stdout: the record is acknowledged. At the
AT-th write (or sync) the process kills itself with SIGKILL, before it, in the middle of it or after
it. `nowhere`: it does not die. This is the only way to a failpoint: the program itself has none.
"""

import errno
import os
import signal
import sys
from pathlib import Path

from scripted_events import START, run_started, step_finished

from aish.core.events import Event, Place, Stamped, StepStarted
from aish.journal.writer import open_journal
from aish.system.durable import Disk

WRITES = ("before-write", "half-written", "after-write")
SYNCS = ("before-sync", "after-sync")
FAILPOINTS = (*WRITES, *SYNCS, "torn-write-then-full")


class Deadly:
    """A disk that dies at one touch."""

    def __init__(self, failpoint: str, at: int) -> None:
        self._failpoint = failpoint
        self._at = at
        self._writes = 0
        self._syncs = 0
        self._is_full = False

    def write(self, descriptor: int, data: bytes) -> int:
        if self._is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._writes += 1
        now = self._writes == self._at
        self._die(here="before-write", now=now)
        if now and self._failpoint in {"half-written", "torn-write-then-full"}:
            written = os.write(descriptor, data[: len(data) // 2])
            self._die(here="half-written", now=now)
            # What follows is another try, and the journal taking the half back.
            self._is_full = True
            return written
        written = os.write(descriptor, data)
        self._die(here="after-write", now=now)
        return written

    def sync(self, descriptor: int) -> None:
        self._syncs += 1
        now = self._syncs == self._at
        self._die(here="before-sync", now=now)
        os.fdatasync(descriptor)
        self._die(here="after-sync", now=now)

    def _die(self, *, here: str, now: bool) -> None:
        if now and self._failpoint == here:
            os.kill(os.getpid(), signal.SIGKILL)


def event(number: int) -> Event:
    """What the record of this number says."""
    if number == 1:
        return run_started()
    step = f"s{number // 2}"
    return step_finished(step, text="x" * number) if number % 2 else StepStarted(Place(step), "run")


def main() -> None:
    folder, failpoint, at, *count = sys.argv[1:]
    deadly = Deadly(failpoint, int(at))
    journal = open_journal(Path(folder), Disk(deadly.write, deadly.sync))
    for number in range(1, int(count[0]) + 1 if count else 40):
        journal(Stamped(number, START + number, event(number)))
        os.write(1, b"%d\n" % number)
    journal.close()


if __name__ == "__main__":
    main()
