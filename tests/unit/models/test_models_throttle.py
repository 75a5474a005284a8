"""How much an endpoint is asked at a time (B4): the limit itself, and many turns under it."""

import asyncio
from collections import Counter
from typing import Any

import anyio
import pytest
from busy_endpoint import Busy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from model_endpoint import ModelEndpoint
from model_turns import a_model, a_request, an_entry, text_of, turn
from waits import longest_wait

from aish.config.model import ModelTimeout, RetryPolicy
from aish.core.messages import Delta, Retrying, StreamNotice
from aish.models.client import Turn
from aish.models.retry import Advice
from aish.models.throttle import Slot, Throttle, Throttles

ORIGIN = "http://127.0.0.1:1"


async def slots(throttle: Throttle, count: int) -> list[Slot]:
    taken = [await throttle.slot() for _ in range(count)]
    for slot in taken:
        slot.mark_sent()
    return taken


@pytest.mark.anyio
async def test_nobody_waits_before_the_endpoint_says_that_it_has_too_many() -> None:
    throttle = Throttle(ORIGIN)

    await slots(throttle, 1000)

    assert throttle.limit is None
    assert throttle.in_flight == 1000


@pytest.mark.anyio
async def test_requests_that_were_in_flight_together_halve_the_limit_once() -> None:
    throttle = Throttle(ORIGIN)

    for slot in await slots(throttle, 32):
        slot.mark_refused()
        slot.free()

    assert throttle.limit == 16


@pytest.mark.anyio
async def test_a_refusal_after_a_cut_cuts_again_and_never_below_one() -> None:
    throttle = Throttle(ORIGIN)

    limits = []
    for slot in await slots(throttle, 5):
        slot.mark_sent()
        slot.mark_refused()
        limits.append(throttle.limit)

    assert limits == [2, 1, 1, 1, 1]


@pytest.mark.anyio
async def test_a_round_of_answers_is_worth_one_request_more() -> None:
    throttle = Throttle(ORIGIN)
    one, *_ = held = await slots(throttle, 16)
    one.mark_refused()
    for slot in held:
        slot.free()

    limits = []
    for _ in range(4):
        held = await slots(throttle, throttle.limit or 0)
        for slot in held:
            slot.mark_answered()
        limits.append(throttle.limit)
        for slot in held:
            slot.free()

    assert limits == [9, 10, 11, 12]


@pytest.mark.anyio
async def test_a_limit_that_is_not_used_does_not_grow() -> None:
    throttle = Throttle(ORIGIN)
    one, *others = await slots(throttle, 16)
    one.mark_refused()
    for slot in (one, *others):
        slot.free()

    for _ in range(100):
        (slot,) = await slots(throttle, 1)
        slot.mark_answered()
        slot.free()

    assert throttle.limit == 8


@pytest.mark.anyio
async def test_where_nothing_is_to_be_learnt_there_is_no_limit() -> None:
    throttle = Throttles(adaptive=False).of(ORIGIN)

    for slot in await slots(throttle, 8):
        slot.mark_refused()

    assert throttle.limit is None
    assert throttle.news(0.0) is None


@pytest.mark.anyio
async def test_the_limit_is_told_of_when_it_falls_and_when_it_is_over_and_seldom_between() -> None:
    throttle = Throttle(ORIGIN)
    told: list[str] = []

    def listen(now: float) -> None:
        if (said := throttle.news(now)) is not None:
            told.append(said.text)

    held = await slots(throttle, 32)
    for slot in held:
        slot.mark_refused()
        listen(0.0)
        slot.free()
    for now in range(1, 60):
        held = await slots(throttle, throttle.limit or 32)
        for slot in held:
            slot.mark_answered()
            listen(now)
            slot.free()

    assert told[0] == f"{ORIGIN}: 16 at a time from now on; it has too many"
    assert told[-1] == f"{ORIGIN}: no limit to requests at a time any more"
    assert len(told) < 8


