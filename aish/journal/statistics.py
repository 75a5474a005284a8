"""Figures of a live run: how long its tools and models take, and what its process uses.

For the control API, without libraries; the tool `perf_stats` has more of the process.
"""

import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Final

import anyio.lowlevel

from aish.core.events import Event, ToolFinished, TurnFinished
from aish.core.frozen import slotted
from aish.core.json import JsonObject

_MOST_NAMES = 1000
_MOST_VALUES: Final = 1000
_OTHERS = "(others)"


@slotted
class Durations:
    """Seconds that something took: number and largest of all, shares of the latest 1,000."""

    count: int = 0
    largest: float = 0.0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_VALUES))

    def add(self, seconds: float) -> None:
        self.count += 1
        self.largest = max(self.largest, seconds)
        self.latest.append(seconds)

    def plain(self) -> JsonObject | None:
        """In milliseconds: the median, what 95 of 100 stay below, and the largest."""
        if not self.latest:
            return None
        ordered = sorted(self.latest)
        return {
            "p50": _milliseconds(_share(ordered, 0.5)),
            "p95": _milliseconds(_share(ordered, 0.95)),
            "max": _milliseconds(self.largest),
        }


@slotted
class ToolFigures:
    errors: int = 0
    seconds: Durations = field(default_factory=Durations)


@slotted
class ModelFigures:
    """The answers of one model, whatever they were asked for."""

    input: int = 0
    output: int = 0
    seconds: Durations = field(default_factory=Durations)
    first_token: Durations = field(default_factory=Durations)


class Statistics:
    """The calls and answers of a run, by tool and by model."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._tools: dict[str, ToolFigures] = {}
        self._models: dict[str, ModelFigures] = {}

    def take(self, event: Event) -> None:
        match event:
            case ToolFinished():
                tool = self._tools.setdefault(_name(event.tool, self._tools), ToolFigures())
                tool.seconds.add(event.seconds)
                tool.errors += event.kind != "ok"
            case TurnFinished():
                name = _name(event.model, self._models)
                model = self._models.setdefault(name, ModelFigures())
                model.seconds.add(event.seconds)
                if event.first_token_seconds is not None:
                    model.first_token.add(event.first_token_seconds)
                model.input += event.usage.input or 0
                model.output += event.usage.output or 0
            case _:
                pass

    def plain(self) -> JsonObject:
        return {
            "tools": {
                name: {
                    "calls": one.seconds.count,
                    "errors": one.errors,
                    "duration_ms": one.seconds.plain(),
                }
                for name, one in self._tools.items()
            },
            "models": {
                name: {
                    "answers": one.seconds.count,
                    "input_tokens": one.input,
                    "output_tokens": one.output,
                    "duration_ms": one.seconds.plain(),
                    "first_token_ms": one.first_token.plain(),
                }
                for name, one in self._models.items()
            },
        }

    async def figures(self, uptime: float) -> JsonObject:
        """All figures of a run of this duration, those of its process first."""
        asked = time.monotonic()
        await anyio.lowlevel.checkpoint()
        lag = time.monotonic() - asked
        used = time.process_time() - self._cpu
        status = _status()
        memory = status.get("VmRSS")
        threads = status.get("Threads")
        return {
            "uptime_seconds": round(uptime, 3),
            "loop_lag_ms": {"now": _milliseconds(lag)},
            "cpu_percent": round(100 * used / uptime, 1) if uptime > 0 else None,
            "rss_mb": None if memory is None else round(int(memory.split()[0]) / 1024, 1),
            "threads": None if threads is None else int(threads),
            "descriptors": _count(Path("/proc/self/fd")),
            "children": _children(),
            # A run has no queue in which its calls wait.
            "queue_wait_ms": None,
            **self.plain(),
        }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _share(ordered: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _name(name: str, known: Collection[str]) -> str:
    """The name to count under: there are bounds to how many a server may invent."""
    return name if name in known or len(known) < _MOST_NAMES else _OTHERS


def _status() -> Mapping[str, str]:
    """The kernel's figures of this process; empty where there is no `/proc`."""
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _count(folder: Path) -> int | None:
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return None


def _children() -> int | None:
    """The processes that this one has started and that have not ended."""
    found = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            with suppress(FileNotFoundError):  # a thread that has just ended
                found += len((task / "children").read_text(encoding="ascii").split())
    except OSError:
        return None
    return found
