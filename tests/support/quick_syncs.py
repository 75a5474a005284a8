"""Syncs that do not wait for the disk: a killed process loses nothing of what it has written.

Each takes milliseconds in which a test does nothing, and most runs make four. Those that are
counted as steps (`kill_points.py`) wait, those of what is no file fail as they do, and
`AISH_TEST_ALL=1` lets all of them wait.
"""

import os
import stat
import sys
from collections.abc import Callable

Sync = Callable[[int], None]


def install() -> None:
    """Replace those of `os`, before anything takes them from there."""
    os.fsync, os.fdatasync = _quick(os.fsync), _quick(os.fdatasync)  # type: ignore[assignment]  # descriptors are numbers here


def _quick(real: Sync) -> Sync:
    def sync(descriptor: int, /) -> None:
        kind = os.fstat(descriptor).st_mode
        if sys.getprofile() is not None or not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            real(descriptor)

    return sync
