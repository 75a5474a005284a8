"""Files and repositories through the packs: finding, searching, editing, comparing."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from figures import PYTHON, ROOT, Bench, Row, against, at_most, ms

LOAD = str(ROOT / "benchmarks" / "files_load.py")
RG = Path(PYTHON).with_name("rg")
AGAINST = {
    "find": ("`file_find **/*.py`, 100,000 files: wall, against `os.walk`", 2.5),
    "tree": ("`dir_tree` depth 16, 100,000 files: wall, against `os.walk`", 2.5),
    "edit": ("`file_edit` in 1 MB: wall, against read, replace, fsync, rename", 3),
    "text": ("`file_search`, 50 MB in 5,000 files: wall, against `rg`", 8),
    "regex": ("`file_search` with `regex`, 50 MB in 5,000 files: wall, against `rg`", 25),
}
MORE = 0.150


def _medians(bench: Bench, measure: str) -> tuple[float, float]:
    argv = [PYTHON, LOAD, measure, str(bench.rounds), str(RG)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    mine, floor = map(median, zip(*json.loads(done.stdout), strict=True))
    return mine, floor


def file_tools(bench: Bench) -> Iterator[Row]:
    if not RG.exists():
        argv = [PYTHON, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "ripgrep"]
        subprocess.run(argv, check=True)
    for measure, (name, most) in AGAINST.items():
        yield against(name, *_medians(bench, measure), most)


def git_difference(bench: Bench) -> Iterator[Row]:
    mine, floor = _medians(bench, "diff")
    row = at_most("`git_diff` of 100 files: wall, more than `git diff`", mine - floor, MORE)
    yield Row(row.measure, ms(mine), ms(floor), mine / floor, f"+ {ms(MORE)}", row.met)
