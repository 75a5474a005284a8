"""The only way from a path written by a model to an open file.

A path is opened once, below the descriptor of the root, and the result is checked by its
descriptor: at no time can another process replace it. Where Linux has `openat2`, the kernel
resolves the path; elsewhere it is opened folder by folder, and no link is followed.
"""

import errno
import os
import pwd
import stat
import unicodedata
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from aish.core.errors import UsageError
from aish.packs.pack_error import PackError
from aish.packs.workspace.deny_list import is_denied, is_protected
from aish.system.files import hidden_folders
from aish.system.platform.opens import (
    NOWAIT,
    PLACE,
    has_openat2,
    open_cached,
    open_confined,
    path_of,
)

LONGEST_PATH = 4096
DEEPEST_PATH = 128
Where = str | tuple[str, ...]
"""A path that a model wrote, or segments that came from reading folders and may be odd."""
# Never wait for the other end of a pipe, never acquire a controlling terminal.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WAY_OUT = frozenset({errno.EXDEV, errno.ELOOP})
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


def segments_of(path: str) -> tuple[str, ...]:
    """The segments of a path below the root; empty for the root itself.

    Raises:
        PackError: it is absolute, contains `..`, or is not a valid path.
    """
    if len(path) > LONGEST_PATH or any(unicodedata.category(each) in {"Cc", "Cs"} for each in path):
        raise PackError("bad_path", "the path is too long or has control characters in it")
    if path.startswith("/"):
        message = f"`{path}` is absolute; paths start at the root folder, as in `README.md`"
        raise PackError("outside", message, path=path)
    segments = tuple(segment for segment in path.split("/") if segment not in {"", "."})
    if ".." in segments:
        raise PackError("outside", f"`{path}` goes up with `..`; paths stay below the root folder")
    return segments


