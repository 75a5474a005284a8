"""Python code: its outline, with a warm parser and by the call that starts it."""

import json
import subprocess
from collections.abc import Iterator
from statistics import median

from figures import PYTHON, ROOT, Bench, Row, against

LOAD = str(ROOT / "benchmarks" / "python_code_load.py")
LINES = 10_000


def python_outline(bench: Bench) -> Iterator[Row]:
    folder = bench.folder / "python"
    folder.mkdir()

    def figures(what: str, rounds: int) -> tuple[float, float]:
        argv = [PYTHON, LOAD, what, str(folder), str(LINES), str(rounds)]
        done = subprocess.run(
            argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True
        )
        mine, floor = map(median, zip(*json.loads(done.stdout), strict=True))
        return mine, floor

    name = f"`py_get_code_outline` of {LINES:,} lines"
    yield against(f"{name}, warm, against `ast.parse`", *figures("warm", 4 * bench.rounds), 1.2)
    first = figures("first", bench.rounds)
    yield against(f"{name}, first call, against `python -I` doing it", *first, 2)
