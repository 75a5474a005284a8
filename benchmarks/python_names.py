"""Following names through Python code: usages and subclasses over the standard library."""

import json
import subprocess
from collections.abc import Iterator
from statistics import median

from figures import PYTHON, ROOT, Bench, Row, at_most

LOAD = str(ROOT / "benchmarks" / "python_names_load.py")
USAGES, HIERARCHY = 0.8, 1.5


def python_names(bench: Bench) -> Iterator[Row]:
    argv = [PYTHON, LOAD, str(bench.rounds)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    found = {name: median(seconds) for name, seconds in json.loads(done.stdout).items()}
    for name, target in (
        ("usages of a name: first call", USAGES),
        ("usages of `self`, 5,000 of them", USAGES),
        ("subclasses of `Exception`: first call", HIERARCHY),
        ("subclasses of `Exception`, and all of theirs", HIERARCHY),
    ):
        yield at_most(f"standard library, {name}", found[name], target, lambda s: f"{s:.2f} s")
