"""Lock for a single writer per file, released by the system when its process ends."""

import fcntl
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aish.core.errors import UsageError
from aish.system.files import open_append

# Readers hold the lock for a moment: `is_written`.
_MOMENT = 0.1
PATIENCE = 30.0
"""Time for those that hold a lock only while they write a small file: a disk may be busy."""
_PAUSE = 0.005
# What a moment of theirs takes if they are not given a processor.
_READERS = 10
_OWNER = 5


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
                raise BeingWrittenError(path, writer_pid(descriptor)) from error
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
    return _process_name(writer_pid(descriptor))


def _process_name(pid: int | None) -> str:
    return "another process" if pid is None else f"process {pid}"


def writer_pid(descriptor: int) -> int | None:
    status = os.fstat(descriptor)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # Processes come and go, and those of other users are not readable.
            with suppress(OSError):
                for owner in _owners(entry, status):
                    return int(owner)
    return None


def _owners(process: Path, status: os.stat_result) -> Iterator[str]:
    """The processes that hold the lock, among those with an open descriptor of the file."""
    for opened in (process / "fd").iterdir():
        with suppress(OSError):
            if not os.path.samestat(opened.stat(), status):
                continue
            text = (process / "fdinfo" / opened.name).read_text(encoding="ascii")
            for line in text.splitlines():
                words = line.split()
                if words[:1] == ["lock:"] and "FLOCK" in words and "WRITE" in words:
                    yield words[_OWNER]
