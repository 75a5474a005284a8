"""Finds the pipelines and cassettes among the YAML files of a folder, by their beginnings.

They are not parsed: broken ones have to be found too, and large ones are not read.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".yaml", ".yml")

_SKIPPED = frozenset({"node_modules", "venv", "__pycache__"})
_BEGINNING = 64 * 1024
_PIPELINE = re.compile(rb"""^(?:\{\s*)?["']?aish["']?[ \t]*:""", re.MULTILINE)
_CASSETTE = re.compile(rb"""^(?:\{\s*)?["']?interactions["']?[ \t]*:""", re.MULTILINE)


def files_below(folder: Path) -> Iterator[Path]:
    """All files in a folder and below it, in order of their names, without hidden ones."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _SKIPPED
        )
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))


def is_pipeline(path: Path) -> bool:
    """Return true if a file looks like a pipeline, possibly an invalid one."""
    begun = read_start(path)
    return _PIPELINE.search(begun) is not None and _CASSETTE.search(begun) is None


def is_cassette(path: Path) -> bool:
    return _CASSETTE.search(read_start(path)) is not None


def read_start(path: Path) -> bytes:
    """The beginning of a regular file, as far as needed; empty if it cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_BEGINNING)
    except OSError:
        return b""
