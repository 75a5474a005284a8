"""A file that is appended to so that nothing acknowledged is lost: the journal's ground (B2).

One `os.write` a record, so that a killed process leaves whole records; `fdatasync` for those that
have to outlive the machine. Where these come slowly each is synced before `append` returns. Where
they come faster than the disk should be asked for, a thread syncs all that have gathered, every
`WINDOW` seconds, so that neither the disk nor the event loop is held up by each one.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Literal

from aish.core.frozen import frozen

WINDOW = 0.005
"""Seconds between two syncs: faster than 200 a second they are grouped."""

SHARE = 10
"""How many times as long as the last sync took has to pass before the caller waits for one."""

Need = Literal["written", "soon", "now"]


@frozen
class Disk:
    """What touches the disk, so that a test can fail or die at each touch."""

    write: Callable[[int, bytes], int] = os.write
    sync: Callable[[int], None] = os.fdatasync


THE_DISK = Disk()


class DurableFile:
    """Appends to an open descriptor, which it owns.

    After an error it is closed: what a file system makes of a failed sync is not to be trusted.
    """

    def __init__(
        self,
        descriptor: int,
        disk: Disk = THE_DISK,
        monotonic: Callable[[], float] = time.monotonic,
        before_first_sync: Callable[[], None] | None = None,
    ) -> None:
        self._before_first_sync = before_first_sync
        self._descriptor = descriptor
        self._disk = disk
        self._monotonic = monotonic
        self._wait_until = float("-inf")
        self._unsynced = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._owed = False
        self._closing = False
        self._trouble: OSError | None = None

    def append(self, record: bytes, need: Need = "written") -> None:
        """Write a record; `now`: it is synced on return, `soon`: within a moment after it.

        Raises:
            OSError: it could not be written, and nothing of it was; or an earlier one could not
                be synced. The file is closed then.
        """
        try:
            self._check()
            self._write(record)
            self._meet(need)
        except OSError:
            self._give_up()
            raise

    def close(self) -> None:
        """Sync what is not synced yet, and close."""
        try:
            self._stop()
            self._check()
            if self._unsynced:
                self._to_disk()
        finally:
            os.close(self._descriptor)

    def _meet(self, need: Need) -> None:
        if need == "now" or (need == "soon" and self._may_wait()):
            self._sync()
        elif need == "soon":
            self._sync_soon()

    def _write(self, record: bytes) -> None:
        written = self._disk.write(self._descriptor, record)
        if written < len(record):
            # A full disk takes a part; half a record would spoil the next one too.
            size = os.fstat(self._descriptor).st_size
            os.ftruncate(self._descriptor, size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # Not before: the thread may be about to sync, and takes this back first.
        self._unsynced = True

    def _may_wait(self) -> bool:
        """Whether the disk was left alone long enough that waiting for it costs little."""
        return not self._owed and self._monotonic() >= self._wait_until

    def _sync(self) -> None:
        # What is written while the disk syncs is for the next one.
        self._unsynced = False
        begun = self._monotonic()
        self._to_disk()
        ended = self._monotonic()
        self._wait_until = ended + max(WINDOW, SHARE * (ended - begun))

    def _to_disk(self) -> None:
        before, self._before_first_sync = self._before_first_sync, None
        if before is not None:
            before()
        self._disk.sync(self._descriptor)

    def _sync_soon(self) -> None:
        with self._changed:
            if not self._owed:
                # The thread is woken once for all that gather until it syncs.
                self._owed = True
                self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="aish-sync", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._owed or self._closing)
                # Closing syncs what is left itself.
                if self._closing or self._changed.wait_for(lambda: self._closing, WINDOW):
                    return
                self._owed = False
            try:
                self._sync()
            except OSError as error:
                self._trouble = error
                return

    def _check(self) -> None:
        if self._trouble is not None:
            raise self._trouble

    def _stop(self) -> None:
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._thread = None
        self._unsynced = self._unsynced or self._owed

    def _give_up(self) -> None:
        """Keep what can be kept of what was written before, and let go."""
        try:
            self._stop()
            self._to_disk()
        except OSError:
            # The first error is the one that is told.
            pass
        finally:
            os.close(self._descriptor)
