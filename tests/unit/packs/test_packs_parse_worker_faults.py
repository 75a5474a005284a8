"""The process that parses for packs ends in the middle of a call (K16)."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from e2e_project import wait_gone
from mcp_processes import is_alive
from pack_scenes import PackScene, opened_packs
from parse_workers import stopped, wait_asked, workers_below

ARGUMENTS = {"path": ".", "name": "found"}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["py"], root) as scene:
        scene.put("a.py", "found = 1\n")
        yield scene


def asked(scene: PackScene) -> "Future[Any]":
    return scene.portal.start_task_soon(scene.pack.call, "py_find_usages", ARGUMENTS)


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["asked", "while it is asked"])
def test_a_child_killed_in_the_middle_of_a_call_ends_that_call_alone(
    scene: PackScene, size: int
) -> None:
    # The first call has started it.
    assert len(scene.data("py_find_usages", **ARGUMENTS)["hits"]) == 1
    scene.put("a.py", f"found = '{'x' * size}'\n")
    (worker,) = workers_below(os.getpid())
    with stopped(worker) as given:
        call = asked(scene)
        wait_asked(given)
        waiting = asked(scene)
    os.kill(worker, signal.SIGKILL)

    error = call.result(60)["structuredContent"]["error"]
    assert error["code"] == "too_slow"
    assert error["message"].startswith("parsing was stopped")
    # Who was waiting for it gets another one, and so do all after that.
    assert len(waiting.result(60)["structuredContent"]["hits"]) == 1
    assert len(scene.data("py_find_usages", **ARGUMENTS)["hits"]) == 1
    (next_worker,) = workers_below(os.getpid())
    assert next_worker != worker
    assert not is_alive(worker)


def test_a_child_killed_between_calls_is_not_noticed(scene: PackScene) -> None:
    assert len(scene.data("py_find_usages", **ARGUMENTS)["hits"]) == 1
    (worker,) = workers_below(os.getpid())
    os.kill(worker, signal.SIGKILL)
    wait_gone(worker)
    assert len(scene.data("py_find_usages", **ARGUMENTS)["hits"]) == 1


def test_a_call_that_is_cancelled_ends_its_child(scene: PackScene) -> None:
    assert len(scene.data("py_find_usages", **ARGUMENTS)["hits"]) == 1
    (worker,) = workers_below(os.getpid())
    with stopped(worker) as given:
        call = asked(scene)
        wait_asked(given)
        call.cancel()
    wait_gone(worker)
    assert len(scene.data("py_find_usages", **ARGUMENTS)["hits"]) == 1


def test_a_stopped_child_does_not_outlive_its_packs(tmp_path: Path) -> None:
    with opened_packs(["py"], tmp_path) as scene:
        scene.put("a.py", "found = 1\n")
        scene.data("py_find_usages", **ARGUMENTS)
        (worker,) = workers_below(os.getpid())
        with stopped(worker):
            pass
    assert not is_alive(worker)
    assert workers_below(os.getpid()) == []
