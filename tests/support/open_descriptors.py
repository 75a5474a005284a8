"""What a test has left open, and what a process has open."""

from contextlib import suppress
from pathlib import Path


def opened_below(folder: Path) -> list[Path]:
    """What this process has open there; elsewhere threads of earlier tests may still close some."""
    return [one for one in opened_by("self") if one.is_relative_to(folder)]


def opened_by(process: int | str) -> list[Path]:
    """What a process has open; nothing, if it has ended."""
    found = []
    with suppress(FileNotFoundError):
        for one in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.append(one.readlink())
    return found
