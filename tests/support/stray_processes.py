"""Processes that try to outlive what started them, and how to see that they are gone."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
from mcp_processes import is_alive, until_gone
from portable_forms import PORTABLE

PYTHON = f"{sys.executable} -I -S -c"

# Each stray writes its number to the FIFO `told` once it has got away.
STRAYS = {
    "setsid": "setsid sh -c 'echo $$ > told; exec sleep 1000' &",
    "setsid that ignores SIGTERM": (
        "setsid sh -c 'trap \"\" TERM HUP; echo $$ > told; while :; do sleep 1000; done' &"
    ),
    "double fork": (
        f"{PYTHON} '\nimport os, time\nif os.fork(): os._exit(0)\nos.setsid()\n"
        "if os.fork(): os._exit(0)\nfor n in range(3): os.close(n)\n"
        'with open("told", "w") as told: print(os.getpid(), file=told)\ntime.sleep(1000)\';'
    ),
    "a kept pipe": "(echo $(exec sh -c 'echo $PPID') > told; exec sleep 1000) &",
    "a cleared environment": (
        "setsid env -i /bin/sh -c 'echo $$ > told; exec /bin/sleep 1000' > /dev/null 2>&1 &"
    ),
}
if PORTABLE:  # nothing finds it there, as `aish doctor` says
    del STRAYS["a cleared environment"]


class Strays:
    """The FIFO that strays write their number to; kills them in the end, whatever the test did."""

    def __init__(self, folder: Path) -> None:
        # Open for both, so that neither side waits for the other.
        os.mkfifo(folder / "told")
        self._descriptor = os.open(folder / "told", os.O_RDWR | os.O_NONBLOCK)
        os.mkfifo(folder / "go")
        self._go = os.open(folder / "go", os.O_RDWR | os.O_NONBLOCK)
        self.folder = folder
        self.pids: list[int] = []

    async def next(self) -> int:
        """The number of the next stray."""
        with anyio.fail_after(60):
            await anyio.wait_readable(self._descriptor)
        self.pids += map(int, os.read(self._descriptor, 4096).split())
        return self.pids[-1]

    def host_pids(self) -> list[int]:
        """The processes that have `told` as their folder's, whatever number they see themselves."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if (entry / "cwd").samefile(self.folder):
                        found.append(int(entry.name))
        return [pid for pid in found if is_alive(pid)]

    def go(self) -> None:
        """Let a command continue that waits with `read line < go`."""
        os.write(self._go, b"go\n")

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._go)
        for pid in self.pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def strays_in(folder: Path) -> Iterator[Strays]:
    told = Strays(folder)
    yield told
    told.close()


async def gone(*pids: int) -> None:
    """Wait until these processes have ended."""
    with anyio.fail_after(60):
        for pid in pids:
            await until_gone(pid)


def children_of(pid: int) -> set[int]:
    """The children of all threads of a process; a thread that ends leaves its own to another."""
    while True:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lists = [(task / "children").read_text() for task in tasks]
            return {int(child) for children in lists for child in children.split()}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[1])