class Users(RuleBasedStateMachine):
    """Tasks take slots, give them back, are refused, answered, cancelled, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = anyio.from_thread.start_blocking_portal(backend="asyncio")
        self.portal = self.runner.__enter__()
        self.throttle = Throttle(ORIGIN)
        self.held: list[Slot] = []
        self.waiting: list[tuple[int, Any]] = []
        self.asked = 0
        self.served: list[int] = []

    def teardown(self) -> None:
        self.portal.call(self._cancel_all)
        self.runner.__exit__(None, None, None)

    async def _cancel_all(self) -> None:
        for _, task in self.waiting:
            task.cancel()
        await anyio.lowlevel.checkpoint()

    def _settle(self) -> None:
        self.portal.call(self._turns)
        for number, task in list(self.waiting):
            if task.done():
                self.waiting.remove((number, task))
                if not task.cancelled():
                    self.held.append(task.result())
                    self.served.append(number)

    async def _turns(self) -> None:
        for _ in range(4):
            await anyio.lowlevel.checkpoint()

    @rule()
    def ask(self) -> None:
        def begin() -> None:
            self.waiting.append((self.asked, asyncio.ensure_future(self.throttle.slot())))

        self.asked += 1
        self.portal.call(begin)
        self._settle()

    @precondition(lambda self: self.held)
    @rule(
        which=st.integers(0, 50),
        how=st.sampled_from(["mark_answered", "mark_refused", "mark_sent", "left"]),
    )
    def use(self, which: int, how: str) -> None:
        slot = self.held[which % len(self.held)]
        if how == "mark_sent":
            slot.mark_sent()
            return

        def end() -> None:
            if how != "left":
                getattr(slot, how)()
            slot.free()
            slot.free()

        self.held.remove(slot)
        self.portal.call(end)
        self._settle()

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 50), freed=st.sampled_from(["none", "before", "after"]))
    def cancel(self, which: int, freed: str) -> None:
        _, task = self.waiting[which % len(self.waiting)]
        # A slot may be on its way to the very task that is cancelled.
        slot = self.held.pop() if self.held and freed != "none" else None

        def end() -> None:
            if slot is not None and freed == "before":
                slot.free()
            task.cancel()
            if slot is not None:
                slot.free()

        self.portal.call(end)
        self._settle()

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        assert self.throttle.in_flight == len(self.held)
        assert self.throttle.waiting == len(self.waiting)

    @invariant()
    def the_limit_is_at_least_one_and_nobody_waits_without_need(self) -> None:
        limit = self.throttle.limit
        assert limit is None or limit >= 1
        if self.waiting:
            assert limit is not None
            assert len(self.held) >= limit

    @invariant()
    def first_come_first_served(self) -> None:
        assert self.served == sorted(self.served)


Users.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestUsers = Users.TestCase


@given(st.integers(1, 500), st.integers(1, 60))
def test_no_number_of_rounds_leaves_the_bounds(in_flight: int, rounds: int) -> None:
    throttle = Throttle(ORIGIN)
    throttle._in_flight = throttle._peak = in_flight
    for number in range(rounds):
        before = throttle.limit
        throttle.cut(number)
        assert throttle.limit == max(1, min(before or in_flight, in_flight) // 2)


@pytest.mark.anyio
@pytest.mark.parametrize("capacity", [1, 4])
async def test_no_request_is_lost_at_an_endpoint_that_turns_most_of_them_away(
    capacity: int,
) -> None:
    busy = Busy(capacity)
    throttles = Throttles()
    answers: dict[str, list[Delta]] = {}
    with ModelEndpoint(busy) as endpoint:
        entry = an_entry(endpoint.base_url, retry=RetryPolicy(attempts=4, max_delay=0.05))
        async with a_model(entry, throttles=throttles) as model, anyio.create_task_group() as crowd:

            async def ask(word: str) -> None:
                answers[word] = await turn(model, a_request(word))

            for number in range(60):
                crowd.start_soon(ask, f"w{number}")

    assert busy.served == Counter(answers.keys())
    assert all(text_of(said) == word for word, said in answers.items())
    assert max(busy.inside) <= capacity
    assert busy.refused
    throttle = throttles.of(endpoint.origin)
    assert throttle.in_flight == throttle.waiting == 0
    notices = [d for said in answers.values() for d in said if isinstance(d, StreamNotice)]
    assert [d.code for d in notices if d.code != "cooldown"] == ["throttled"]
    assert any(isinstance(d, Retrying) for said in answers.values() for d in said)


BUSY = Advice(retry=True, cools=True, overload=True)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("advice", "beside_others", "failures"),
    [
        (BUSY, True, 4),
        (BUSY, False, 20),
        (Advice(retry=True), True, 20),
    ],
    ids=["beside others", "alone", "not for load"],
)
async def test_some_refusals_for_load_are_not_held_against_a_turn(
    advice: Advice, failures: int, *, beside_others: bool
) -> None:
    entry = an_entry("http://127.0.0.1:1/v1", retry=RetryPolicy(attempts=4))
    turn_ = Turn(a_request(), b"{}", entry)

    await anyio.lowlevel.checkpoint()
    for _ in range(20):
        turn_.count_failure(advice, beside_others=beside_others)

    assert turn_.failures == failures


def test_the_time_that_is_waited_for_a_slot_is_not_the_turns() -> None:
    entry = an_entry("http://127.0.0.1:1/v1", timeout=ModelTimeout(turn=5.0))

    async def ends() -> tuple[float, float]:
        turn_ = Turn(a_request(), b"{}", entry)
        throttle = Throttle(ORIGIN)
        (held,) = await slots(throttle, 1)
        held.mark_refused()
        before = turn_.ends
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turn_.await_untimed, throttle.slot())
            await anyio.wait_all_tasks_blocked()
            assert throttle.waiting == 1
            await anyio.sleep(0.25)
            held.free()
        return before, turn_.ends

    (before, after), waited = longest_wait(ends)

    assert waited == pytest.approx(0.25)
    assert after - before == pytest.approx(waited)
