"""A Chromium that was started below a process: its processes, and where they are connected to."""

import os
from contextlib import suppress
from pathlib import Path

from aish.system.process.ancestry import descends_from


def browser_below(pid: int) -> int:
    """The process of the browser that a process has started."""
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        found = int(words.parent.name)
        with suppress(OSError):
            line = words.read_bytes()
            is_browser = b"--user-data-dir=" in line and b"/chromium\0" in line
            if is_browser and b"--type=" not in line and descends_from(found, pid):
                return found
    raise AssertionError("no browser")


def processes_of(session: int) -> set[int]:
    """All processes of a session."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                found.add(int(stat.parent.name))
    return found


def connections_of(session: int) -> set[str]:
    """Where the TCP connections of all processes of a session go to, as `/proc/net` spells it."""
    inodes = set()
    for pid in processes_of(session):
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(os.readlink(link))  # ruff: ignore[os-readlink] - no file
    found = set()
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{kind}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if f"socket:[{words[9]}]" in inodes:
                found.add(words[2])
    return found
