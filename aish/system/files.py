"""Files and folders written by aish: private, atomic, and never through a planted link.

Files named by the user are read with a size limit. `OSError` propagates: the caller knows the
purpose of the file and reports it.

Also the locations of the schemas and of the platform's folders for programs.
"""

import errno
import os
import stat
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from aish.core.errors import UsageError

PROJECT_FILE = "aish.yaml"
"""The pipeline file of a folder: that of a command without one."""

_CHUNK = 1 << 20
_PRIVATE_FILE = 0o600
_SHARED_FILE = 0o666
_PRIVATE_FOLDER = 0o700
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_LENGTH = 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def display_path(path: Path) -> str:
    """A path for display: relative to the working directory if below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def private_folder(path: Path, within: Path | None = None, *, new: bool = False) -> Path:
    """Make a folder, and its parents, accessible only to the current user.

    No part of the path below `within` may be a link; without `within`, this holds for every part of
    a relative path, and of an absolute one for the last part and those that have to be created.
    If it has to be `new`, only its parents may exist.

    Raises:
        FileExistsError: it has to be new, and exists.
        UsageError: a part is a link or not a folder, or the folder belongs to another user.
    """
    base, parts = _split(path, within)
    held = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts, 1):
            if new and number == len(parts):
                os.mkdir(part, _PRIVATE_FOLDER, dir_fd=held)
            above, held = held, _step(held, part, path)
            os.close(above)
        status = os.fstat(held)
        if status.st_uid != os.geteuid():
            raise UsageError(f"`{path}` belongs to another user")
        if stat.S_IMODE(status.st_mode) != _PRIVATE_FOLDER:
            os.fchmod(held, _PRIVATE_FOLDER)
    finally:
        os.close(held)
    return path


def is_there(path: Path, within: Path) -> bool:
    """Return true if `path` is still the folder that was made, with no link below `within`.

    Raises:
        OSError: it cannot be examined.
    """
    held = os.open(within, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.relative_to(within).parts:
            above = held
            held = os.open(part, _FOLDER, dir_fd=above)
            os.close(above)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return False
        raise
    finally:
        os.close(held)
    return True


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only the current user may read.

    Raises:
        FileExistsError: the name exists, possibly as a link.
    """
    try:
        _write_pieces(open_new(path), (data,), durable=False)
    except FileExistsError:
        raise
    except OSError:
        path.unlink(missing_ok=True)
        raise


def open_new(path: Path, folder: int | None = None) -> int:
    """A descriptor that writes a new private file; `path` is relative to the open `folder`.

    Raises:
        FileExistsError: the name exists, possibly as a link.
    """
    return os.open(path, _NEW, _PRIVATE_FILE, dir_fd=folder)


def open_append(path: Path, *, readable: bool = False) -> int:
    """A descriptor that appends to a private file, created if it is missing.

    Raises:
        UsageError: the path is not a regular file owned by the user.
    """
    access = os.O_RDWR if readable else os.O_WRONLY
    return _open_checked(path, os.O_APPEND | os.O_CREAT | access)


def open_update(path: Path) -> int:
    """A descriptor that reads and writes an existing regular file owned by the user.

    Raises:
        UsageError: the path is not a regular file owned by the user.
    """
    return _open_checked(path, os.O_RDWR)


def open_own(path: Path, folder: int | None = None) -> int:
    """A descriptor that reads a private file; `path` is relative to the open `folder`, if given.

    Raises:
        UsageError: the path is not a regular file owned by the user.
    """
    # Another process may have put a newer file in its place meanwhile: this is the one before.
    return _open_checked(path, os.O_RDONLY, folder, names=(0, 1))


def is_open_to_others(status: os.stat_result, *, is_parent: bool = False) -> bool:
    """Return true if other users can change a file or folder, or what a parent folder holds."""
    if status.st_uid not in {0, os.geteuid()}:
        return True
    if is_parent and status.st_mode & stat.S_ISVTX:  # entries are replaced by their owners only
        return False
    ours = {0, os.getegid(), *os.getgroups()}
    return bool(
        status.st_mode & stat.S_IWOTH
        or (status.st_mode & stat.S_IWGRP and status.st_gid not in ours)
    )


