"""What a test has left open."""

from contextlib import suppress
from pathlib import Path


def opened_below(folder: Path) -> list[Path]:
    """What this process has open there; elsewhere threads of earlier tests may still close some."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(one.readlink())
    return [one for one in found if one.is_relative_to(folder)]
