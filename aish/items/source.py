"""Shared by all sources of items: the error, the caps, and safe opening of files.

Files of items are untrusted. They are read from beginning to end, in memory that does not grow with
them, and errors are reported with file and line.

Values of items: strict JSON, and the digest that distinguishes them.
"""

import hashlib
import os
import stat
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from aish.core.errors import StepFailedError
from aish.core.json import JsonValue, canonical, strict_json, strict_json_at
from aish.system.files import display_path

LONGEST_ITEM = 16 * 1024 * 1024
"""Bytes of one item: a line of JSON Lines, a row of CSV, an element of a JSON array."""

_BUFFER = 1 << 18
_BEGINS = "a path under `foreach` is relative to the folder of the pipeline file"
_NO_FILE = "a run reads its items more than once: write piped items to a file first"


class ItemsError(StepFailedError):
    """Items that cannot be read; `where` is file and line."""

    code = "items_unreadable"


@contextmanager
def open_items(path: Path) -> Generator[BinaryIO]:
    """An open file of items; pipes and devices are refused, as they may never end.

    Raises:
        ItemsError: it is not a regular file, or it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        said = f"the items cannot be read: {error.strerror}"
        hint = _BEGINS if isinstance(error, FileNotFoundError) else None
        raise ItemsError(said, where=display_path(path), hint=hint) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            said = "items are read from regular files only"
            raise ItemsError(said, where=display_path(path), hint=_NO_FILE)
        with os.fdopen(descriptor, "rb", buffering=_BUFFER, closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read(file: BinaryIO, size: int, name: str) -> bytes:
    """A piece of an open file.

    Raises:
        ItemsError: the file cannot be read.
    """
    try:
        return file.read(size)
    except OSError as error:
        raise ItemsError(f"the items cannot be read: {error.strerror}", where=name) from error


DEEPEST = 64

_DIGITS = 16


def digest_of(value: JsonValue) -> str:
    """16 hexadecimal digits of the SHA-256 of the value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()[:_DIGITS]


def value_of(text: str) -> JsonValue:
    """The value of a whole text.

    Raises:
        ValueError: it is not valid JSON, or nested too deeply.
    """
    try:
        return _shallow(strict_json(text), text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def value_at(text: str, start: int) -> tuple[JsonValue, int]:
    """The value that begins at `start`, and its end position.

    Raises:
        ValueError: it is not valid JSON, or nested too deeply.
    """
    try:
        value, end = strict_json_at(text, start)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return _shallow(value, text[start:end]), end


_TOO_DEEP = f"it is nested more than {DEEPEST} deep"


def _shallow(value: JsonValue, text: str) -> JsonValue:
    # Most values have fewer brackets than that in all.
    if text.count("[") + text.count("{") > DEEPEST and _depth(value, 0) > DEEPEST:
        raise ValueError(_TOO_DEEP)
    return value


def _depth(value: JsonValue, above: int) -> int:
    """Measure the depth of a value, up to the limit."""
    if above > DEEPEST or isinstance(value, str) or not isinstance(value, (Mapping, Sequence)):
        return above
    parts = value.values() if isinstance(value, Mapping) else value
    return max((_depth(part, above + 1) for part in parts), default=above + 1)
