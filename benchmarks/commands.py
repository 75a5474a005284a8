"""Commands of packs: what the supervisor, the sandbox and the ring of a process cost."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from statistics import median

from commands_load import SIZE
from figures import PYTHON, ROOT, Bench, Row, at_most, ms

from aish.system.process.sandbox import NAMES, sandbox_report

LOAD = str(ROOT / "benchmarks" / "commands_load.py")
MEGABYTE = 1_000_000
REPORT = sandbox_report(os.environ)


def _figures(bench: Bench, measure: str, rounds: int) -> list[list[float]]:
    argv = [PYTHON, LOAD, measure, str(rounds)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    return [list(column) for column in zip(*json.loads(done.stdout), strict=True)]


def command_time(bench: Bench) -> Iterator[Row]:
    kinds = {"shell": ("`shell_run true`", 0.010)}
    if shutil.which("bwrap") is not None:
        kinds["bubblewrap"] = ("`shell_run true` in bubblewrap", 0.030)
    for measure, (name, most) in kinds.items():
        mine, floor = map(median, _figures(bench, measure, 8 * bench.rounds))
        row = at_most(f"{name}: wall, more than `sh -c true`", mine - floor, most)
        yield Row(row.measure, ms(mine), ms(floor), mine / floor, f"+ {ms(most)}", row.met)


def server_start(bench: Bench) -> Iterator[Row]:
    """What a sandbox adds to the start of a server."""
    for kind, problem in (("bubblewrap", REPORT.bubblewrap), ("landlock", REPORT.landlock)):
        if problem:
            continue
        mine, floor = map(median, _figures(bench, f"server {kind}", 8 * bench.rounds))
        name = f"start of a server in {NAMES[kind]}: wall, more than without"
        row = at_most(name, mine - floor, 0.030)
        yield Row(row.measure, ms(mine), ms(floor), mine / floor, f"+ {ms(0.030)}", row.met)


def server_request(bench: Bench) -> Iterator[Row]:
    """What the relay of a sandbox adds to a request over a new connection."""
    if not REPORT.bubblewrap:
        mine, floor = map(median, _figures(bench, "relay", bench.rounds))
        row = at_most("a server's request to a listed host: wall, more", mine - floor, 0.001)
        yield Row(row.measure, ms(mine), ms(floor), mine / floor, f"+ {ms(0.001)}", row.met)


def command_ring(bench: Bench) -> Iterator[Row]:
    seconds, floor, taken = _figures(bench, "ring", bench.rounds)
    speed, alone = SIZE / MEGABYTE / median(seconds), SIZE / MEGABYTE / median(floor)
    name, least = "100 MB of output of a background process", 200
    yield Row(
        f"{name}: wall, and an `os.read` loop",
        f"{speed:,.0f} MB/s",
        f"{alone:,.0f} MB/s",
        None,
        f">= {least} MB/s",
        speed >= least,
    )
    yield at_most(f"{name}: added memory", max(taken), 4 * 2**20, lambda n: f"{n / 2**20:.1f} MiB")
