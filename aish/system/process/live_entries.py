"""Files in which processes say what they offer: an entry for each that lives (A1, H14).

A process that was killed leaves its entry behind: readers pass over it, the next writer removes it.
"""

import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from aish.core.json import JsonObject, JsonValue, json_text
from aish.system.file_lock import take
from aish.system.files import atomic_write, open_own

_PATIENCE = 5.0
_START = 19
"""Index of the start time in `/proc/PID/stat`, after the name of the program."""


@contextmanager
def own_entry(path: Path, entry: JsonObject) -> Generator[None]:
    """Keep an entry of this process in a file until the end of the block; those of others stay.

    Raises:
        OSError: it cannot be written.
        UsageError: it cannot be locked.
    """
    pid = os.getpid()
    own: JsonObject = {**entry, "pid": pid, "started": _start_time(pid)}
    _replace(path, lambda others: [*others, own])
    try:
        yield
    finally:
        with suppress(OSError):
            _replace(path, list)


def live_entries(path: Path) -> Sequence[JsonObject]:
    """The entries of the processes that live, the one that began first at the beginning.

    Raises:
        OSError, UsageError: the file is there and cannot be read, or is not ours.
        ValueError: it is not such a file.
    """
    try:
        with os.fdopen(open_own(path), "rb") as file:
            document = json.loads(file.read())
    except FileNotFoundError:
        return ()
    rows = document.get("processes") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it lists no processes")
    return [row for row in rows if _lives(row)]


def _replace(path: Path, change: Callable[[Sequence[JsonObject]], Sequence[JsonObject]]) -> None:
    """Change the entries of other processes that live; without any the file is removed."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        take(folder, path.parent, _PATIENCE)
        try:
            entries = live_entries(path)
        except ValueError:
            entries = ()
        left = change([one for one in entries if one.get("pid") != os.getpid()])
        if not left:
            path.unlink(missing_ok=True)
            return
        # Who knows of one process only reads the first.
        document: dict[str, JsonValue] = {"v": 1, **left[0], "processes": list(left)}
        atomic_write(path, json_text(document).encode() + b"\n")
    finally:
        os.close(folder)


def _lives(entry: JsonObject) -> bool:
    pid = entry.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user, and alive
        return True
    return entry.get("started") == _start_time(pid)


def _start_time(pid: int) -> int | None:
    """When a process began, in ticks since the start of the machine: numbers are used again."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program, in parentheses, may contain any character.
    return int(text.rpartition(")")[2].split()[_START])
