"""Items on workers: the wall of a thousand calls, and what is repeated when a worker is killed.

Runs with the Python that runs the benchmarks: Dask would be in the way of what the others measure.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from endpoint import Endpoint, Script
from figures import Bench, Row, at_most, pipeline

_CALLS = 1000
_SLOTS = 32
_WORKERS = 4
_KILLED_AFTER = 400


def cluster_of_workers(bench: Bench) -> Iterator[Row]:
    if find_spec("distributed") is None:
        print("cluster_of_workers: the extra `dask` is not installed", file=sys.stderr)
        return
    items = bench.folder / f"cluster-{_CALLS}.jsonl"
    items.write_text("".join(f'{{"id": {number}}}\n' for number in range(_CALLS)))
    step: dict[str, object] = {
        "prompt": "Say {{ item.id }}",
        "foreach": {"file": items.name},
        "concurrency": _SLOTS,
    }
    with Endpoint(Script(deltas=2, per_write=2, first_byte=0.2)) as endpoint:
        file = pipeline(bench, "cluster", endpoint.url, step=step)
        wall = bench.alone(lambda: _wall(bench, endpoint, file, kill=False))
        killed = _wall(bench, endpoint, file, kill=True)
        repeated = len(endpoint.times.arrived) - _CALLS
    name = f"{_CALLS:,} calls of 200 ms, {_WORKERS} workers of {_SLOTS // _WORKERS} slots"
    seconds = lambda s: f"{s:.1f} s"  # ruff: ignore[lambda-assignment] - twice the same
    yield at_most(f"{name}: wall", wall, 12, seconds)
    yield at_most(f"{name}, one killed: wall", killed, 15, seconds)
    most = _SLOTS // _WORKERS
    yield at_most(f"{name}, one killed: calls repeated", repeated, most, lambda n: f"{n:.0f}")


def _wall(bench: Bench, endpoint: Endpoint, file: str, *, kill: bool) -> float:
    endpoint.forget()
    argv = [sys.executable, "-m", "aish", "run", file, "-q", "--cluster", f"local:{_WORKERS}"]
    begun = time.perf_counter()
    with (bench.folder / "cluster.out").open("wb") as out:
        child = subprocess.Popen(argv, cwd=bench.folder, env=bench.env, stdout=out, stderr=out)
        while kill and len(endpoint.times.arrived) < _KILLED_AFTER:
            time.sleep(0.01)
        if kill:
            os.kill(_a_worker(child.pid), signal.SIGKILL)
        assert child.wait() == 0, (bench.folder / "cluster.out").read_text()
    wall = time.perf_counter() - begun
    newest = max((bench.folder / ".aish" / "runs").iterdir())
    with (newest / "results.jsonl").open() as results:
        keys = [json.loads(line)["key"] for line in results]
    assert sorted(map(int, keys)) == list(range(_CALLS)), "each item is recorded once"
    return wall


def _a_worker(driver: int) -> int:
    children = Path(f"/proc/{driver}/task/{driver}/children").read_text("ascii").split()
    named = ((int(pid), Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in children)
    return next(pid for pid, command in named if b"local_workers" in command)
