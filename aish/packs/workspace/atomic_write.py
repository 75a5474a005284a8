"""Changes one name in a folder, by the folder's descriptor: completely or not at all."""

import errno
import hashlib
import os
import stat
from contextlib import nullcontext, suppress

from aish.core.frozen import frozen
from aish.packs.pack_error import PackError
from aish.packs.workspace.write_lock import check_writing, folder_locks
from aish.system.platform.renames import EXCHANGE, NO_REPLACE, rename_flagged

_UNKNOWN = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def rename_new(source: int, name: str, target: int, new: str) -> None:
    """Rename between two folders, given by their descriptors.

    Raises:
        FileExistsError: the new name exists.
        OSError: it cannot be renamed for another reason.
    """
    try:
        rename_flagged(source, name, target, new, NO_REPLACE)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        # Without the call in the file system or C library: check first, which is almost as good.
        with suppress(FileNotFoundError):
            os.stat(new, dir_fd=target, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)


LARGEST = 8 * 1024 * 1024
"""Bytes of a file that is edited or written."""
_PIECE = 1 << 20
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o600
_ORDINARY = 0o666
_ANY_WRITE = 0o222


FileVersion = tuple[int, int, int, int, int]
"""Device, inode, size and both times of a name when it was checked: enough to see changes."""


