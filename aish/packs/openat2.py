"""The system call `openat2` of Linux 5.6, which Python does not have (K4)."""

import errno
import os
import struct
from collections.abc import Callable
from functools import cache

_NUMBER = 437
"""The same on every architecture that Linux gained since 2019, and on all older ones but Alpha."""
_NO_MAGICLINKS = 0x02
_NO_SYMLINKS = 0x04
_BENEATH = 0x08
_TRIES = 64


@cache
def is_available() -> bool:
    """Whether the kernel has the call and lets us use it (old sandboxes answer `EPERM`)."""
    try:
        os.close(_call(-100, b".", os.O_PATH | os.O_CLOEXEC, 0))
    except OSError:
        return False
    return True


def open_beneath(folder: int, path: str, flags: int, *, links: bool) -> int:
    """A descriptor of `path`, which never leaves `folder`; with `links`, not by a link either.

    Raises:
        OSError: `EXDEV` where the path leads out, `ELOOP` where there is a link and none may be.
    """
    resolve = _BENEATH | _NO_MAGICLINKS | (0 if links else _NO_SYMLINKS)
    encoded = os.fsencode(path)
    for _ in range(_TRIES):
        try:
            return _call(folder, encoded, flags | os.O_CLOEXEC, resolve)
        except OSError as error:
            # The kernel could not be sure while somebody was renaming: look again.
            if error.errno not in {errno.EAGAIN, errno.EINTR}:
                raise
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)


def _call(folder: int, path: bytes, flags: int, resolve: int) -> int:
    # `struct open_how`: flags, mode and resolve, 64 bits each.
    found = _system_call()(folder, path, struct.pack("=QQQ", flags, 0, resolve))
    if found < 0:
        raise OSError(-found, os.strerror(-found), os.fsdecode(path))
    return found


@cache
def _system_call() -> Callable[[int, bytes, bytes], int]:
    """The call as a function; a negative result is an error number."""
    # Here, because only runs with a pack on a root need it.
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)

    def call(folder: int, path: bytes, how: bytes) -> int:
        found: int = library.syscall(
            ctypes.c_long(_NUMBER),
            ctypes.c_int(folder),
            ctypes.c_char_p(path),
            ctypes.c_char_p(how),
            ctypes.c_size_t(len(how)),
        )
        return found if found >= 0 else -ctypes.get_errno()

    return call
