"""What a run may use: exact, shared by steps, and never passed (B8)."""

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aish.config.model import Limits
from aish.core.errors import BudgetError
from aish.core.events import Place
from aish.core.messages import Finish, Usage
from aish.engine.limits import (
    Amount,
    Budget,
    Demand,
    Lease,
    Over,
    Reserved,
    RunMeter,
    Wait,
    limit_hint,
    limit_text,
    scopes,
    tightest,
)
from aish.models.pricing import Rates

PLACE = Place(step="a")
STEPS = ("a", "b", "b/inner", None)

needs = st.builds(
    Amount,
    turns=st.integers(0, 2),
    tokens=st.integers(0, 40),
    cost_usd=st.integers(0, 40).map(lambda cents: cents / 100),
    tool_calls=st.integers(0, 2),
)


def within(need: Amount, part: float) -> Amount:
    """What a request came to that could have used `need`."""
    assert need.tokens is not None
    assert need.cost_usd is not None
    return Amount(
        turns=round(need.turns * part),
        tokens=int(need.tokens * part),
        cost_usd=need.cost_usd * part,
        tool_calls=round(need.tool_calls * part),
    )


class Runs(RuleBasedStateMachine):
    """Requests of several steps come and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(tokens=100, cost_usd=1.0, tool_calls=5, turns=6)
        self.of_step = Limits(tokens=60, turns=3)
        self.budget = Budget(self.limits, {"b": self.of_step, "b/inner": Limits(cost_usd=0.3)})
        self.held: list[Reserved] = []
        self.leases: list[tuple[Lease, Budget]] = []

    @rule(step=st.sampled_from(STEPS), need=needs)
    def reserve(self, step: str | None, need: Amount) -> None:
        found = self.budget.reserve(step, need)
        if isinstance(found, Reserved):
            self.held.append(found)
        elif isinstance(found, Wait):
            assert self.held or self.leases, "nobody holds what it waits for"

    @rule(parts=st.integers(1, 5), wanted=st.none() | needs)
    def lend(self, parts: int, wanted: Amount | None) -> None:
        wants = None if wanted is None else Demand("b/inner", wanted)
        found = self.budget.lend("b", parts, wants)
        if isinstance(found, Lease):
            lent = Budget(found.limits[None], {id: own for id, own in found.limits.items() if id})
            if wanted is not None:
                assert isinstance(lent.reserve("b/inner", wanted), Reserved), "it is in the lease"
                lent = Budget(
                    found.limits[None], {id: own for id, own in found.limits.items() if id}
                )
            self.leases.append((found, lent))
        elif isinstance(found, Wait):
            assert self.held or self.leases, "nobody holds what it waits for"
        else:
            assert wanted is not None, "without a wish there is always a part, if of nothing"

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), step=st.sampled_from(("b", "b/inner")), need=needs, part=st.floats(0, 1))
    def use(self, data: st.DataObject, step: str, need: Amount, part: float) -> None:
        _, lent = self.leases[data.draw(st.integers(0, len(self.leases) - 1))]
        found = lent.reserve(step, need)
        if isinstance(found, Reserved):
            lent.settle(found, within(need, part))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), lost=st.booleans())
    def take_back(self, data: st.DataObject, lost: bool) -> None:  # ruff: ignore[boolean-type-hint-positional-argument] - hypothesis names it
        lease, lent = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.budget.take_back(lease, lease.used_up if lost else lent.all_spent)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), part=st.floats(0, 1))
    def settle(self, data: st.DataObject, part: float) -> None:
        one = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.budget.settle(one, within(one.need, part))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.budget.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forfeit(self, data: st.DataObject) -> None:
        one = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.budget.settle(one, Amount(tokens=None, cost_usd=None))

    @invariant()
    def nothing_is_passed(self) -> None:
        lent = [lease.limits for lease, _ in self.leases]
        _check(self.budget.spent, self.held, self.limits, [one[None] for one in lent])
        inner = self.budget.all_spent.get("b")
        assert inner is not None
        held = [one for one in self.held if (one.step or "")[:1] == "b"]
        _check(inner, held, self.of_step, [one["b"] for one in lent])


def _check(spent: Amount, held: list[Reserved], limits: Limits, lent: list[Limits]) -> None:
    for kind in ("tokens", "cost_usd", "tool_calls", "turns"):
        limit = getattr(limits, kind)
        total = getattr(spent, kind) + sum(getattr(one.need, kind) for one in held)
        total += sum(getattr(one, kind) or 0 for one in lent)
        assert limit is None or total <= limit + 1e-9, kind


TestRuns = Runs.TestCase


def test_what_fits_exactly_fits() -> None:
    budget = Budget(Limits(cost_usd=0.3))
    for _ in range(3):
        found = budget.reserve(None, Amount(cost_usd=0.1))
        assert isinstance(found, Reserved)
        budget.settle(found, Amount(cost_usd=0.1))
    assert budget.spent.cost_usd == pytest.approx(0.3)
    over = budget.reserve(None, Amount(cost_usd=1e-9))
    assert over == Over("cost_usd", None, 0.3, 0.3, 1e-9)


def test_others_are_waited_for_only_if_they_may_leave_something() -> None:
    budget = Budget(Limits(tokens=100))
    first = budget.reserve("a", Amount(tokens=80))
    assert isinstance(first, Reserved)
    assert budget.reserve("b", Amount(tokens=50)) == Wait()
    assert budget.reserve("b", Amount(tokens=101)) == Over("tokens", None, 100, 0, 101)
    budget.settle(first, Amount(tokens=60))
    assert budget.reserve("b", Amount(tokens=50)) == Over("tokens", None, 100, 60, 50)


def test_an_unknown_worst_case_fits_no_limit_on_it_and_any_other() -> None:
    unknown = Amount(turns=1, tokens=None, cost_usd=None)
    assert isinstance(Budget(Limits(turns=1)).reserve(None, unknown), Reserved)
    assert Budget(Limits(tokens=9)).reserve(None, unknown) == Over("tokens", None, 9, 0, None)
    assert Budget(Limits(cost_usd=9)).reserve(None, unknown) == Over("cost_usd", None, 9, 0, None)


def test_free_work_fits_a_limit_of_nothing() -> None:
    assert isinstance(Budget(Limits(cost_usd=0)).reserve(None, Amount(turns=1)), Reserved)


def test_a_step_within_a_step_counts_for_both() -> None:
    assert list(scopes("a/b/c")) == ["a", "a/b", "a/b/c"]
    budget = Budget(Limits(), {"a": Limits(turns=1), "c": Limits(turns=1)})
    first = budget.reserve("a/b", Amount(turns=1))
    assert isinstance(first, Reserved)
    assert budget.reserve("a", Amount(turns=1)) == Wait()
    assert isinstance(budget.reserve("c", Amount(turns=1)), Reserved)
    budget.settle(first, Amount(turns=1))
    assert budget.reserve("a/other", Amount(turns=1)) == Over("turns", "a", 1, 1, 1)


def test_what_was_spent_before_counts() -> None:
    before = Amount(turns=3, tokens=90, cost_usd=0.5, tool_calls=2)
    budget = Budget(
        Limits(tokens=100),
        {"a": Limits(turns=4)},
        spent=before,
        steps_spent={"a": before, "gone": before},
    )
    assert budget.spent == before
    assert budget.reserve("b", Amount(tokens=11)) == Over("tokens", None, 100, 90, 11)
    found = budget.reserve("a", Amount(turns=1, tokens=10))
    assert isinstance(found, Reserved)
    budget.settle(found, Amount(turns=1, tokens=4))
    assert budget.all_spent["a"] == Amount(turns=4, tokens=94, cost_usd=0.5, tool_calls=2)
    assert budget.reserve("a", Amount(turns=1)) == Over("turns", "a", 4, 4, 1)


@given(st.floats(0, 1000), st.floats(0, 1000))
def test_the_tighter_of_two_limits_holds(one: float, other: float) -> None:
    found = tightest(Limits(cost_usd=one, turns=3), Limits(cost_usd=other, time=9))
    assert found == Limits(cost_usd=min(one, other), turns=3, time=9)


@pytest.mark.parametrize(
    ("over", "said"),
    [
        (Over("turns", None, 1, 1, 1), "the limit of 1 turn is reached"),
        (Over("tool_calls", "a", 40, 40, 1), "the limit of the step `a` of 40 tool calls"),
        (
            Over("tokens", None, 2e5, 198000, 5000),
            "200,000 tokens is reached: 198,000 tokens spent",
        ),
        (
            Over("cost_usd", None, 0.5, 0.4812, 0.03),
            "$0.50 is reached: $0.4812 spent, and the next",
        ),
        (Over("cost_usd", None, 0.5, 0, None), "what the next request could use is not known"),
    ],
)
def test_a_limit_is_named_with_what_was_spent(over: Over, said: str) -> None:
    assert said in limit_text(over)


def test_the_hint_names_the_key_and_the_option() -> None:
    assert limit_hint(Over("cost_usd", None, 1, 1, 1)).startswith(
        "raise `limits.cost_usd` in the file, or `--max-cost-usd`"
    )
    assert limit_hint(Over("tokens", "a", 1, 1, 1)).startswith("raise `limits.tokens` of the step")


def meter(limits: Limits, **prices: Any) -> RunMeter:
    return RunMeter(Budget(limits), {"m": Rates(1.0, 1.0), **prices})


def finish(read: int | None, written: int | None, cost: float | None = None) -> Finish:
    return Finish("stop", Usage(read, written), cost_usd=cost)


def test_an_answer_is_priced_where_its_provider_does_not_say() -> None:
    async def run() -> list[float | None]:
        found = meter(Limits(), free=Rates(0.0, 0.0), unknown=None)
        costs = []
        for alias, answer in (
            ("m", finish(1_000_000, 1_000_000)),
            ("m", finish(10, 10, cost=7.5)),
            ("m", finish(None, 10)),
            ("free", finish(None, None)),
            ("unknown", finish(10, 10)),
        ):
            hold = await found.reserve(PLACE, alias, 400, 100)
            costs.append(hold.settle(answer).cost_usd)
        return costs

    assert anyio.run(run) == [2.0, 7.5, None, 0.0, None]


def test_a_request_waits_for_those_that_hold_what_it_needs() -> None:
    async def run() -> list[str]:
        found = meter(Limits(tokens=300))
        order: list[str] = []

        async def another(name: str) -> None:
            hold = await found.reserve(PLACE, "m", 400, 100)
            order.append(name)
            hold.settle(finish(10, 10))

        first = await found.reserve(PLACE, "m", 400, 100)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(another, "second")
            await anyio.lowlevel.checkpoint()
            order.append("first")
            first.settle(finish(50, 50))
            first.close(begun=True)
        return order

    assert anyio.run(run) == ["first", "second"]


def test_a_broken_answer_is_charged_at_its_worst_and_a_refused_request_not_at_all() -> None:
    async def run() -> list[Amount]:
        found = meter(Limits(tokens=1000, cost_usd=1.0))
        spent = []
        for begun in (False, True):
            hold = await found.reserve(PLACE, "m", 399, 100)
            hold.close(begun=begun)
            hold.close(begun=True)
            spent.append(found.budget.spent)
        return spent

    assert anyio.run(run) == [Amount(), Amount(tokens=200, cost_usd=0.0002)]


def test_what_is_run_in_a_session_counts_for_both_and_is_bounded_by_both() -> None:
    async def run() -> tuple[list[str], Amount, Amount]:
        session = meter(Limits(turns=3, tool_calls=1))
        inner = RunMeter(Budget(Limits(turns=2)), {"m": Rates(1.0, 1.0)}, session)
        (await session.reserve(PLACE, "m", 400, 100)).settle(finish(10, 10))
        for _ in range(2):
            (await inner.reserve(PLACE, "m", 400, 100)).settle(finish(1_000_000, 0))
        await inner.count_call(PLACE)
        said = []
        for over in (inner, RunMeter(Budget(Limits()), {}, session)):
            with pytest.raises(BudgetError) as error:
                await over.reserve(PLACE, "m", 400, 100)
            said.append(error.value.message)
            with pytest.raises(BudgetError):
                await over.count_call(PLACE)
        return said, inner.budget.spent, session.budget.spent

    said, inner, session = anyio.run(run)
    assert said == [
        "the limit of 2 turns is reached",
        "the limit of 3 turns is reached (in the session that runs it)",
    ]
    assert (inner.turns, inner.cost_usd) == (2, 2.0)
    assert (session.turns, session.tool_calls, session.cost_usd) == (3, 1, 2.00002)


def test_a_request_that_a_session_does_not_allow_for_is_not_held_against_the_run() -> None:
    async def run() -> tuple[Amount, bool]:
        session = meter(Limits(tokens=300))
        inner = RunMeter(Budget(Limits(tokens=300)), {"m": Rates(1.0, 1.0)}, session)
        held = await session.reserve(PLACE, "m", 400, 100)
        with anyio.move_on_after(0) as scope:
            await inner.reserve(PLACE, "m", 400, 100)
        held.close(begun=False)
        (await inner.reserve(PLACE, "m", 400, 150)).close(begun=False)
        return inner.budget.spent, scope.cancelled_caught

    assert anyio.run(run) == (Amount(), True)
