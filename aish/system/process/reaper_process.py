"""The reaper's own process: kills what is registered when its pipe closes.

Run as a script by `python -I -S`; it must stay small and import little. It reads lines: `+7` adds a
group to kill, `-7` removes it; `?9` adds a pipe (by inode) whose holders are to be killed, `!9`
removes it. The pipe of a child is registered before the fork and identifies the child before its
group is known. `mX` adds a mark: processes with it in their environment are killed; `fX` a folder
that is removed; `n` and `g` remove these. Terminal signals are blocked from the start.
"""

import contextlib
import os
import signal
import sys
import time

_GRACE = 0.5
_GRACE_OF_MARKED = 1.0
_PASSES = 50
_UNDONE = {b"-": b"+", b"!": b"?", b"n": b"m", b"g": b"f"}
MARK = "AISH_PROCESS_MARK"
"""The name in the environment that a mark is the beginning of the value of."""
_STEP = 0.02


def main() -> None:
    """Process the lines, then kill."""
    os.closerange(3, 65536)
    spared = {os.getpid(), os.getppid()}
    os.chdir("/")
    noted: dict[bytes, set[bytes]] = {kind: set() for kind in (b"+", b"?", b"m", b"f")}
    rest = b""
    while chunk := os.read(0, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            kind, value = line[:1], line[1:]
            if kind in noted:
                noted[kind].add(value)
            else:
                noted[_UNDONE[kind]].discard(value)
    _kill(set(map(int, noted[b"+"])), set(map(int, noted[b"?"])), noted[b"m"], spared)
    if noted[b"f"]:
        import shutil

        for folder in noted[b"f"]:
            shutil.rmtree(folder, ignore_errors=True)


def _kill(groups: set[int], pipes: set[int], marks: set[bytes], spared: set[int]) -> None:
    asked: set[int] = set()
    grace = _GRACE_OF_MARKED if marks else _GRACE
    deadline = time.monotonic() + grace
    while groups or pipes or marks:
        holders = holders_of(pipes, spared) | processes_with_mark(marks, spared)
        last = time.monotonic() > deadline
        targets = {-group for group in groups} | holders
        for target in targets if last else targets - asked:
            _send(target, signal.SIGKILL if last else signal.SIGTERM)
            _send(target, signal.SIGCONT)
        asked |= targets
        groups = {group for group in groups if _send(-group, 0)}
        # A child between fork and exec holds no pipe yet: look again.
        if last or (not groups and not holders and time.monotonic() > deadline - grace / 2):
            break
        time.sleep(_STEP)
    for _ in range(_PASSES):  # what was forked while the others were killed
        left = processes_with_mark(marks, spared)
        if not left:
            break
        for pid in left:
            _send(pid, signal.SIGKILL)
        time.sleep(_STEP)


def _send(target: int, number: int) -> bool:
    """Signal a process, or a group by its negative number; false if it does not exist."""
    with contextlib.suppress(PermissionError):
        try:
            os.kill(target, number)
        except ProcessLookupError:
            return False
    return True


def holders_of(pipes: set[int], spared: set[int]) -> set[int]:
    """Processes with one of the pipes as their standard input, output or error.

    In the portable form none is found: children are found by their mark there.
    """
    names = {f"pipe:[{inode}]" for inode in pipes}
    pids: set[int] = set()
    for pid in _processes(spared) if pipes and not _is_portable() else ():
        for descriptor in "012":
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # ruff: ignore[os-readlink] - pathlib is too much to import
                if link in names:
                    pids.add(pid)
    return pids


def processes_with_mark(marks: set[bytes], spared: set[int]) -> set[int]:
    """Processes with one of the marks in the environment that they were started with."""
    prefixes = [f"{MARK}=".encode() + mark for mark in marks]
    if _is_portable():
        if __name__ == "__main__":
            sys.path.append(os.path.abspath(f"{__file__}/../../../.."))  # ruff: ignore[os-path-abspath] - pathlib is too much to import
        from aish.system.platform.process_table import marked_processes

        return marked_processes(prefixes, spared)
    pids: set[int] = set()
    for pid in _processes(spared) if marks else ():
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            block = _content(f"/proc/{pid}/environ")
            if any(mark in block for mark in prefixes):
                pids.add(pid)
    return pids


def _is_portable() -> bool:
    """The same as `is_portable` of `aish.system.platform.forms`, for the script.

    Where it is imported, the arguments are those of a user, and may be those of a command.
    """
    is_told = __name__ == "__main__" and "--portable" in sys.argv[1:]
    return sys.platform != "linux" or getattr(sys, "aish_portable", is_told)


def _processes(spared: set[int]) -> list[int]:
    try:
        entries = os.listdir("/proc")  # ruff: ignore[os-listdir] - pathlib is too much to import
    except OSError:
        return []
    return [int(entry) for entry in entries if entry.isdigit() and int(entry) not in spared]


def _content(path: str) -> bytes:
    with open(path, "rb") as file:  # ruff: ignore[builtin-open, read-whole-file] - pathlib is too much to import
        return file.read()


if __name__ == "__main__":
    main()
