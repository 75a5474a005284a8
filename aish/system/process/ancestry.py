"""Tells whether a process was started by another one, directly or not."""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from aish.system.process.reaper_process import MARK

_SET_CHILD_SUBREAPER = 36
_MOST_ANCESTORS = 1000
_PARENT = 1
"""Index of the parent in `/proc/PID/stat`, after the name of the program."""


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent has ended, as `init` otherwise does.

    A process below this one then stays below it: a double fork does not hide where it came from.
    """
    # Imported here, because only what listens needs it.
    import ctypes

    with contextlib.suppress(AttributeError, OSError):  # not Linux
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def is_own_process(pid: int) -> bool:
    """Return true if a process is this one, or was started by it, directly or not."""
    return descends_from(pid, os.getpid())


def descends_from(pid: int, ancestor: int, marks: Collection[str] = ()) -> bool:
    """Return true if `pid` is `ancestor` or below it, or was started with one of the marks.

    A process that left its parents behind (`setsid`, a double fork) is found by the mark in the
    environment that it was started with. What cannot be examined counts as a descendant.
    """
    prefixes = [f"{MARK}={mark}".encode() for mark in marks]
    current = pid
    for _ in range(_MOST_ANCESTORS):
        if current == ancestor:
            return True
        if current <= 1:
            return pid <= 0  # a process that this one cannot see, as of another namespace
        try:
            if _is_marked(current, prefixes, readable=current == pid):
                return True
            text = Path(f"/proc/{current}/stat").read_text(encoding="utf-8", errors="replace")
            # The name of the program, in parentheses, may contain any character.
            current = int(text.rpartition(")")[2].split()[_PARENT])
        except (OSError, ValueError, IndexError):  # it has ended, or is closed to us
            return True
    return True


def _is_marked(pid: int, prefixes: Collection[bytes], *, readable: bool) -> bool:
    """Search its environment for a mark; processes above may belong to other users."""
    if not prefixes:
        return False
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        if readable:
            raise
        return False
    return any(line.startswith(mark) for line in block.split(b"\0") for mark in prefixes)
