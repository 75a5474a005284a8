"""The end of processes that servers and commands have started."""

import os
from pathlib import Path

import anyio

PATIENCE = 60.0


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


async def until_gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await anyio.wait_readable(watched)
    finally:
        os.close(watched)


def is_there(pid: int) -> bool:
    """Whether there is a process, a zombie too."""
    return Path(f"/proc/{pid}").exists()


async def until_reaped(pid: int) -> None:
    """Wait until the parent of a process, which is not this one, has taken note of its end."""
    with anyio.fail_after(PATIENCE):
        while is_there(pid):  # ruff: ignore[async-busy-wait] - nothing tells of it
            await anyio.sleep(0.01)


def read_pid(path: Path) -> int:
    """The number a process wrote down; of a pipe, once it does."""
    return int(path.read_text(encoding="utf-8"))
