"""The pack `perf`: figures of this process, and of the run that it follows (K59)."""

import importlib.abc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pack_scenes import opened_packs, started_packs
from scripted_events import turn_finished

from aish.core.events import Event, Place, Stamped, ToolDecided, ToolFinished, ToolStarted
from aish.core.messages import Usage

TIMES = {"p50", "p95", "max"}


class Followed:
    """A run that is followed by one."""

    def __init__(self) -> None:
        self.readers: list[Callable[[Stamped], None]] = []

    def follow(self, reader: Callable[[Stamped], None]) -> Callable[[], None]:
        self.readers.append(reader)
        return lambda: self.readers.remove(reader)

    def tell(self, event: Event, at: float) -> None:
        for reader in self.readers:
            reader(Stamped(1, at, event))


def call(id: str) -> Place:
    return Place("ask", None, 1, id)


def decided(id: str, verdict: Any = "auto") -> ToolDecided:
    return ToolDecided(call(id), "a__b", "a", "b", {}, "", verdict, "")


@pytest.mark.requirement("K59")
def test_figures_of_this_process_are_those_of_the_system() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child,
        opened_packs(["perf"], None) as scene,
    ):
        data = scene.data("perf_stats")
        text = scene.text("perf_stats")
        assert child.stdin is not None
        child.stdin.close()

    assert set(data["loop_lag_ms"]) == TIMES
    assert 0 <= data["loop_lag_ms"]["p50"] <= data["loop_lag_ms"]["max"]
    assert data["uptime_seconds"] > 0
    assert data["cpu_percent"] >= 0
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    memory = next(line for line in lines if line.startswith("VmRSS"))
    assert data["rss_mb"] == pytest.approx(int(memory.split()[1]) / 1024, rel=0.2)
    assert data["threads"] >= 2
    assert data["descriptors"] > 3
    assert data["children"] >= 1
    assert (data["tools"], data["models"], data["queue_wait_ms"]) == ({}, {}, None)
    assert "rss_mb: " in text
    assert "queue_wait_ms: nothing yet" in text


def test_figures_of_the_run_come_from_its_events() -> None:
    run = Followed()
    with opened_packs(["perf"], None, follow=run.follow) as scene:
        scene.data("perf_stats")
        run.tell(decided("1"), 10.0)
        run.tell(ToolStarted(call("1"), "a__b"), 10.25)
        run.tell(ToolFinished(call("1"), "a__b", "ok", "", None, 0.5), 10.75)
        run.tell(decided("2", "denied"), 11.0)
        run.tell(ToolFinished(call("2"), "a__b", "denied", "", None, 0.0), 11.0)
        run.tell(ToolStarted(call("3"), "a__b"), 12.0)
        run.tell(turn_finished(Place("ask", None, 1), usage=Usage(10, 5), seconds=2.0), 13.0)
        data = scene.data("perf_stats")
        text = scene.text("perf_stats")

    assert data["queue_wait_ms"] == {"p50": 250.0, "p95": 250.0, "max": 250.0}
    assert data["tools"] == {
        "a__b": {
            "calls": 2,
            "errors": 1,
            "duration_ms": {"p50": 0.0, "p95": 500.0, "max": 500.0},
        }
    }
    (model,) = data["models"].values()
    assert (model["answers"], model["input_tokens"], model["output_tokens"]) == (1, 10, 5)
    assert "tool a__b: 2 calls, p50 0.0 ms, p95 500.0 ms, max 500.0 ms" in text
    # Closed, it follows nothing.
    assert run.readers == []


def test_a_blocked_event_loop_shows_as_lag() -> None:
    async def scene() -> float:
        async with started_packs(["perf"], None) as packs:
            await packs.call("perf_stats", {})
            subprocess.run([sys.executable, "-c", "import time; time.sleep(0.3)"], check=True)  # ruff: ignore[run-process-in-async-function] - the loop is to be blocked
            largest = 0.0
            with anyio.fail_after(60):
                while largest < 200:
                    found: Any = await packs.call("perf_stats", {})
                    largest = found["structuredContent"]["loop_lag_ms"]["max"]
            return largest

    assert anyio.run(scene) >= 200


def test_nothing_ticks_before_the_pack_opens_and_after_it_closes() -> None:
    async def scene() -> int:
        async with started_packs(["perf"], None) as packs:
            await packs.call("perf_stats", {})
        return len(anyio.get_running_tasks())

    assert anyio.run(scene) == 1


class Broken(importlib.abc.MetaPathFinder):
    """A library that is there and cannot be imported."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "psutil":
            raise ImportError("libc of another version")


def test_a_library_that_cannot_be_imported_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "psutil"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with opened_packs(["perf"], None) as scene:
        error = scene.error("perf_stats")
    assert error["code"] == "not_installed"
    assert "libc of another version" in error["message"]
    assert "pip install 'aish-pipelines[perf]'" in error["message"]
