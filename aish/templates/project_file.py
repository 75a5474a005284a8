"""Reads files of the project's folder only.

The name may come from data, so each part is opened below the folder before it, and a link is never
followed: checking the path first and opening it later would be a race.
"""

import errno
import os
import stat
from pathlib import Path, PurePosixPath

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class ProjectFileError(Exception):
    """A file that cannot be read; the message is the end of a sentence about it."""

    is_too_large = False


def project_file(root: Path, name: str, most: int) -> bytes:
    """The contents of a file inside `root`, up to a maximum size.

    Raises:
        ProjectFileError: it is outside, out of reach, no plain file, or larger.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise ProjectFileError("is not inside the project's folder")
    try:
        data = _read(root, parts, most + 1)
    except OSError as error:
        why = "is a link or behind one" if error.errno == errno.ELOOP else _reason(error)
        raise ProjectFileError(why) from error
    if len(data) > most:
        refused = ProjectFileError(f"is larger than {most // 1024**2} MiB")
        refused.is_too_large = True
        raise refused
    return data


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "is not there"
    return f"cannot be read: {error.strerror}"


def _read(root: Path, parts: tuple[str, ...], most: int) -> bytes:
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=held)
            os.close(held)
            held = inner
        inner = os.open(parts[-1], _FILE, dir_fd=held)
        os.close(held)
        held = inner
        mode = os.fstat(held).st_mode
        if not stat.S_ISREG(mode):
            what = "is a folder, not a file" if stat.S_ISDIR(mode) else "is not a regular file"
            raise ProjectFileError(what)
        with os.fdopen(held, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(held)
