"""Events of the pack `metrics`: seconds of a record and of a query of 100,000, as JSON.

    python benchmarks/metrics_load.py ROUNDS

Each round gives the mean of 200 records, through the server of the pack as a run calls it, and of
one `os.write` of such a line for each; then one query of all 100,000.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import anyio

from aish.core.events import rfc3339
from aish.core.json import JsonValue
from aish.packs.framework.pack import PackServices
from aish.packs.framework.server import OpenPacks, open_packs
from aish.packs.metrics_options import MetricsOptions
from aish.packs.parse_worker import ParseWorker
from aish.system.process.reaper import Reaper

RECORDS = 100_000
CALLS = 200
EVENT: dict[str, JsonValue] = {
    "type": "review",
    "repo": "shop",
    "agent_id": "a1",
    "duration_ms": 12.5,
    "data": {"n": 1},
}


async def measured(folder: Path, rounds: int) -> list[tuple[float, ...]]:
    fill(folder / "full" / "metrics")
    reaper = Reaper()
    found: list[tuple[float, ...]] = []
    try:
        async with anyio.create_task_group() as tasks:
            services = PackServices(tasks=tasks, reaper=reaper, worker=ParseWorker(reaper))
            full, empty = (
                open_packs(
                    ["metrics"],
                    None,
                    services,
                    options={"metrics": MetricsOptions(folder / name)},
                )
                for name in ("full", "empty")
            )
            for _ in range(rounds + 1):
                record, floor = await recorded(empty), written(folder / "floor")
                found.append((record, floor, await queried(full)))
            await full.shutdown()
            await empty.shutdown()
    finally:
        reaper.close()
    return found[1:]  # the first one starts the thread, and fills the caches


def fill(folder: Path) -> None:
    folder.mkdir(parents=True)
    now = time.time()
    for ago in range(7):
        stamp = rfc3339(now - ago * 86_400 - 60)
        with (folder / f"{stamp[:10]}.jsonl").open("w") as file:
            for number in range(ago, RECORDS, 7):
                record = {"timestamp": stamp, **EVENT, "type": f"t{number % 20}"}
                file.write(f"{json.dumps(record)}\n")


async def recorded(packs: OpenPacks) -> float:
    begun = time.perf_counter()
    for _ in range(CALLS):
        result = await packs.call("metrics_record", EVENT)
    taken = time.perf_counter() - begun
    assert not result["isError"], result
    return taken / CALLS


def written(path: Path) -> float:
    line = f"{json.dumps(EVENT)}\n".encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    begun = time.perf_counter()
    for _ in range(CALLS):
        os.write(descriptor, line)
    taken = time.perf_counter() - begun
    os.close(descriptor)
    return taken / CALLS


async def queried(packs: OpenPacks) -> float:
    begun = time.perf_counter()
    result = await packs.call("metrics_query", {"since": "30d"})
    taken = time.perf_counter() - begun
    content = result["structuredContent"]
    assert isinstance(content, dict)
    assert content["total"] == RECORDS, result
    return taken


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(anyio.run(measured, Path(name).resolve(), int(sys.argv[1]))))


if __name__ == "__main__":
    main()
