"""Renaming that never replaces what is there: `renameat2` of Linux, which Python does not have."""

import errno
import os
from contextlib import suppress
from functools import cache
from typing import Protocol

_NO_REPLACE = 1
_UNKNOWN = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


class _Call(Protocol):
    def __call__(self, source: int, name: bytes, target: int, new: bytes, flags: int, /) -> int: ...


def rename_new(source: int, name: str, target: int, new: str) -> None:
    """Rename between two folders, given by their descriptors.

    Raises:
        FileExistsError: there is something of the new name.
        OSError: it cannot be renamed for another reason.
    """
    try:
        _rename(source, name, target, new)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        # A file system or a C library without the call: look first, which is almost as good.
        with suppress(FileNotFoundError):
            os.stat(new, dir_fd=target, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)


def _rename(source: int, name: str, target: int, new: str) -> None:
    call = _library_call()
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    import ctypes

    if call(source, os.fsencode(name), target, os.fsencode(new), _NO_REPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new)


@cache
def _library_call() -> _Call | None:
    """The function of the C library, or `None` where it has none (glibc before 2.28)."""
    # Here, because only runs that write need it.
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    try:
        function = library.renameat2
    except AttributeError:
        return None
    function.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )
    call: _Call = function
    return call
