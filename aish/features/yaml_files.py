"""Which YAML files of a folder are pipelines and which are cassettes, told by how they begin.

They are not parsed: broken ones have to be found too, and big ones are not read.
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
    """All files in a folder and below it, in the order of their names; hidden ones are left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _SKIPPED
        )
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))


def is_pipeline(path: Path) -> bool:
    """Whether a file looks like a pipeline, which it may be a broken one of."""
    begun = beginning(path)
    return _PIPELINE.search(begun) is not None and _CASSETTE.search(begun) is None


def is_cassette(path: Path) -> bool:
    """Whether a file looks like a cassette."""
    return _CASSETTE.search(beginning(path)) is not None


def beginning(path: Path) -> bytes:
    """As much of a plain file as it takes to know it; nothing of what cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_BEGINNING)
    except OSError:
        return b""
