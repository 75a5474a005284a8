"""The filter `readfile`: files of the project, and nothing beside it (F6).

The name may come out of data, so each part is opened beneath the folder before it, and a link is
never followed: asking where a path leads and opening it later would leave a gap.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from aish.templates.limits import MAX_OUTPUT, TemplateLimitError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def readfile_in(root: Path) -> Callable[[object], str]:
    """A filter that reads UTF-8 files inside `root` and nowhere else."""

    def readfile(value: object) -> str:
        """The text of a file of the project."""
        name = str(value)
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\0" in name:
            raise TemplateLimitError(f"readfile: `{name}` is not inside the project's folder")
        try:
            return _read(root, parts, name)
        except UnicodeDecodeError as error:
            raise TemplateLimitError(f"readfile: `{name}` is not UTF-8") from error
        except OSError as error:
            why = "is a link or behind one" if error.errno == errno.ELOOP else error.strerror
            raise TemplateLimitError(f"readfile: `{name}`: {why}") from error

    return readfile


def _read(root: Path, parts: tuple[str, ...], name: str) -> str:
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=held)
            os.close(held)
            held = inner
        with os.fdopen(os.open(parts[-1], _FILE, dir_fd=held), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TemplateLimitError(f"readfile: `{name}` is not a plain file")
            data = file.read(MAX_OUTPUT + 1)
    finally:
        os.close(held)
    if len(data) > MAX_OUTPUT:
        raise TemplateLimitError(f"readfile: `{name}` is larger than 4 MiB")
    return data.decode("utf-8-sig")