def writable(path: str, deny_names: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The segments of a path that may be written, judged by its text alone.

    Raises:
        PackError: it is invalid, the root itself, or protected, whether it exists or not.
    """
    segments = segments_of(path)
    if not segments:
        raise PackError("bad_path", "this is the root folder itself; name something in it")
    if len(segments) > DEEPEST_PATH:
        raise PackError("bad_path", f"the path has more than {DEEPEST_PATH} folders in it")
    if is_protected(segments, deny_names):
        raise protection_error(path)
    return segments


def protection_error(path: str) -> PackError:
    """The error for paths that no tool changes, whether they exist or not."""
    message = f"`{path}` is protected: no tool of ours writes, moves or removes it"
    return PackError("protected", message, path=path)


def path_text(where: Where) -> str:
    return where if isinstance(where, str) else "/".join(where)


def not_found(path: str) -> PackError:
    """The error for missing and for hidden paths."""
    message = f"there is no `{path}` here, or it may not be read; dir_list shows what there is"
    return PackError("not_found", message, path=path)


def resolve_root(root: Path, *, allow_broad_root: bool) -> Path:
    """A folder that may be a root, resolved.

    Raises:
        UsageError: it is none, or has so much in it that using it is probably a mistake.
    """
    try:
        resolved = root.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UsageError(f"the root folder `{root}` does not exist") from None
    if not resolved.is_dir():
        raise UsageError(f"the root `{root}` is not a folder")
    if any(resolved.is_relative_to(folder.resolve()) for folder in hidden_folders()):
        raise UsageError(f"the root `{root}` has keys or logins of aish in it")
    if not allow_broad_root and resolved in broad_folders():
        raise UsageError(
            f"the root `{root}` is everything or a home folder",
            hint="name a project folder, or pass --allow-broad-root",
        )
    return resolved


def broad_folders() -> frozenset[Path]:
    """`/` and the home folders of this user."""
    folders = [Path("/"), Path(os.path.expanduser("~"))]  # ruff: ignore[os-path-expanduser] - never raises
    with suppress(KeyError):
        # HOME may differ, and be empty in a container.
        folders.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return frozenset(folder.resolve() for folder in folders)


class Folder:
    """A root folder and everything visible below it, without `deny_names` (globs)."""

    def __init__(
        self, root: Path, *, kernel: bool = True, deny_names: tuple[str, ...] = ()
    ) -> None:
        self.deny_names = deny_names
        self._root = os.open(root, _FOLDER)
        # `kernel` is false in tests of the implementation for older kernels.
        self._kernel = kernel and has_openat2()

    def is_at(self, path: Path) -> bool:
        """Return true if this folder is at a path: not removed, moved or replaced since."""
        try:
            return os.path.samestat(os.fstat(self._root), path.stat())
        except PermissionError:
            return True  # A folder above it is closed to us; the open root can still be used.
        except OSError:
            return False

    def close(self) -> None:
        """Close the root; nothing can be opened after that."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def hides(self, segments: tuple[str, ...]) -> bool:
        """Return true if a path, by its segments, is hidden."""
        return is_denied(segments or (".",), self.deny_names)

    @contextmanager
    def file(self, where: Where, *, links: bool = True) -> Generator[int, None, None]:
        """The descriptor of a regular file, for reading; without `links` none is followed.

        Raises:
            PackError: it does not exist, is hidden, not regular, or cannot be read.
        """
        with self._open_path(where, _READ, links=links) as descriptor:
            path, mode = path_text(where), os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise PackError("not_a_file", f"`{path}` is a folder; dir_list shows what is in it")
            if not stat.S_ISREG(mode):
                raise PackError("not_a_file", f"`{path}` is not a regular file")
            yield descriptor

    def file_at_once(self, path: str, most: int) -> bytes | None:
        """All of a file of at most `most` bytes that the kernel has in memory.

        `None` where that is not so, where a link is on the way, and for what `file` refuses.

        Raises:
            PackError: the path is not valid.
        """
        segments = segments_of(path)
        if not (self._kernel and NOWAIT) or self.hides(segments):
            return None
        try:
            descriptor = open_cached(self._root, "/".join(segments) or ".", _READ)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                return None
            # A byte more, to see the end of the file.
            data = bytearray(status.st_size + 1)
            size = os.preadv(descriptor, [data], 0, NOWAIT)
            return bytes(data[:size]) if size == status.st_size else None
        except OSError:
            return None
        finally:
            os.close(descriptor)

    @contextmanager
    def folder(self, where: Where, *, links: bool = True) -> Generator[int, None, None]:
        """The descriptor of a folder, for listing; `links` and `PackError` as with `file`."""
        with ExitStack() as opened:
            try:
                descriptor = opened.enter_context(self._open_path(where, _FOLDER, links=links))
            except PackError as error:
                if error.code == "not_found" and self.kind(where) is not None:
                    path = path_text(where)
                    message = f"`{path}` is not a folder; file_read reads files"
                    raise PackError("not_a_folder", message, path=path) from None
                raise
            yield descriptor

    def kind(self, where: Where) -> str | None:
        """`file`, `folder` or `other`, or `None` if nothing is visible there."""
        try:
            mode = self._mode(where)
        except PackError as error:
            if error.code == "not_found":
                return None
            raise
        return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"

    def _mode(self, where: Where) -> int:
        """The mode of what is there, which may be closed to us; no link counts.

        Raises:
            PackError: nothing is visible there.
        """
        if PLACE and self._kernel:
            with self._open_path(where, PLACE | os.O_CLOEXEC) as descriptor:
                return os.fstat(descriptor).st_mode
        segments = segments_of(where) if isinstance(where, str) else where
        if self.hides(segments):
            raise not_found(path_text(where))
        with self._open_path(segments[:-1], _FOLDER) as descriptor:
            name = segments[-1] if segments else "."
            try:
                mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            except OSError as error:
                raise _map_open_error(error, path_text(where)) from None
        if stat.S_ISLNK(mode):
            raise _map_open_error(OSError(errno.ELOOP, ""), path_text(where))
        return mode

    def status(self, path: str) -> os.stat_result:
        """The status of a path as it was once opened, to notice that something has changed.

        A link on the way may have been replaced since, so that this is the status of another file:
        what has changed is opened again, by `file`.

        Raises:
            OSError: there is nothing, or it is out of reach.
        """
        return os.stat(path, dir_fd=self._root)

    @contextmanager
    def place_of(self, path: str) -> Generator[tuple[int, str], None, None]:
        """The descriptor of the folder that a path ends in, and its last segment, for writing.

        No link is followed: the changed file is where the path says.

        Raises:
            PackError: it is the root or protected, or its folder is not there or behind a link.
        """
        *above, name = writable(path, self.deny_names)
        try:
            # Not even within the root: a link must not lead to a protected path.
            descriptor = self._walk(tuple(above), _FOLDER)
        except OSError as error:
            raise _map_folder_error(error, "/".join(above)) from None
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def make_folders(self, path: str) -> tuple[str, ...]:
        """Make a folder and its missing parents; returns the paths of the new ones.

        Raises:
            PackError: one cannot be made, and none is.
        """
        segments = writable(path, self.deny_names)
        folders: list[str] = []
        here = os.dup(self._root)
        try:
            for count, segment in enumerate(segments, 1):
                below, is_new = _enter_folder(here, segment)
                os.close(here)
                here = below
                folders.extend(["/".join(segments[:count])] if is_new else [])
        except OSError as error:
            self.remove_folders(tuple(folders))
            raise _map_folder_error(error, path) from None
        finally:
            os.close(here)
        return tuple(folders)

    def remove_folders(self, paths: tuple[str, ...]) -> None:
        """Remove folders that `make_folders` has made, the last one first, if they are empty."""
        for path in reversed(paths):
            with suppress(PackError, OSError), self.place_of(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)

    @contextmanager
    def _open_path(
        self, where: Where, flags: int, *, links: bool = True
    ) -> Generator[int, None, None]:
        path = path_text(where)
        segments = segments_of(where) if isinstance(where, str) else where
        if self.hides(segments):
            raise not_found(path)
        try:
            descriptor = self._open(segments, flags, links=links)
        except OSError as error:
            if not (links and self._kernel) and error.errno == errno.ELOOP:
                message = f"`{path}` is a link, or is behind one, and no link is followed here"
                raise PackError("outside", message, path=path) from None
            raise _map_open_error(error, path) from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, segments: tuple[str, ...], flags: int, *, links: bool) -> int:
        if not self._kernel:
            return self._walk(segments, flags)
        path = "/".join(segments) or "."
        try:
            return open_confined(self._root, path, flags, links=False)
        except OSError as error:
            if error.errno != errno.ELOOP or not links:
                raise
        descriptor = open_confined(self._root, path, flags, links=True)
        try:
            self._check_target(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _check_target(self, descriptor: int) -> None:
        """A link must not bypass the deny list."""
        root, target = Path(path_of(self._root)), Path(path_of(descriptor))
        if not target.is_relative_to(root) or self.hides(target.relative_to(root).parts):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _walk(self, segments: tuple[str, ...], flags: int) -> int:
        """Segment by segment without following any link: the implementation for older kernels."""
        here = os.dup(self._root)
        try:
            for segment in segments[:-1]:
                below = os.open(segment, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
                os.close(here)
                here = below
            last = segments[-1] if segments else "."
            return os.open(last, flags | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)


def _enter_folder(folder: int, name: str) -> tuple[int, bool]:
    """The descriptor of a folder in another one, and whether it was created."""
    is_new = False
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
        is_new = True
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder), is_new


def _map_folder_error(error: OSError, folder: str) -> PackError:
    """The error for the model if the folder to write in cannot be opened or created."""
    if error.errno in {errno.ENOTDIR, errno.ELOOP}:
        message = f"`{folder}` is a link or no folder, and nothing is written through links"
        return PackError("not_a_folder", message, path=folder)
    if error.errno == errno.ENOENT:
        message = f"there is no folder `{folder}`; dir_create makes it"
        return PackError("not_found", message, path=folder)
    why = (error.strerror or os.strerror(error.errno or 0)).lower()
    return PackError("unwritable", f"`{folder}` cannot be opened: {why}", path=folder)


def _map_open_error(error: OSError, path: str) -> PackError:
    """The error for the model after an `OSError`; never contains a path outside the root."""
    if error.errno in _WAY_OUT:
        return PackError("outside", f"`{path}` leads out of the root folder by a link", path=path)
    if error.errno in _NOT_THERE:
        return not_found(path)
    why = (error.strerror or os.strerror(error.errno or 0)).lower()
    return PackError("unreadable", f"`{path}` cannot be opened: {why}", path=path)
