"""The pack `metrics`: what recording an event costs, and counting many."""

import json
import subprocess
from collections.abc import Iterator
from statistics import median

from figures import PYTHON, ROOT, Bench, Row, at_most, ms

LOAD = str(ROOT / "benchmarks" / "metrics_load.py")


def metrics(bench: Bench) -> Iterator[Row]:
    argv = [PYTHON, LOAD, str(bench.rounds)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    record, floor, query = map(median, zip(*json.loads(done.stdout), strict=True))
    row = at_most("`metrics_record`: wall, and one `os.write`", record, 0.0002, _fine)
    yield Row(row.measure, row.aish, _fine(floor), None, row.target, row.met)
    yield at_most("`metrics_query` of 100,000 events: wall", query, 1.5, ms)


def _fine(seconds: float) -> str:
    return f"{seconds * 1000:.3f} ms"
