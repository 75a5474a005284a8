"""Tells whether a process was started by another one, directly or not."""

import os
from collections.abc import Callable, Collection

from aish.system.platform.processes import become_subreaper, kinship
from aish.system.process.reaper_process import MARK

_MOST_ANCESTORS = 1000


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent has ended, as `init` otherwise does.

    A process below this one then stays below it: a double fork does not hide where it came from.
    """
    become_subreaper()


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
    parent_of, environment_of = kinship()
    for _ in range(_MOST_ANCESTORS):
        if current == ancestor:
            return True
        if current <= 1:
            return pid <= 0  # a process that this one cannot see, as of another namespace
        try:
            if prefixes and _is_marked(current, prefixes, environment_of, readable=current == pid):
                return True
            current = parent_of(current)
        except (OSError, ValueError, IndexError):  # it has ended, or is closed to us
            return True
    return True


def _is_marked(
    pid: int, prefixes: Collection[bytes], environment_of: Callable[[int], bytes], *, readable: bool
) -> bool:
    """Search its environment for a mark; processes above may belong to other users."""
    try:
        block = environment_of(pid)
    except PermissionError:
        if readable:
            raise
        return False
    return any(line.startswith(mark) for line in block.split(b"\0") for mark in prefixes)
