"""Lock for a single writer per file, released by the system when its process ends."""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from aish.core.errors import UsageError
from aish.system.files import open_append
from aish.system.platform.locks import lock_holder

# Readers hold the lock for a moment: `is_written`.
_MOMENT = 0.1
PATIENCE = 30.0
"""Time for those that hold a lock only while they write a small file: a disk may be busy."""
_PAUSE = 0.005
# What a moment of theirs takes if they are not given a processor.
_READERS = 10


class BeingWrittenError(UsageError):
    """Another process writes a file that only one may write; `writer` says which.

    `pid` is its number, if the system reports it.
    """

    def __init__(self, path: Path, pid: int | None) -> None:
        self.writer = _process_name(pid)
        self.pid = pid
        super().__init__(f"`{path}` is being written by {self.writer}")


def take(
    descriptor: int,
    path: Path,
    seconds: float = _MOMENT,
    pause: Callable[[float], object] | None = None,
) -> None:
    """Become the only writer of an open file until its descriptor is closed or the process ends.

    Another writer is waited for `seconds`, and readers 10 s, in pauses that `pause` makes.

    Raises:
        BeingWrittenError: another process writes it, and which one.
        UsageError: the file system has no locks.
    """
    tries, most = round(seconds / _PAUSE), round(_READERS / _PAUSE)
    for number in range(1, max(tries, most) + 1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if number >= tries and (number >= most or is_written(descriptor)):
                raise BeingWrittenError(path, lock_holder(descriptor)) from error
            (pause or time.sleep)(_PAUSE)
        except OSError as error:
            message = f"`{path}` cannot be locked: {error.strerror}"
            raise UsageError(message, hint="use a folder on another file system") from error
        else:
            return


@contextmanager
def hold_lock(
    path: Path, seconds: float = _MOMENT, pause: Callable[[float], object] | None = None
) -> Generator[None]:
    """Be the only process in such a block; `path` is its lock file, made if it is missing.

    Raises:
        BeingWrittenError: another process is in one for longer than `seconds`.
        UsageError: the path is not a regular file owned by the user, or cannot be locked.
    """
    descriptor = open_append(path)
    try:
        take(descriptor, path, seconds, pause)
        yield
    finally:
        os.close(descriptor)


def is_written(descriptor: int) -> bool:
    """Return true if another process holds the lock of an open file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def writer(descriptor: int) -> str:
    """The lock holder for a message: `process 4711`, if the system reports it."""
    return _process_name(lock_holder(descriptor))


def _process_name(pid: int | None) -> str:
    return "another process" if pid is None else f"process {pid}"
