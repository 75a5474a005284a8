"""Files that stay current: what it costs to see that none of them has changed."""

import json
import subprocess
from collections.abc import Iterator
from statistics import median

from figures import PYTHON, ROOT, Bench, Row, against, at_most

LOAD = str(ROOT / "benchmarks" / "context_load.py")
FILES = 256


def refresh(bench: Bench) -> Iterator[Row]:
    argv = [PYTHON, LOAD, str(FILES), str(20 * bench.rounds)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    mine, wall, floor = map(median, zip(*json.loads(done.stdout), strict=True))
    name = f"refresh of {FILES} unchanged files"
    yield against(f"{name}: CPU, against {FILES} `os.stat`", mine, floor, 3)
    yield at_most(f"{name}: wall", wall, 0.010)
