"""Files in which processes say what they offer: an entry for each that lives.

A process lives as long as it holds the lock that its entry names, whoever asks: its number means
nothing in another container. One that was killed leaves its entry behind, and what the entry names.
Whoever reads or writes the file next passes over the entry, takes it out, and has the rest removed
by its `forget`.
"""

import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from aish.core.errors import UsageError
from aish.core.json import JsonObject, JsonValue, json_text
from aish.system.file_lock import PATIENCE, is_written, take
from aish.system.files import atomic_write, open_new, open_own
from aish.system.platform.processes import stat_fields

Forget = Callable[[JsonObject], None]
"""Removes what the entry of a process names that was killed."""
_MOMENT = 0.1
_STATE, _START = 0, 19
"""Indexes of the state and the start time in `/proc/PID/stat`, after the name of the program."""
_DEAD = frozenset("ZX")
"""States of a process that has ended, and for whose end nobody has asked yet."""


@contextmanager
def own_entry(path: Path, entry: JsonObject, forget: Forget) -> Generator[None]:
    """Keep an entry of this process in a file until the end of the block; those of others stay.

    Raises:
        OSError: it cannot be written.
    """
    pid, lock = os.getpid(), path.with_name(f".{path.name}.{token_hex(8)}.lock")
    own: JsonObject = {**entry, "pid": pid, "started": _start_time(pid), "lock": lock.name}

    def others(live: Sequence[JsonObject]) -> Sequence[JsonObject]:
        return [entry for entry in live if entry.get("lock") != lock.name]

    held = open_new(lock)
    try:
        take(held, lock)
        _replace(path, lambda live: [*others(live), own], forget, PATIENCE)
        try:
            yield
        finally:
            with suppress(OSError):
                _replace(path, others, forget, PATIENCE)
    finally:
        lock.unlink(missing_ok=True)
        os.close(held)


def live_entries(path: Path, forget: Forget) -> Sequence[JsonObject]:
    """The entries of the processes that live, the one that began first at the beginning.

    Those of others are taken out of the file, unless somebody else is writing it.

    Raises:
        OSError, UsageError: the file is there and cannot be read, or is not ours.
        ValueError: it is not such a file.
    """
    live, dead = _read(path)
    if dead:
        with suppress(OSError, UsageError):
            _replace(path, list, forget, _MOMENT)
    return live


def _read(path: Path) -> tuple[Sequence[JsonObject], Sequence[JsonObject]]:
    """The entries of the processes that live, and of those that do not."""
    try:
        with os.fdopen(open_own(path), "rb") as file:
            document = json.loads(file.read())
    except FileNotFoundError:
        return (), ()
    rows = document.get("processes") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it lists no processes")
    live = [row for row in rows if _lives(row, path.parent)]
    return live, [row for row in rows if row not in live]


def _replace(
    path: Path,
    change: Callable[[Sequence[JsonObject]], Sequence[JsonObject]],
    forget: Forget,
    patience: float,
) -> None:
    """Change the entries of the processes that live; without any the file is removed."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        take(folder, path.parent, patience)
        try:
            live, dead = _read(path)
        except ValueError:
            live, dead = (), ()
        left = change(live)
        if left:
            # Who knows of one process only reads the first.
            document: dict[str, JsonValue] = {"v": 1, **left[0], "processes": list(left)}
            atomic_write(path, json_text(document).encode() + b"\n")
        else:
            path.unlink(missing_ok=True)
    finally:
        os.close(folder)
    # Sockets are in folders that are locked too, and this may be one of them.
    for entry in dead:
        if (lock := _lock_of(entry, path.parent)) is not None:
            with suppress(OSError):
                lock.unlink(missing_ok=True)
        forget(entry)


def _lock_of(entry: JsonObject, folder: Path) -> Path | None:
    name = entry.get("lock")
    return folder / Path(name).name if isinstance(name, str) else None


def _lives(entry: JsonObject, folder: Path) -> bool:
    lock = _lock_of(entry, folder)
    if lock is None:
        return _has_process(entry)
    try:
        held = open_own(lock)
    except (OSError, UsageError):
        return False
    try:
        return is_written(held)
    finally:
        os.close(held)


def _has_process(entry: JsonObject) -> bool:
    """The same for an entry of an older version, which holds no lock."""
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
    """Return the start of a process in ticks since boot, as process ids are used again.

    `None` for one that has ended, or that cannot be looked at.
    """
    try:
        words = stat_fields(pid)
    except OSError:
        return None
    return None if words[_STATE] in _DEAD else int(words[_START])