def read_capped(path: Path, limit: int) -> bytes:
    """The content of a file named by the user or a pipeline.

    Raises:
        UsageError: it is longer than `limit` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := os.read(descriptor, min(_CHUNK, limit + 1 - size)):
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise UsageError(f"`{path}` is longer than {limit} bytes")
    finally:
        os.close(descriptor)
    return b"".join(chunks)


def atomic_write(path: Path, data: bytes, *, shared: bool = False) -> None:
    """Write a file atomically, replacing an existing one.

    A link is replaced, not followed; a device or a pipe (`/dev/stdout`) is written to. The file is
    private; if `shared`, its mode follows the umask or the file that it replaces.
    """
    atomic_pieces(path, (data,), shared=shared)


def atomic_pieces(path: Path, pieces: Iterable[bytes], *, shared: bool = False) -> None:
    """The same for content that comes in pieces."""
    if _is_stream(path):
        _write_pieces(os.open(path, os.O_WRONLY | os.O_CLOEXEC), pieces, durable=False)
        return
    beside = path.with_name(f".{path.name[:100]}.{os.urandom(8).hex()}")
    descriptor = os.open(beside, _NEW, _PRIVATE_FILE)
    try:
        if shared:
            os.fchmod(descriptor, file_mode(path))
        _write_pieces(descriptor, pieces, durable=True)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _open_checked(
    path: Path, flags: int, folder: int | None = None, names: Collection[int] = (1,)
) -> int:
    """The descriptor of a regular file owned by the user, with no link followed.

    `names` are how many it may have: hard links are refused.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, _PRIVATE_FILE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UsageError(f"`{path}` is a link, and links are not followed here") from error
        raise
    status = os.fstat(descriptor)
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink in names
    if not plain or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise UsageError(f"`{path}` is not a regular file of this user")
    os.set_blocking(descriptor, True)
    return descriptor


def _write_pieces(descriptor: int, pieces: Iterable[bytes], *, durable: bool) -> None:
    try:
        for piece in pieces:
            # Write everything; on a full disk `os.write` writes less first and fails next
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _split(path: Path, within: Path | None) -> tuple[Path, tuple[str, ...]]:
    """The start folder, and the parts that are walked without following links."""
    if within is not None:
        return within, path.relative_to(within).parts
    if not path.is_absolute():
        return Path(), path.parts
    base = path.parent
    while not base.exists():
        base = base.parent
    return base, path.relative_to(base).parts


def _step(held: int, part: str, path: Path) -> int:
    """The descriptor of the folder `part` in the folder `held`."""
    if part == "..":
        raise UsageError(f"`{path}` leads out of its folder")
    try:
        try:
            return os.open(part, _FOLDER, dir_fd=held)
        except FileNotFoundError:
            # Another run may be creating it at the same moment.
            with suppress(FileExistsError):
                os.mkdir(part, _PRIVATE_FOLDER, dir_fd=held)
            return os.open(part, _FOLDER, dir_fd=held)
    except NotADirectoryError as error:
        raise UsageError(f"`{part}` in `{path}` is a link or no folder") from error


def file_mode(path: Path) -> int:
    """The permission bits of the regular file at `path`; without one, those of the umask."""
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return stat.S_IMODE(status.st_mode) & 0o777
    # Read by setting it: a file that another thread makes meanwhile is private.
    mask = os.umask(0o077)
    os.umask(mask)
    return _SHARED_FILE & ~mask


def _is_stream(path: Path) -> bool:
    try:
        return not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode)
    except OSError:
        return False


