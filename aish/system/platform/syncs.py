"""Syncs: what has to be on the disk before anything else happens."""

import fcntl
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aish.system.platform.forms import is_portable


def data_sync() -> Callable[[int], None]:
    """The function that has the disk keep the data of a file; it raises an `OSError`."""
    if sys.platform == "linux" and not is_portable():
        return os.fdatasync
    return _sync_whole


def _sync_whole(descriptor: int) -> None:
    if sys.platform == "darwin":
        # `fsync` of a Mac leaves the data in the memory of the disk.
        with suppress(OSError, AttributeError):  # a file system that cannot do it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_file_system(folder: Path) -> None:
    """Have the disk keep all that was written in the file system of a folder.

    Raises:
        OSError: the disk does not take it.
    """
    # Imported here: only fetched servers need it.
    import ctypes

    if is_portable():
        os.sync()
        return
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if library.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)
