"""Renames that never replace a file, or exchange two: calls that Python does not offer.

Linux has `renameat2` for that, a Mac `renameatx_np`. Where there is neither, callers look first.
"""

import errno
import os
import sys
from functools import cache
from typing import Protocol

from aish.system.platform.forms import is_portable

NO_REPLACE = 4 if sys.platform == "darwin" else 1
EXCHANGE = 2


class _SystemCall(Protocol):
    def __call__(self, source: int, name: bytes, target: int, new: bytes, flags: int, /) -> int: ...


def rename_flagged(source: int, name: str, target: int, new: str, flags: int) -> None:
    """Rename between two folders, given by their descriptors, as the flags say.

    Raises:
        OSError: `ENOSYS`, `EINVAL` or `ENOTSUP` where there is no such call; or it failed.
    """
    call = _library_call()
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    import ctypes

    if call(source, os.fsencode(name), target, os.fsencode(new), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new)


@cache
def _library_call() -> _SystemCall | None:
    """The function of the C library, or `None` where it has none (glibc before 2.28)."""
    if is_portable() and sys.platform != "darwin":
        return None
    # Imported here, because only runs that write need it.
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    try:
        function = getattr(library, "renameatx_np" if sys.platform == "darwin" else "renameat2")
    except AttributeError:
        return None
    function.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )
    call: _SystemCall = function
    return call
