"""An append-only file that loses no acknowledged record: used by the journal.

One `os.write` per record, so that a killed process leaves whole records; `fdatasync` for those that
must survive a crash of the machine. If these are rare, each is synced before `append` returns. If
they are frequent, a thread syncs all pending records every `WINDOW` seconds, so that neither the
disk nor the event loop waits for each one.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Literal

from aish.core.frozen import frozen
from aish.system.platform.syncs import data_sync

WINDOW = 0.005
"""Seconds between two syncs: faster than 200 a second they are grouped."""

SHARE = 10
"""How many times as long as the last sync took has to pass before the caller waits for one."""

Need = Literal["written", "soon", "now"]


@frozen
class Disk:
    """Disk operations, replaceable so that a test can fail or crash at each one."""

    write: Callable[[int, bytes], int] = os.write
    sync: Callable[[int], None] = data_sync()


THE_DISK = Disk()


class DurableFile:
    """Appends to an open descriptor, which it owns.

    It is closed after an error: the state of a file after a failed sync is undefined.
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
            OSError: the record could not be written, not even partly; or an earlier one could not
                be synced. The file is closed then.
        """
        try:
            self._check()
            write_whole(self._descriptor, record, self._disk.write)
            # Not earlier: the thread may be about to sync, and undoes this first.
            self._unsynced = True
            if need != "written":
                self._meet(need)
        except OSError:
            # Save what can be saved of earlier records, and close
            try:
                self._stop()
                self._to_disk()
            except OSError:
                # The first error is the one reported.
                pass
            finally:
                os.close(self._descriptor)
            raise

    def close(self) -> None:
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
        else:
            self._sync_soon()

    def _may_wait(self) -> bool:
        """Return true if the last sync is long enough ago that waiting for one costs little."""
        return not self._owed and self._monotonic() >= self._wait_until

    def _sync(self) -> None:
        # Records written during the sync are left for the next one.
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
                # The thread is woken once for all records until it syncs.
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


def write_whole(
    descriptor: int, data: bytes, write: Callable[[int, bytes], int] = os.write
) -> None:
    """Append all of the data to a file, or nothing.

    Raises:
        OSError: it has no room for all of it; says which limit was reached.
    """
    written = write(descriptor, data)
    if written == len(data):
        return
    # A full disk accepts a part; half a record would damage the next one too.
    size = os.fstat(descriptor).st_size - written
    try:
        # Only the next write says why: a full disk, a quota, a limit on the size of files.
        written += write(descriptor, data[written:])
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    if written < len(data):
        os.ftruncate(descriptor, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
