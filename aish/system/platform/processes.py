"""Processes: their ends, their parents, and what they hide from each other."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from aish.system.platform.forms import is_portable

_PARENT, _STARTED = 1, 19
"""Indexes of the parent and the start in `/proc/PID/stat`, after the name of the program."""
_PDEATHSIG, _SET_DUMPABLE, _SET_CHILD_SUBREAPER = 1, 4, 36
_PAUSE = 0.01
_PARENT_SECONDS = 0.2


def hide_from_others() -> None:
    """Close the environment and memory of this process to others of its user; portable: nothing."""
    _prctl(_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Become the parent of descendants whose own parent has ended; portable: nothing."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Have this process end by SIGTERM when its parent does; portable: a thread looks for that."""
    if sys.platform == "linux" and not is_portable():
        _prctl(_PDEATHSIG, int(signal.SIGTERM))
        return
    import threading

    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _prctl(option: int, value: int) -> None:
    if is_portable():
        return
    # Imported here, because only runs that start processes need it.
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))


def open_end(pid: int) -> int | None:
    """A descriptor that is readable when a child has ended; portable: `None`, ask again."""
    if sys.platform == "linux" and not is_portable():
        with suppress(AttributeError, OSError):  # an old kernel
            return os.pidfd_open(pid)
    return None


def exit_code_of(pid: int) -> int | None:
    """The exit code of a child, negative for a signal; `None` while it runs.

    It is not reaped, so that its number is not used again; the portable form reaps it.
    """
    try:
        if sys.platform == "linux" and not is_portable():
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is None:
                return None
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # SIGCHLD is ignored by inheritance: the code is lost
        return 0
    return os.waitstatus_to_exitcode(status) if found else None


def signal_group(pgid: int, number: int, *, is_reaped: bool) -> None:
    """Signal a process group, whose leader may have been reaped: then its number may be another's.

    While a member lives, no process gets the number of its group.
    """
    with suppress(ProcessLookupError, PermissionError):
        if is_reaped:
            with suppress(ProcessLookupError):
                os.kill(pgid, 0)
                return
        os.killpg(pgid, number)


def wait_for_end(pid: int, seconds: float) -> None:
    """Wait for a child with a time limit, and reap it."""
    end = open_end(pid)
    deadline = time.monotonic() + seconds
    if end is not None:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        poll.poll(seconds * 1000)
        os.close(end)
    with suppress(ChildProcessError):
        while not os.waitpid(pid, os.WNOHANG)[0] and end is None and time.monotonic() < deadline:
            time.sleep(_PAUSE)


def stat_fields(pid: int | str) -> Sequence[str]:
    """The words of `/proc/PID/stat` after the name of the program.

    Raises:
        OSError: it has ended or is closed to us; in the portable form always.
    """
    if is_portable():
        raise FileNotFoundError
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # The name of the program, in parentheses, may contain any character.
    return text.rpartition(")")[2].split()


def own_age() -> float | None:
    """Seconds since this process was started; `None` if unknown, as in the portable form."""
    if sys.platform == "linux" and not is_portable():
        # Some sandboxes report 0.
        with suppress(OSError, ValueError, IndexError):
            if (ticks := int(stat_fields("self")[_STARTED])) > 0:
                since = ticks / os.sysconf("SC_CLK_TCK")
                return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since)
    return None


def count_processors() -> int:
    """The number of processors that this process may use; portable: of all."""
    if sys.platform == "linux" and not is_portable():
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def kinship() -> tuple[Callable[[int], int], Callable[[int], bytes]]:
    """Two functions: the parent of a process, and its environment, with words in the portable form.

    Both raise an `OSError` for one that has ended or is closed to us.
    """
    if not is_portable():
        return (
            lambda pid: int(stat_fields(pid)[_PARENT]),
            lambda pid: Path(f"/proc/{pid}/environ").read_bytes(),
        )
    from aish.system.platform.process_table import read_processes

    processes = read_processes()

    def look(pid: int) -> tuple[int, bytes]:
        if pid not in processes:
            raise ProcessLookupError
        return processes[pid]

    return lambda pid: look(pid)[0], lambda pid: look(pid)[1].replace(b" ", b"\0")