@frozen
class Original:
    content: bytes
    mode: int
    version: FileVersion

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def read_original(folder: int, name: str, path: str) -> Original | None:
    """The regular file with this name; `None` if there is none.

    Raises:
        PackError: it is a link, not a regular file, too large, or read-only.
    """
    try:
        descriptor = os.open(name, _OLD, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _map_open_error(error, path) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PackError("not_a_file", f"`{path}` is not a regular file", path=path)
        if not status.st_mode & _ANY_WRITE:
            raise PackError("unwritable", f"`{path}` is marked as read-only", path=path)
        content = _read(descriptor, status.st_size, path)
    finally:
        os.close(descriptor)
    return Original(content, stat.S_IMODE(status.st_mode), _version(status))


def check_unchanged(original: Original, expected: str | None, path: str) -> None:
    """Check that a file is the one that the model has read."""
    if expected is not None and expected.strip().lower() != original.sha256:
        message = f"`{path}` is not what was expected: it was changed; read it again"
        raise PackError("changed", message, path=path, sha256=original.sha256)


def put(
    folder: int,
    name: str,
    path: str,
    data: bytes,
    original: Original | None,
    *,
    mode: int | None = None,
    is_locked: bool = False,
) -> None:
    """Replace the content of a file by `data`: write a new file beside it, then rename it.

    `mode` is that of a file that is made; by default it is that of the umask. `is_locked` tells
    that the caller holds the lock of the folder.

    Raises:
        PackError: it was changed since it was read, or cannot be written.
    """
    beside = prepare(folder, name, path, data, original.mode if original else mode)
    put_prepared(folder, beside, (name, path), original, is_locked=is_locked)


def prepare(folder: int, name: str, path: str, data: bytes, mode: int | None) -> str:
    """Write the new content of a file beside it; returns the name of that.

    Raises:
        PackError: it cannot be written, because the disk is full for instance.
    """
    check_writing(folder, name, path)
    beside = f".aish-{os.urandom(8).hex()}.tmp"
    try:
        _write(folder, beside, data, mode)
    except OSError as error:
        discard(folder, beside)
        raise map_write_error(error, path) from None
    return beside


def discard(folder: int, beside: str) -> None:
    """Remove what `prepare` has written."""
    with suppress(OSError):
        os.unlink(beside, dir_fd=folder)


def put_prepared(
    folder: int,
    beside: str,
    file: tuple[str, str],
    original: Original | None,
    *,
    is_locked: bool = False,
) -> None:
    """Put what `prepare` has written in the place of a file, by its name and path; as `put`."""
    path = file[1]
    try:
        with nullcontext() if is_locked else folder_locks([folder], path):
            _put_in_place(folder, beside, file, original)
    except FileExistsError:
        raise _change_error(path) from None
    except OSError as error:
        raise map_write_error(error, path) from None
    finally:
        discard(folder, beside)
    settle(folder)


def remove(folder: int, name: str, path: str, original: Original) -> None:
    """Remove a file.

    Raises:
        PackError: it was changed since it was read, or cannot be removed.
    """
    check_writing(folder, name, path)
    beside = f".aish-{os.urandom(8).hex()}.tmp"
    try:
        with folder_locks([folder], path):
            _check_version(folder, name, path, original.version)
            rename_new(folder, name, folder, beside)
            _remove_unchanged(folder, beside, (name, path), original)
    except FileNotFoundError:
        raise _change_error(path) from None
    except OSError as error:
        raise map_write_error(error, path) from None
    settle(folder)


def _remove_unchanged(folder: int, beside: str, file: tuple[str, str], original: Original) -> None:
    """Remove a file that has another name already, or give it its name again."""
    name, path = file
    problem: Exception = _change_error(path)
    if _is_unchanged(folder, beside, original):
        try:
            os.unlink(beside, dir_fd=folder)
        except OSError as error:
            problem = error
        else:
            return
    with suppress(OSError):
        rename_new(folder, beside, folder, name)
    raise problem


def settle(folder: int) -> None:
    """Sync a folder to disk; a file system that does not support this is accepted."""
    with suppress(OSError):
        os.fsync(folder)


def map_write_error(error: OSError, path: str) -> PackError:
    why = (error.strerror or os.strerror(error.errno or 0)).lower()
    return PackError("unwritable", f"`{path}` cannot be written: {why}", path=path)


def _write(folder: int, beside: str, data: bytes, mode: int | None) -> None:
    # A new file gets the mode of the umask; a replacement is private until it is complete.
    descriptor = os.open(beside, _NEW, _ORDINARY if mode is None else _PRIVATE, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if mode is not None:
            # Without set-uid and set-gid: new content must not inherit another user's rights.
            os.fchmod(descriptor, mode & 0o777)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(
    folder: int, beside: str, file: tuple[str, str], original: Original | None
) -> None:
    name, path = file
    if original is None:
        rename_new(folder, beside, folder, name)
        return
    _check_version(folder, name, path, original.version)
    try:
        new = os.stat(beside, dir_fd=folder, follow_symlinks=False)
        rename_flagged(folder, beside, folder, name, EXCHANGE)
    except FileNotFoundError:
        raise _change_error(path) from None
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        # Without the call: what another program does right now may be replaced.
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    # The old file is beside the new one now: the last moment to see that it is another one.
    if _is_unchanged(folder, beside, original):
        return
    while True:
        ours = new
        new = os.stat(beside, dir_fd=folder, follow_symlinks=False)
        rename_flagged(folder, beside, folder, name, EXCHANGE)
        if os.path.samestat(ours, os.stat(beside, dir_fd=folder, follow_symlinks=False)):
            raise _change_error(path)
        # Replaced once more meanwhile: the newest one stays.


def _is_unchanged(folder: int, name: str, original: Original) -> bool:
    """Return true if a renamed file is the one that was read, with the same content."""
    try:
        descriptor = os.open(name, _OLD, dir_fd=folder)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if _version(status)[:-1] != original.version[:-1]:
            return False
        # Times are coarse: a file that was just written may have been written twice.
        return _read(descriptor, status.st_size, name) == original.content
    finally:
        os.close(descriptor)


def _check_version(folder: int, name: str, path: str, version: FileVersion) -> None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise _change_error(path) from None
    if _version(status) != version:
        raise _change_error(path)


def _change_error(path: str) -> PackError:
    message = f"`{path}` was changed by somebody else meanwhile; read it again"
    return PackError("changed", message, path=path)


def _version(status: os.stat_result) -> FileVersion:
    device, inode, size = status.st_dev, status.st_ino, status.st_size
    return device, inode, size, status.st_mtime_ns, status.st_ctime_ns


def _read(descriptor: int, size: int, path: str) -> bytes:
    """The whole file, which may grow while it is read."""
    pieces: list[bytes] = []
    total = 0
    while size <= LARGEST and total <= LARGEST and (piece := os.read(descriptor, _PIECE)):
        pieces.append(piece)
        total += len(piece)
    if max(size, total) > LARGEST:
        message = f"`{path}` is too large to be changed here: {max(size, total):,} bytes"
        raise PackError("too_large", message, path=path, limit=LARGEST)
    return b"".join(pieces)


def _map_open_error(error: OSError, path: str) -> PackError:
    if error.errno == errno.ELOOP:
        return PackError("not_a_file", f"`{path}` is a link; links are left alone", path=path)
    if error.errno == errno.ENXIO:
        return PackError("not_a_file", f"`{path}` is not a regular file", path=path)
    return map_write_error(error, path)
