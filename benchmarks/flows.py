"""Flows: what a decision costs that looks at all that a conversation has read."""

import json
import subprocess
from collections.abc import Iterator
from statistics import median

from figures import PYTHON, ROOT, Bench, Row, at_most

LOAD = str(ROOT / "benchmarks" / "flows_load.py")
DECISIONS, SOURCES = 1_000, 1_000


def flow_decision(bench: Bench) -> Iterator[Row]:
    argv = [PYTHON, LOAD, str(DECISIONS), str(SOURCES)]
    figures = [
        json.loads(subprocess.run(argv, env=bench.env, check=True, capture_output=True).stdout)
        for _ in range(bench.rounds)
    ]
    name = f"a decision with flows, {SOURCES:,} sources"
    seconds = median(one["same"] for one in figures)
    yield at_most(f"{name}: wall", seconds, 20e-6, lambda s: f"{s * 1e6:.1f} us")
