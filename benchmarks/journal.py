"""The journal: what a record costs, and how long a long one takes to be read back."""

import shutil
from collections.abc import Iterator

from figures import PYTHON, ROOT, Bench, Row, at_most

LOAD = str(ROOT / "benchmarks" / "journal_load.py")
ITEMS = 20_000
LONG = 1_000_000


def journal_writing(bench: Bench) -> Iterator[Row]:
    def per_item() -> float:
        folder = bench.folder / "journal"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        many = bench.cost(PYTHON, LOAD, "write", str(folder), str(3 * ITEMS)).cpu
        shutil.rmtree(folder)
        folder.mkdir()
        return (many - bench.cost(PYTHON, LOAD, "write", str(folder), "3").cpu) / ITEMS

    name = "journal: 3 records an item, 1 synced: CPU per item"
    yield at_most(name, bench.alone(per_item), 0.001, lambda s: f"{s * 1e6:.0f} us")


def journal_reading(bench: Bench) -> Iterator[Row]:
    folder = bench.folder / "long-journal"
    folder.mkdir()
    bench.cost(PYTHON, LOAD, "write", str(folder), str(LONG))
    cost = bench.cost(PYTHON, LOAD, "read", str(folder), str(LONG))
    shutil.rmtree(folder)
    yield at_most("journal of 1,000,000 records: read, wall", cost.wall, 15, lambda s: f"{s:.1f} s")
    yield at_most("journal of 1,000,000 records: peak", cost.peak, 300, lambda m: f"{m:.0f} MiB")


def journal_resuming(bench: Bench) -> Iterator[Row]:
    folder = bench.folder / "batch-journal"
    folder.mkdir()
    items = str(LONG // 5)
    bench.cost(PYTHON, LOAD, "batch", str(folder), items)
    cost = bench.cost(PYTHON, LOAD, "resume", str(folder), items)
    shutil.rmtree(folder)
    name = "`--resume` of 1,000,000 records: before the first request"
    yield at_most(f"{name}, wall", cost.wall, 15, lambda s: f"{s:.1f} s")
    yield at_most(f"{name}, peak", cost.peak, 300, lambda m: f"{m:.0f} MiB")
