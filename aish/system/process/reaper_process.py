"""The reaper's own process: kills what is registered when its pipe closes (M10, X8).

Run as a script by `python -I -S`; it must stay small and import little. It reads lines: `+7` adds a
group to kill, `-7` removes it; `?9` adds a pipe (by inode) whose holders are to be killed, `!9`
removes it. The pipe of a child is registered before the fork and identifies the child before its
group is known. Terminal signals are blocked from the start.
"""

import contextlib
import os
import signal
import time

_GRACE = 0.5
_STEP = 0.02


def main() -> None:
    """Process the lines, then kill."""
    os.closerange(3, 65536)
    spared = {os.getpid(), os.getppid()}
    os.chdir("/")
    groups: set[int] = set()
    pipes: set[int] = set()
    rest = b""
    while chunk := os.read(0, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _note(line, groups, pipes)
    _kill(groups, pipes, spared)


def _note(line: bytes, groups: set[int], pipes: set[int]) -> None:
    number = int(line[1:])
    match line[:1]:
        case b"+":
            groups.add(number)
        case b"-":
            groups.discard(number)
        case b"?":
            pipes.add(number)
        case _:
            pipes.discard(number)


def _kill(groups: set[int], pipes: set[int], spared: set[int]) -> None:
    """Send SIGTERM to everything, then SIGKILL."""
    asked: set[int] = set()
    deadline = time.monotonic() + _GRACE
    while groups or pipes:
        holders = holders_of(pipes, spared)
        last = time.monotonic() > deadline
        targets = {-group for group in groups} | holders
        for target in targets if last else targets - asked:
            _send(target, signal.SIGKILL if last else signal.SIGTERM)
            _send(target, signal.SIGCONT)
        asked |= targets
        groups = {group for group in groups if _send(-group, 0)}
        # A child between fork and exec holds no pipe yet: look again.
        if last or (not groups and not holders and time.monotonic() > deadline - _GRACE / 2):
            return
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
    """Processes with one of the pipes as their standard input, output or error."""
    if not pipes:
        return set()
    try:
        entries = os.listdir("/proc")  # ruff: ignore[os-listdir] - pathlib is too much to import
    except OSError:
        return set()
    names = {f"pipe:[{inode}]" for inode in pipes}
    found: set[int] = set()
    for entry in entries:
        if entry.isdigit() and int(entry) not in spared:
            for descriptor in "012":
                with contextlib.suppress(OSError):
                    link = f"/proc/{entry}/fd/{descriptor}"
                    if os.readlink(link) in names:  # ruff: ignore[os-readlink] - the same
                        found.add(int(entry))
    return found


if __name__ == "__main__":
    main()
