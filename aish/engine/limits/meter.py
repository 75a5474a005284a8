"""The meter of a run (B8, B10): what each request and call uses, priced, counted and bounded."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import anyio

from aish.config.model import Limits
from aish.core.errors import BudgetError
from aish.core.events import NOWHERE, Place
from aish.core.frozen import frozen
from aish.core.messages import Finish, Usage
from aish.core.phrases import dollars, plural
from aish.core.protocols import Meter
from aish.engine.limits.budget import (
    Budget,
    Kind,
    Lease,
    Need,
    Over,
    Reserved,
    Spent,
    Wait,
    Wanted,
    tightest,
)
from aish.engine.plan.plan import Plan
from aish.models.pricing import Pricing, pricing_of

if TYPE_CHECKING:
    from aish.engine.resume_state import ResumeState, SpentBefore

_BYTES_PER_TOKEN = 4
_NOUNS: Mapping[Kind, str] = {
    "turns": "turn",
    "tokens": "token",
    "tool_calls": "tool call",
}
_OPTIONS: Mapping[Kind, str] = {"turns": "--max-turns", "cost_usd": "--max-cost-usd"}


class RunMeter:
    """`core.protocols.Meter` of one run; `prices` are by model alias.

    A request that does not fit beside those under way waits for them: they may use less than they
    might. So what a limit allows does not depend on how much runs at the same time. What is run in
    a session counts for the meter of the session, `above`, as well.
    """

    def __init__(
        self,
        budget: Budget,
        prices: Mapping[str, Pricing | None],
        above: "RunMeter | None" = None,
    ) -> None:
        self.budget = budget
        self._prices = prices
        self._above = above
        self._freed: anyio.Event | None = None

    async def reserve(
        self, place: Place, alias: str, size: int, max_tokens: int | None
    ) -> "RequestHold":
        """Set aside what a request may use; waits while others hold what it needs.

        Raises:
            BudgetError: a limit does not allow for it.
        """
        return await self.reserve_at(self._prices.get(alias), place, size, max_tokens)

    def inner(self, plan: Plan) -> "InnerMeter":
        """The same, to a sub-pipeline."""
        return InnerMeter(self, prices_of(plan))

    def know(self, plan: Plan) -> None:
        """Take in the prices of models that are opened later."""
        self._prices = {**self._prices, **prices_of(plan)}

    async def reserve_at(
        self, pricing: Pricing | None, place: Place, size: int, max_tokens: int | None
    ) -> "RequestHold":
        """As `reserve`, for a model of that price.

        Raises:
            BudgetError: a limit does not allow for it.
        """
        need = Need(turns=1)
        if self.budget.weighs(place.step):
            need = _worst(pricing, size, max_tokens)
        hold = RequestHold(self, await self.reserved(place.step, need), pricing)
        if self._above is not None:
            try:
                hold.above = await self._above.reserve_at(pricing, NOWHERE, size, max_tokens)
            except BudgetError as error:
                raise _of_session(error) from error
            finally:
                if hold.above is None:
                    hold.close(begun=False)
        return hold

    async def reserved(self, step: str | None, need: Need) -> Reserved:
        """Set `need` aside; waits while others hold it.

        Raises:
            BudgetError: a limit does not allow for it.
        """
        while True:
            found = self.budget.reserve(step, need)
            match found:
                case Reserved():
                    return found
                case Over():
                    await self.refuse(found, Wanted(step, need))
                case Wait():
                    await self._until_freed()

    async def refuse(self, over: Over, wanted: Wanted) -> None:  # ruff: ignore[no-self-use] - a meter of a lease waits here
        """What is wanted does not fit; returns where it is to be tried again.

        Raises:
            BudgetError: it never will.
        """
        del wanted
        raise _error(over)

    async def _until_freed(self) -> None:
        self._freed = self._freed or anyio.Event()
        await self._freed.wait()

    async def count_call(self, place: Place) -> None:
        """A tool is about to be called.

        Raises:
            BudgetError: a limit does not allow for it.
        """
        need = Need(tool_calls=1)
        self.settle(await self.reserved(place.step, need), need)
        if self._above is not None:
            try:
                await self._above.count_call(NOWHERE)
            except BudgetError as error:
                raise _of_session(error) from error

    async def lend(self, step: str, parts: int, wanted: Wanted | None = None) -> Lease:
        """A lease for `step`, as of `Budget.lend`; waits while others hold what is wanted.

        Raises:
            BudgetError: a limit does not allow for what is wanted.
        """
        while True:
            found = self.budget.lend(step, parts, wanted)
            match found:
                case Lease():
                    return found
                case Over():
                    raise _error(found)
                case Wait():
                    await self._until_freed()

    def take_back(self, lease: Lease, spent: Mapping[str | None, Spent]) -> None:
        """A lease is over, and others may go on with what is left of it."""
        self.budget.take_back(lease, spent)
        self._free()

    def settle(self, reserved: Reserved, used: Need) -> None:
        """What a request has used is known, and others may go on."""
        self.budget.settle(reserved, used)
        self._free()

    def _free(self) -> None:
        if self._freed is not None:
            self._freed.set()
            self._freed = None


def _error(over: Over) -> BudgetError:
    return BudgetError(limit_text(over), hint=limit_hint(over))


def _of_session(error: BudgetError) -> BudgetError:
    """A limit that is not the run's own says so."""
    return BudgetError(f"{error.message} (in the session that runs it)", hint=error.hint)


