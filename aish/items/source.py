"""What every source of items has: its error, its caps, and files opened with care (X6).

Files of items are a stranger's. They are read from the beginning to the end, in memory that does
not grow with them, and what is wrong with them is said with file and line.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from aish.core.errors import StepFailedError

LONGEST_ITEM = 16 * 1024 * 1024
"""Bytes of one item: a line of JSON Lines, a row of CSV, an element of a JSON array."""

_BUFFER = 1 << 18
_BEGINS = "a path under `foreach` begins at the folder of the pipeline file"
_NO_FILE = "a run reads its items more than once: write what a pipe gives to a file first"


class ItemsError(StepFailedError):
    """Items that cannot be read; `where` is file and line."""

    code = "items_unreadable"


def shown(path: Path) -> str:
    """A path as a person would type it: relative to the working directory if beneath."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@contextmanager
def opened(path: Path) -> Generator[BinaryIO]:
    """A file of items, open; a pipe or a device has no end that could be waited for.

    Raises:
        ItemsError: it is no plain file, or it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        said = f"the items cannot be read: {error.strerror}"
        hint = _BEGINS if isinstance(error, FileNotFoundError) else None
        raise ItemsError(said, where=shown(path), hint=hint) from error
    with os.fdopen(descriptor, "rb", buffering=_BUFFER) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            said = "items are read from plain files only"
            raise ItemsError(said, where=shown(path), hint=_NO_FILE)
        yield file


def read(file: BinaryIO, size: int, name: str) -> bytes:
    """A piece of an open file.

    Raises:
        ItemsError: the disk fails.
    """
    try:
        return file.read(size)
    except OSError as error:
        raise ItemsError(f"the items cannot be read: {error.strerror}", where=name) from error
