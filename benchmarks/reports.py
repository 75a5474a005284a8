"""Reports: what the page of many items costs, and how large it is; the JUnit file of more."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from figures import AISH, PYTHON, ROOT, Bench, Row, at_most

LOAD = str(ROOT / "benchmarks" / "report_load.py")
LIVE = str(ROOT / "benchmarks" / "live_page_load.py")
RUN = "20261118T120640Z-batch-a1b2"
ITEMS = 5_000
ROWS = 50_000
MANY = 100_000


def _kept(bench: Bench, count: int) -> Path:
    """A folder of runs with one run over so many items in it."""
    runs = bench.folder / "reported"
    shutil.rmtree(runs, ignore_errors=True)
    (runs / RUN).mkdir(parents=True, mode=0o700)
    bench.cost(PYTHON, LOAD, str(runs / RUN), str(count))
    return runs


def html_report(bench: Bench) -> Iterator[Row]:
    runs, page = str(_kept(bench, ITEMS)), bench.folder / "report.html"
    report = (AISH, "runs", "report", RUN, "--run-dir", runs, "--html", str(page))
    name = f"HTML report of {ITEMS:,} items"
    yield at_most(
        f"{name}: time to write",
        bench.alone(lambda: bench.cost(*report).wall),
        5,
        lambda s: f"{s:.1f} s",
    )
    yield at_most(f"{name}: size", page.stat().st_size / 1e6, 20, lambda m: f"{m:.1f} MB")


def large_html_report(bench: Bench) -> Iterator[Row]:
    runs, page = str(_kept(bench, ROWS)), bench.folder / "report.html"
    cost = bench.cost(AISH, "runs", "report", RUN, "--run-dir", runs, "--html", str(page))
    name = f"HTML report of {ROWS:,} items"
    yield at_most(f"{name}: time to write", cost.wall, 15, lambda s: f"{s:.1f} s")
    yield at_most(f"{name}: size", page.stat().st_size / 1e6, 25, lambda m: f"{m:.1f} MB")
    yield at_most(f"{name}: peak", cost.peak, 250, lambda m: f"{m:.0f} MiB")


def live_page(bench: Bench) -> Iterator[Row]:
    page = bench.folder / "live.html"
    bench.cost(PYTHON, LIVE, str(page))
    name = "page of 50 cases, 4 models, 8 runs: size"
    yield at_most(name, page.stat().st_size / 1e6, 6, lambda m: f"{m:.1f} MB")


def junit_report(bench: Bench) -> Iterator[Row]:
    runs, file = str(_kept(bench, MANY)), bench.folder / "junit.xml"
    cost = bench.cost(AISH, "runs", "report", RUN, "--run-dir", runs, "--junit", str(file))
    shutil.rmtree(runs)
    yield at_most(f"JUnit report of {MANY:,} items: peak", cost.peak, 300, lambda m: f"{m:.0f} MiB")
