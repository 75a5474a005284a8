"""The pack `rag`: what a question costs, by words and by both ranks."""

import json
import subprocess
from collections.abc import Iterator
from statistics import median

from figures import PYTHON, ROOT, Bench, Row, at_most, ms

LOAD = str(ROOT / "benchmarks" / "rag_load.py")


def rag(bench: Bench) -> Iterator[Row]:
    argv = [PYTHON, LOAD, str(bench.rounds)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    lexical, hybrid = map(median, zip(*json.loads(done.stdout), strict=True))
    yield at_most("`rag_query`, 20,000 passages, `lexical`: wall", lexical, 0.005, ms)
    yield at_most("`rag_query`, 20,000 passages, `hybrid`: wall", hybrid, 0.03, ms)
