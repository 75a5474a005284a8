"""Commands and the output of a process through the packs, beside the system's own: JSON.

    python benchmarks/commands_load.py MEASURE ROUNDS

`shell` and `bubblewrap`: seconds of `shell_run true`, and of `sh -c true` by `subprocess.run`.
`ring`: seconds of 100 MB through the ring of a process, and through an `os.read` loop, and the
bytes of memory that the ring took.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from aish.packs.command_options import ProcOptions, ShellOptions
from aish.packs.framework.pack import PackServices
from aish.packs.framework.server import OpenPacks, open_packs
from aish.packs.parse_worker import ParseWorker
from aish.system.process.reaper import Reaper

SIZE = 100_000_000


async def opened(measure: str, rounds: int, root: Path) -> list[tuple[float, ...]]:
    reaper = Reaper()
    try:
        async with anyio.create_task_group() as tasks:
            services = PackServices(
                tasks=tasks, reaper=reaper, worker=ParseWorker(reaper), environ=dict(os.environ)
            )
            sandbox: Any = "bubblewrap" if measure == "bubblewrap" else "off"
            options = {"shell": ShellOptions(sandbox=sandbox), "proc": ProcOptions(sandbox="off")}
            packs = open_packs(["shell", "proc"], root, services, options=options)
            await packs.start()
            figures = ring if measure == "ring" else commands
            found = await figures(packs, rounds)
            await packs.shutdown()
    finally:
        reaper.close()
    return found


async def commands(packs: OpenPacks, rounds: int) -> list[tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        result = await packs.call("shell_run", {"command": "true"})
        between = time.perf_counter()
        subprocess.run(["sh", "-c", "true"], check=True)  # ruff: ignore[run-process-in-async-function] - nothing else runs
        assert not result["isError"], result
        found.append((between - begun, time.perf_counter() - between))
    return found[1:]  # the first one starts the supervisor, and tries the sandbox


async def ring(packs: OpenPacks, rounds: int) -> list[tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    await through_ring(packs, 1000)
    for _ in range(rounds):
        before = peak()
        begun = time.perf_counter()
        await through_ring(packs, SIZE)
        between = time.perf_counter()
        taken = peak() - before
        read_alone()
        found.append((between - begun, time.perf_counter() - between, taken))
    return found


def peak() -> int:
    """The most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def flood(size: int) -> list[str]:
    return ["sh", "-c", f"head -c {size} /dev/zero; echo end"]


async def through_ring(packs: OpenPacks, size: int) -> None:
    command, *args = flood(size)
    started: Any = await packs.call("process_start", {"command": command, "args": args})
    id = started["structuredContent"]["id"]
    arguments = {"id": id, "wait_seconds": 30, "wait_for": "end\n", "since": size}
    result: Any = await packs.call("process_output", arguments)
    assert result["structuredContent"]["found"], result


def read_alone() -> None:
    with subprocess.Popen(flood(SIZE), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while os.read(process.stdout.fileno(), 1 << 16):
            pass


def main() -> None:
    measure, rounds = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(anyio.run(opened, measure, rounds, Path(name).resolve())))


if __name__ == "__main__":
    main()
