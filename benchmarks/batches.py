"""Many prompts: the wall of a batch, the CPU of many streams, the memory of a hundred thousand."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from endpoint import Endpoint, Script
from figures import AISH, FLOOR, PYTHON, ROOT, Bench, Row, against, at_most, pipeline

_MANY = 100_000
_ROWS = 1_000_000
_MEMORY_SECONDS = 0.25
SUPPORT = str(ROOT / "tests" / "support")

if TYPE_CHECKING:
    from model_endpoint import Recorded, Reply


def _items(bench: Bench, count: int) -> Path:
    path = bench.folder / f"items-{count}.jsonl"
    if not path.exists():
        lines = (json.dumps({"id": n, "text": f"text number {n}"}) for n in range(count))
        path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _batch(bench: Bench, name: str, url: str, items: Path, concurrency: int) -> str:
    step: dict[str, object] = {
        "prompt": "Say {{ item.text }}",
        "foreach": {"file": items.name},
        "concurrency": concurrency,
    }
    return pipeline(bench, name, url, step=step)


def batch_wall(bench: Bench) -> Iterator[Row]:
    items = _items(bench, 500)
    with Endpoint(Script(deltas=20, per_write=20, first_byte=0.1)) as endpoint:
        file = _batch(bench, "batch", endpoint.url, items, 32)
        results = str(bench.folder / "floor-results.jsonl")
        mine, floor = bench.pairs(
            lambda: bench.cost(AISH, "run", file).wall,
            lambda: (
                bench.cost(PYTHON, FLOOR, "batch", endpoint.url, str(items), results, "32").wall
            ),
        )
    name = "500 prompts, 100 ms to the first byte, 32 at a time: wall"
    yield against(name, mine, floor, 1.25, lambda s: f"{s:.2f} s")


def batch_streams(bench: Bench) -> Iterator[Row]:
    """The difference between 1,000 and 200 calls: what starting costs is not a call's."""
    more, fewer = _items(bench, 1000), _items(bench, 200)
    with Endpoint(Script(deltas=50, pause=0.02)) as endpoint:
        files = [_batch(bench, f"streams-{n.stem}", endpoint.url, n, 200) for n in (more, fewer)]
        results = str(bench.folder / "floor-results.jsonl")

        def floor(items: Path) -> float:
            return bench.cost(PYTHON, FLOOR, "batch", endpoint.url, str(items), results, "200").cpu

        mine, least = bench.pairs(
            lambda: (
                (bench.cost(AISH, "run", files[0]).cpu - bench.cost(AISH, "run", files[1]).cpu)
                / 800
            ),
            lambda: (floor(more) - floor(fewer)) / 800,
        )
    row = at_most("200 streams at once, 50 chunks each: CPU per call", mine, 0.008)
    yield Row(row.measure, row.aish, f"{least * 1000:.1f} ms", mine / least, row.target, row.met)


def batch_memory(bench: Bench) -> Iterator[Row]:
    """One run over 100,000 items, its memory looked at four times a second."""
    items = _items(bench, _MANY)
    with Endpoint(Script(deltas=2, per_write=10)) as endpoint:
        file = _batch(bench, "many", endpoint.url, items, 32)
        endpoint.forget()
        samples: list[float] = []
        begun = time.perf_counter()
        with (bench.folder / "many.out").open("wb") as out:
            child = subprocess.Popen(
                [AISH, "run", file], cwd=bench.folder, env=bench.env, stdout=out, stderr=out
            )
            over = threading.Event()
            watcher = threading.Thread(target=_watch, args=(child.pid, over, samples))
            watcher.start()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            over.set()
            watcher.join()
        assert child.returncode == 0, f"the run ended with {child.returncode}"
        wall = time.perf_counter() - begun
        first = endpoint.times.arrived[0] - begun
    show = lambda m: f"{m:.0f} MiB"  # ruff: ignore[lambda-assignment] - twice the same
    yield at_most(f"{_MANY:,} items: peak memory", usage.ru_maxrss / 1024, 300, show)
    tenth = len(samples) // 10
    early, late = median(samples[tenth : 2 * tenth]), median(samples[-tenth:])
    yield at_most(f"{_MANY:,} items: memory grown from the second tenth on", late - early, 20, show)
    yield at_most(f"{_MANY:,} items: start to first request", first, 2, lambda s: f"{s:.2f} s")
    cpu = (usage.ru_utime + usage.ru_stime) / _MANY
    rate = f"{_MANY / wall:.0f} items/s"
    yield at_most(f"{_MANY:,} items, {rate}: CPU per item", cpu, 0.004)