MANY_FILES = "too many open files"
MANY_FILES_HINT = "lower `--concurrency`, or raise `ulimit -n`"

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def raise_descriptor_limit() -> None:
    """Let this process, and what it starts, open as many files as the system allows it to."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # where the system takes less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def lacks_descriptors(error: BaseException) -> bool:
    """Return true if an error was caused by running out of file descriptors."""
    ids: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        exception = waiting.pop()
        if exception is None or id(exception) in ids:
            continue
        ids.add(id(exception))
        if isinstance(exception, OSError) and exception.errno in _NO_DESCRIPTORS:
            return True
        waiting += [exception.__cause__, exception.__context__]
        if isinstance(exception, BaseExceptionGroup):
            waiting += exception.exceptions
    return False


_LONGEST_FOLDER = 85
"""Bytes that the path of a folder with sockets may have: that of a socket may have 107."""
_PACKAGE = Path(__file__).parents[1]


def schema_text(name: str) -> str:
    """A published schema, such as `pipeline.schema.json`.

    Raises:
        FileNotFoundError: there is no schema of that name.
    """
    installed = _PACKAGE / "schemas" / name
    return (installed if installed.exists() else _PACKAGE.parent / "schemas" / name).read_text(
        encoding="utf-8"
    )


def config_folder() -> Path:
    """The user's configuration folder; it may not exist."""
    from platformdirs import user_config_path

    return user_config_path("aish", appauthor=False)


def state_folder() -> Path:
    """The folder for data that outlives a run; it may not exist."""
    from platformdirs import user_state_path

    return user_state_path("aish", appauthor=False)


def cache_folder() -> Path:
    """The folder for what can be fetched or made again; it may not exist."""
    from platformdirs import user_cache_path

    return user_cache_path("aish", appauthor=False)


_HIDDEN = ".aish"
"""No tool of a pack shows a folder of this name, wherever its root is and the folder is moved."""


def logins_folder() -> Path:
    """The folder of the logins of persons; it may not exist."""
    return state_folder() / _HIDDEN / "logins"


def packages_folder() -> Path:
    """The folder of fetched servers, which no tool and no sandbox may change; it may not exist."""
    return cache_folder() / _HIDDEN / "packages"


def hidden_folder(folder: Path) -> Path:
    """The folder for keys and tokens in a folder of ours; both are made, and private.

    Raises:
        UsageError: one is a link, or belongs to another user.
        OSError: it cannot be made.
    """
    return private_folder(private_folder(folder) / _HIDDEN)


def secret_path(folder: Path, name: str) -> Path:
    """The path of a key or token in a folder of ours, as in `hidden_folder`.

    An older version kept it beside the hidden folder: it is moved there.
    """
    path = hidden_folder(folder) / name
    if not os.path.lexists(path):
        with suppress(FileNotFoundError):
            (folder / name).rename(path)
    return path


def hidden_folders() -> Sequence[Path]:
    """The folders with keys, tokens and logins of this user that there are."""
    places = (place / _HIDDEN for place in (state_folder(), *runtime_folders()))
    return [place for place in places if place.is_dir()]


def state_of_servers(project: Path) -> Path:
    """The folder for the state of the servers of a project; it may not exist.

    It is below no project: a command that may write in one could answer its own question there.
    """
    from hashlib import sha256

    # An older version kept a part of the state in that folder of the project.
    name = sha256(os.fsencode(project.resolve() / ".aish" / "serve")).hexdigest()
    return state_folder() / "serve" / name[:_NAME_LENGTH]


def runtime_folder() -> Path:
    """The folder for sockets and tokens of live processes; it may not exist.

    A restart of the machine may clear it.
    """
    return runtime_folders()[0]


def runtime_folders() -> Sequence[Path]:
    """The runtime folder of this process, then those of other processes of this user.

    They depend on the environment. The path of a socket has to be short: a folder in `/tmp` takes
    the place of one whose path is too long.
    """
    runtime, user = os.environ.get("XDG_RUNTIME_DIR", ""), os.geteuid()
    folders = [Path(runtime) / "aish"] if runtime.startswith("/") else []
    by_login = Path(f"/run/user/{user}")
    with suppress(OSError):
        if by_login.stat().st_uid == user:
            folders.append(by_login / "aish")
    folders.append(state_folder() / "sockets")
    short = [folder for folder in folders if len(os.fsencode(folder)) <= _LONGEST_FOLDER]
    return [*short, Path(f"/tmp/aish-{user}")]  # ruff: ignore[hardcoded-temp-file] - refused if it is another user's
