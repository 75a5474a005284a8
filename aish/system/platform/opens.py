"""Opens files and folders below a folder, or as a place only; what a descriptor tells.

Python does not offer `openat2` of Linux, which resolves a path below a folder in the kernel.
"""

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from aish.system.platform.forms import is_portable

PLACE: int = getattr(os, "O_PATH", 0)
"""The flag that opens a file or folder as a place only, whatever its mode; 0 where none is."""
_NUMBER = 437
"""The same on every architecture that Linux gained since 2019, and on all older ones but Alpha."""
_NO_MAGICLINKS = 0x02
_NO_SYMLINKS = 0x04
_BENEATH = 0x08
_CACHED = 0x20
"""Since Linux 5.12: refuse a path that would have to be looked up on a disk."""
NOWAIT: int = getattr(os, "RWFNOWAIT", 0)
"""Zero where Python was built with a C library that does not have it, such as glibc before 2.27."""
_TRIES = 64


def has_openat2() -> bool:
    """Return true if the kernel resolves paths below a folder; portable: never."""
    return not is_portable() and _is_allowed()


@cache
def _is_allowed() -> bool:
    """Old sandboxes answer `EPERM`."""
    try:
        os.close(_call(-100, b".", _how(PLACE | os.O_CLOEXEC, 0)))
    except OSError:
        return False
    return True


def open_confined(folder: int, path: str, flags: int, *, links: bool) -> int:
    """A descriptor of `path`, which never leaves `folder`; `links` allows links within it.

    Raises:
        OSError: `EXDEV` where the path leads out, `ELOOP` where there is a link and none may be.
    """
    how = _how(flags | os.O_CLOEXEC, _BENEATH | _NO_MAGICLINKS | (0 if links else _NO_SYMLINKS))
    encoded = os.fsencode(path)
    for _ in range(_TRIES):
        try:
            return _call(folder, encoded, how)
        except OSError as error:
            # The kernel could not be sure because of a concurrent rename: try again.
            if error.errno not in {errno.EAGAIN, errno.EINTR}:
                raise
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)


def open_cached(folder: int, path: str, flags: int) -> int:
    """As `open_confined`, but only what the kernel has in memory, and without links."""
    return _call(folder, os.fsencode(path), _how(flags, _BENEATH | _NO_SYMLINKS | _CACHED))


@cache
def _how(flags: int, resolve: int) -> bytes:
    """`struct open_how`: flags, mode and resolve, 64 bits each."""
    return struct.pack("=QQQ", flags, 0, resolve)


def _call(folder: int, path: bytes, how: bytes) -> int:
    result = _system_call()(_NUMBER, folder, path, how, len(how))
    if result < 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fsdecode(path))
    return result


@cache
def _system_call() -> Callable[[int, int, bytes, bytes, int], int]:
    """`syscall` of the C library, as the call needs it."""
    # Imported here, because only runs with a pack on a root need it.
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    call: Callable[[int, int, bytes, bytes, int], int] = library.syscall
    library.syscall.argtypes = (
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    library.syscall.restype = ctypes.c_long
    return call


def open_place(folder: str | Path) -> int:
    """A descriptor of a folder to be in; in the portable form it has to be readable."""
    place = 0 if is_portable() else PLACE
    return os.open(folder, place | os.O_DIRECTORY | os.O_CLOEXEC)


def path_of(descriptor: int) -> str:
    """The path of an open file or folder.

    Raises:
        OSError: the system does not tell.
    """
    if sys.platform == "darwin":
        found = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024))
        return os.fsdecode(found.partition(b"\0")[0])
    else:  # ruff: ignore[superfluous-else-return] - the type checker leaves one of them out
        return os.readlink(f"/proc/self/fd/{descriptor}")  # ruff: ignore[os-readlink] - no file of a disk is touched


def enlarge_pipe(descriptor: int, size: int) -> None:
    """Let a pipe hold so many bytes, as far as that is allowed; portable: nothing."""
    if sys.platform == "linux" and not is_portable():
        with suppress(OSError):  # over a limit
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, size)