_VENDOR_SECONDS = 3600.0
"""What a batch takes at a vendor that is not slow: most end within an hour."""


def batch_delivery(bench: Bench) -> Iterator[Row]:
    """100,000 items by batches of 10,000, whose provider answers as soon as it is asked.

    The overhead is the time of the run without that of the mock, as a part of an hour for each
    batch.
    """
    sys.path.insert(0, SUPPORT)
    from batch_servers import BatchServer, answer_in_words  # only here is it needed

    class Provider(BatchServer):
        seconds = 0.0

        def _choose(self, request: "Recorded") -> "Reply":
            begun = time.perf_counter()
            reply = super()._choose(request)
            self.seconds += time.perf_counter() - begun
            return reply

    items = _items(bench, _MANY)
    with Provider("chat", lambda _: answer_in_words("chat", "hello")) as provider:
        file = _batch(bench, "delivery", provider.base_url, items, 10_000)
        cost = bench.cost(AISH, "run", file, "--delivery", "batch")
    show = lambda m: f"{m:.0f} MiB"  # ruff: ignore[lambda-assignment] - as above
    name = f"{_MANY:,} items by batches"
    yield at_most(f"{name}: peak memory", cost.peak, 200, show)
    share = (cost.wall - provider.seconds) / (_VENDOR_SECONDS * len(provider.batches))
    percent = lambda part: f"{100 * part:.2f} %"  # ruff: ignore[lambda-assignment] - used twice
    yield at_most(f"{name}: more time than the provider takes", share, 0.01, percent)
    yield at_most(f"{name}: CPU per item", cost.cpu / _MANY, 0.003)


def batch_keys(bench: Bench) -> Iterator[Row]:
    """`aish plan` over a table of a million rows with a key: more than without the look at it."""
    table = bench.folder / "keys.csv"
    if not table.exists():
        with table.open("w", encoding="utf-8") as file:
            file.write("id,text\n")
            file.writelines(f"T-{n:07},text number {n}\n" for n in range(_ROWS))
    step: dict[str, object] = {
        "prompt": "Say {{ item.text }}",
        "foreach": {"file": table.name},
        "key": "item.id",
    }
    file_ = pipeline(bench, "keys", "http://127.0.0.1:9/v1", step=step)
    cost = [bench.cost(AISH, "plan", file_, "--offline") for _ in range(bench.rounds)]
    name = f"keys of {_ROWS:,} rows"
    yield at_most(f"{name}: `aish plan`, wall", median(one.wall for one in cost), 3, _seconds)
    yield at_most(f"{name}: `aish plan`, CPU", median(one.cpu for one in cost), 3, _seconds)
    peak = max(one.peak for one in cost)
    yield at_most(f"{name}: peak memory", peak, 60, lambda m: f"{m:.0f} MiB")


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def batch_journal(bench: Bench) -> Iterator[Row]:
    """What the folder of a run costs: its journal, and the results of its items."""
    items = _items(bench, 3000)
    with Endpoint(Script(deltas=2, per_write=10)) as endpoint:
        file = _batch(bench, "kept", endpoint.url, items, 32)
        kept, ephemeral = bench.pairs(
            lambda: bench.cost(AISH, "run", file).cpu,
            lambda: bench.cost(AISH, "run", file, "--ephemeral").cpu,
        )
    name = "3,000 items: more CPU per item for journal and results"
    yield at_most(name, (kept - ephemeral) / 3000, 0.001, lambda s: f"{s * 1e6:.0f} us")


def batch_messages(bench: Bench) -> Iterator[Row]:
    """What it costs to write down what is sent: a shared system text, a prompt of 4 KB an item."""
    items = _items(bench, 3000)
    step: dict[str, object] = {
        "system": "Each answer is one word, and nothing is added to it. " * 60,
        "prompt": "Read this and say what it is about. " * 110 + "{{ item.text }}",
        "foreach": {"file": items.name},
        "concurrency": 32,
    }
    with Endpoint(Script(deltas=2, per_write=10)) as endpoint:
        file = pipeline(bench, "messages", endpoint.url, step=step)
        kept, ephemeral = bench.pairs(
            lambda: bench.cost(AISH, "run", file).cpu,
            lambda: bench.cost(AISH, "run", file, "--ephemeral").cpu,
        )
    name = "3,000 items of 7 KB: more CPU per item for journal, messages and results"
    yield at_most(name, (kept - ephemeral) / 3000, 0.001, lambda s: f"{s * 1e6:.0f} us")


def _watch(pid: int, over: threading.Event, samples: list[float]) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    while not over.wait(_MEMORY_SECONDS):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
        except (OSError, IndexError):
            return
        samples.append(pages * page / 1024 / 1024)
