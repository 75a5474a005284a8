"""The pack `perf`: what the process of aish takes, and how long its tools and models do."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from aish.core.events import Place, Stamped, ToolDecided, ToolFinished, ToolStarted
from aish.core.json import JsonObject, JsonValue
from aish.core.text import for_line
from aish.journal.statistics import Durations, Statistics
from aish.packs.framework.pack import Marks, Older, Pack, PackContext, tool
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer, count_that_fits
from aish.system.task_group import task_group

TICK = 0.05
"""Seconds between two looks at the event loop, while the pack is open."""
_MOST_WAITING = 10_000
_MEGABYTE = 1 << 20
_MEASURES = Marks(
    read_only=True, destructive=False, idempotent=False, open_world=False, parallel=True
)


class Figures:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.cpu = time.process_time()
        self.statistics = Statistics()
        self.lag = Durations()
        self.queue = Durations()
        self.ticked = anyio.Event()
        self._approved: dict[Place, float] = {}

    def take(self, stamped: Stamped) -> None:
        """Take an event of the run: a call waits from its approval to its start."""
        event = stamped.event
        self.statistics.take(event)
        match event:
            case ToolDecided() if event.verdict in {"auto", "ask-yes"}:
                if len(self._approved) < _MOST_WAITING:
                    self._approved[event.place] = stamped.time
            case ToolStarted():
                if (approved := self._approved.pop(event.place, None)) is not None:
                    self.queue.add(max(stamped.time - approved, 0.0))
            case ToolFinished():
                self._approved.pop(event.place, None)
            case _:
                pass

    async def tick(self) -> None:
        """Measure how late the event loop is, for as long as it is not cancelled."""
        while True:
            asked = time.monotonic()
            await anyio.sleep(TICK)
            self.lag.add(max(time.monotonic() - asked - TICK, 0.0))
            self.ticked.set()


@asynccontextmanager
async def _open(context: PackContext) -> AsyncGenerator[Figures]:
    figures = Figures()
    follow = context.services.follow
    stop = follow(figures.take) if follow is not None else lambda: None
    try:
        async with task_group() as tasks:
            tasks.start_soon(figures.tick)
            yield figures
            tasks.cancel_scope.cancel()
    finally:
        stop()


@tool(
    _MEASURES,
    result={
        "uptime_seconds": "number",
        "loop_lag_ms": "object",
        "cpu_percent": "number",
        "rss_mb": "number",
        "threads": "integer",
        "descriptors": "integer",
        "children": "integer",
        "tools": "object",
        "models": "object",
        "queue_wait_ms": "object",
    },
    codes=("not_installed",),
    older={"get_ui_performance": Older()},
)
async def perf_stats(figures: Figures) -> Answer:
    """Tells what this process takes, and how long its tools and models take.

    Times are in milliseconds: the median, what 95 of 100 stay below, and the largest.
    """
    await figures.ticked.wait()
    # Children are looked for in the whole process table.
    used = await anyio.to_thread.run_sync(_process_usage)
    opened = time.monotonic() - figures.began
    cpu = time.process_time() - figures.cpu
    data: dict[str, JsonValue] = {
        **used,
        "loop_lag_ms": figures.lag.plain(),
        "cpu_percent": round(100 * cpu / opened, 1),
        **figures.statistics.plain(),
        "queue_wait_ms": figures.queue.plain(),
    }
    return Answer(_text(data), data)


def _process_usage() -> dict[str, JsonValue]:
    # Imported by the first call: listing tools does without.
    try:
        import psutil
    except ImportError as error:
        message = f"`psutil` cannot be imported ({error}); pip install 'aish-pipelines[perf]'"
        raise PackError("not_installed", message) from None
    process = psutil.Process()
    with process.oneshot():
        return {
            "uptime_seconds": round(max(time.time() - process.create_time(), 0), 3),
            "rss_mb": round(process.memory_info().rss / _MEGABYTE, 1),
            "threads": process.num_threads(),
            "descriptors": process.num_fds(),
            "children": len(process.children()),
        }


def _text(data: Mapping[str, JsonValue]) -> str:
    names = ("uptime_seconds", "cpu_percent", "rss_mb", "threads", "descriptors", "children")
    lines = [f"{name}: {data[name]}" for name in names]
    lines += [f"{name}: {_times(data[name])}" for name in ("loop_lag_ms", "queue_wait_ms")]
    for kind, count in (("tools", "calls"), ("models", "answers")):
        table = data[kind]
        assert isinstance(table, dict), "figures of names"
        lines += [_figure(kind[:-1], name, entry, count) for name, entry in table.items()]
    fitting = count_that_fits(lines)
    more = len(lines) - fitting
    return "\n".join([*lines[:fitting], *([f"[{more:,} more in the data]"] if more else [])])


def _figure(kind: str, name: str, figure: JsonValue, count: str) -> str:
    assert isinstance(figure, dict), "figures of one name"
    return f"{kind} {for_line(name)}: {figure[count]} {count}, {_times(figure['duration_ms'])}"


def _times(times: JsonValue | JsonObject) -> str:
    if not isinstance(times, Mapping):
        return "nothing yet"
    return ", ".join(f"{name} {value} ms" for name, value in times.items())


PACK = Pack(tools=(perf_stats,), root="none", lifespan=_open)
