"""C code: its skeleton."""

import json
import subprocess
from collections.abc import Iterator
from statistics import median

from figures import PYTHON, ROOT, Bench, Row, against

LOAD = str(ROOT / "benchmarks" / "c_code_load.py")


def c_skeleton(bench: Bench) -> Iterator[Row]:
    folder = bench.folder / "c"
    folder.mkdir()
    argv = [PYTHON, LOAD, str(folder), str(8 * bench.rounds)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    mine, floor = map(median, zip(*json.loads(done.stdout), strict=True))
    title = "`c_get_skeleton` of 10,000 lines, wall, against parsing them with tree-sitter"
    yield against(title, mine, floor, 1.5)
