"""What of a run goes on, what waits for an answer, and when it is paused (A8)."""

from collections.abc import Awaitable, Callable
from math import inf

import anyio
import pytest
from waits import waits_of

from aish.agent.runtime import PausedError
from aish.core.protocols import OnAsk
from aish.engine.activity import Activity
from aish.engine.run_values import TimeLimit


def run(scene: Callable[[], Awaitable[None]]) -> None:
    anyio.run(scene)


async def waits(activity: Activity, event: anyio.Event, ended: list[str], name: str) -> None:
    try:
        await activity.wait(event, "pause")
        ended.append(f"{name} answered")
    except PausedError:
        ended.append(f"{name} paused")
    finally:
        activity.end()


def test_a_run_is_paused_once_nothing_of_it_goes_on() -> None:
    ended: list[str] = []

    async def scene() -> None:
        root = Activity()
        step, other = root.begin(), root.begin()
        items = [step.begin() for _ in range(2)]
        answer = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waits, items[0], anyio.Event(), ended, "first")
            tasks.start_soon(waits, items[1], answer, ended, "second")
            await anyio.wait_all_tasks_blocked()
            assert not root.paused.is_set()
            answer.set()
            await anyio.wait_all_tasks_blocked()
            assert (ended, root.paused.is_set()) == (["second answered"], False)
            # The other step ends; then only one item is left, and it waits.
            other.end()
        assert ended == ["second answered", "first paused"]

    run(scene)


@pytest.mark.parametrize("on_ask", ["wait", "pause"])
def test_what_waits_holds_no_slot_and_has_no_time_limit(on_ask: OnAsk) -> None:
    async def scene() -> None:
        root = Activity()
        slots = anyio.CapacityLimiter(1)
        one, busy, answer = root.begin(), root.begin(), anyio.Event()
        told: list[bool] = []
        one.on_wait = told.append
        scopes: list[anyio.CancelScope] = []

        async def work() -> None:
            await one.take_slot(slots)
            with one.within(1000) as scope:
                scopes.append(scope)
                await one.wait(answer, on_ask)
                assert slots.borrowed_tokens == 1
                assert scope.deadline < inf
            one.give_back_slot()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            assert (slots.borrowed_tokens, told, scopes[0].deadline) == (0, [True], inf)
            answer.set()
        assert told == [True, False]
        assert slots.borrowed_tokens == 0
        busy.end()

    run(scene)


@pytest.mark.parametrize("on_ask", ["wait", "pause"])
def test_what_is_made_of_parts_waits_while_all_of_them_do(on_ask: OnAsk) -> None:
    async def scene() -> None:
        root = Activity()
        busy, item = root.begin(), root.begin()
        parts = [item.begin(), item.begin()]
        answers = [anyio.Event(), anyio.Event()]
        told: list[bool] = []
        item.on_wait = told.append
        with item.within(1000) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(parts[0].wait, answers[0], on_ask)
                await anyio.wait_all_tasks_blocked()
                assert (told, scope.deadline < inf) == ([], True)
                tasks.start_soon(parts[1].wait, answers[1], on_ask)
                await anyio.wait_all_tasks_blocked()
                assert (told, scope.deadline) == ([True], inf)
                third = item.begin()
                assert (told, scope.deadline < inf) == ([True, False], True)
                third.end()
                assert told == [True, False, True]
                answers[1].set()
                await anyio.wait_all_tasks_blocked()
                parts[1].end()
                # One part is left, and it waits.
                assert told[3:] == [False, True]
                answers[0].set()
        parts[0].end()
        item.end()
        assert not told[-1]
        assert scope.deadline < inf
        busy.end()

    run(scene)


def test_a_time_limit_that_is_set_while_all_waits_runs_from_the_answer_on() -> None:
    async def scene() -> None:
        root, answer = Activity(), anyio.Event()
        limit = TimeLimit(0.1, root, spent=0.01)
        assert limit.left == pytest.approx(0.09)
        with limit.enforce() as scope:
            part = root.begin()
            async with anyio.create_task_group() as tasks:
                await anyio.sleep(0.02)
                tasks.start_soon(part.wait, answer, "wait")
                await anyio.sleep(0.1)
                limit.limit(0.05)
                assert limit.left == pytest.approx(0.02)
                assert scope.deadline == inf
                answer.set()
                await anyio.sleep(0.005)
                assert limit.left == pytest.approx(0.015)
                limit.limit(None)
                assert (limit.left, scope.deadline) == (inf, inf)
                limit.limit(0.06)
                await anyio.sleep(0.1)
        assert scope.cancelled_caught
        assert limit.seconds == pytest.approx(0.06)

    _, waited = waits_of(scene)

    assert sum(waited) == pytest.approx(0.02 + 0.1 + 0.005 + 0.025)