def _worst(pricing: Pricing | None, size: int, max_tokens: int | None) -> Need:
    if max_tokens is None:
        return Need(turns=1, tokens=None, cost_usd=None)
    read = -(-size // _BYTES_PER_TOKEN)
    cost = None if pricing is None else pricing.cost(Usage(read, max_tokens))
    return Need(turns=1, tokens=read + max_tokens, cost_usd=cost)


@frozen
class InnerMeter:
    """The run's meter to a sub-pipeline, whose models have aliases of their own."""

    meter: RunMeter
    prices: Mapping[str, Pricing | None]

    def inner(self, plan: Plan) -> "InnerMeter":
        """The same, to a sub-pipeline of this one."""
        return self.meter.inner(plan)

    async def reserve(
        self, place: Place, alias: str, size: int, max_tokens: int | None
    ) -> "RequestHold":
        """As `RunMeter.reserve`."""
        return await self.meter.reserve_at(self.prices.get(alias), place, size, max_tokens)

    async def count_call(self, place: Place) -> None:
        """As `RunMeter.count_call`."""
        await self.meter.count_call(place)


class RequestHold:
    """`core.protocols.Hold`: what one request may use, of the run and of what is `above` it."""

    __slots__ = ("_meter", "_open", "_pricing", "_reserved", "above")

    def __init__(self, meter: RunMeter, reserved: Reserved, pricing: Pricing | None) -> None:
        self._meter = meter
        self._reserved = reserved
        self._pricing = pricing
        self._open = True
        self.above: RequestHold | None = None

    def settle(self, finish: Finish) -> Finish:
        """The request was answered; the same finish, with what it cost."""
        usage, cost = finish.usage, finish.cost_usd
        if cost is None and self._pricing is not None:
            cost = self._pricing.cost(usage)
        known = usage.input is not None and usage.output is not None
        tokens = (usage.input or 0) + (usage.output or 0) if known else None
        self.end(Need(turns=1, tokens=tokens, cost_usd=cost))
        return finish if cost == finish.cost_usd else replace(finish, cost_usd=cost)

    def close(self, *, begun: bool) -> None:
        """The request is over; does nothing after `settle`.

        One that had `begun` to be answered is spent at its worst. It was no turn, though.
        """
        if begun:
            self.end(Need(tokens=None, cost_usd=None))
        else:
            self.end(Need())

    def end(self, used: Need) -> None:
        """The request has used this; once."""
        if self._open:
            self._open = False
            self._meter.settle(self._reserved, used)
            if self.above is not None:
                self.above.end(used)


class PlanMeter(Meter, Protocol):
    """The meter of a plan, whose sub-pipelines have models of their own."""

    def inner(self, plan: Plan) -> "PlanMeter":
        """The same, to a sub-pipeline."""
        ...


def open_meter(
    plan: Plan, carried: "ResumeState | None" = None, above: RunMeter | None = None
) -> RunMeter:
    """The meter of a run, which goes on counting where a part of it before this one stopped."""
    prices = prices_of(plan)
    bounded = dict(_bounds(plan))
    if carried is None:
        return RunMeter(Budget(plan.limits, bounded), prices, above)
    before = {id: _spent(one) for id, one in carried.by_step.items()}
    spent = _spent(carried.spent)
    return RunMeter(Budget(plan.limits, bounded, spent=spent, steps_spent=before), prices, above)


def prices_of(plan: Plan) -> Mapping[str, Pricing | None]:
    """The price of each model that the plan opens itself."""
    return {alias: pricing_of(resolved.entry) for alias, resolved in plan.models.items()}


def _bounds(plan: Plan, prefix: str = "") -> Iterator[tuple[str, Limits]]:
    """The limits of each step; those of a sub-pipeline's file hold for the step that runs it."""
    for step in plan.steps:
        inner = plan.inner.get(step.id)
        own = step.flow.limits
        yield prefix + step.id, own if inner is None else tightest(own, inner.limits)
        if inner is not None:
            yield from _bounds(inner, f"{prefix}{step.id}/")


def _spent(one: "SpentBefore") -> Spent:
    tokens = one.tokens_in + one.tokens_out
    return Spent(one.turns, tokens, one.known_usd, one.tool_calls)


def limit_text(over: Over) -> str:
    """Which limit was reached, what was spent, and what the next request could take."""
    whose = "the limit" if over.step is None else f"the limit of the step `{over.step}`"
    if over.kind in {"turns", "tool_calls"}:
        return f"{whose} of {_shown(over.kind, over.limit)} is reached"
    limit, spent = _shown(over.kind, over.limit), _shown(over.kind, over.spent)
    if over.need is None:
        more = "what the next request could use is not known"
    elif over.kind == "tokens":
        more = f"the next request could use {_shown(over.kind, over.need)}"
    else:
        more = f"the next request could cost {_shown(over.kind, over.need)}"
    return f"{whose} of {limit} is reached: {spent} spent, and {more}"


def limit_hint(over: Over) -> str:
    """How to go on."""
    key = f"`limits.{over.kind}`"
    if over.step is not None:
        return f"raise {key} of the step; `--resume` continues the run"
    option = f", or `{_OPTIONS[over.kind]}`" if over.kind in _OPTIONS else ""
    return f"raise {key} in the file{option}; `--resume` continues the run"


def _shown(kind: Kind, amount: float) -> str:
    if kind == "cost_usd":
        return dollars(amount)
    return f"{amount:,.0f} {plural(amount, _NOUNS[kind])}"
