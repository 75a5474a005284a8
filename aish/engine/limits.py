"""What a run may use and what it has used (B8): pure, exact, and never over its limits.

budget = Budget(limits, {"notes": step_limits}, spent=before)
answer = budget.reserve("notes", Amount(tokens=5000, cost_usd=0.02))
match answer:
    case Reserved(): send, then budget.settle(answer, used) or budget.release(answer)
    case Wait(): others hold the rest; ask again when one of them is settled
    case Over(): it does not fit even if they use nothing

Money is counted in whole millionths of a millionth of a dollar, so that sums are exact.

The meter of a run (B8, B10): what each request and call uses, priced, counted and bounded.

What each step and item has used so far, told from the events of its turns.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Literal, Protocol

import anyio

from aish.config.model import Limits
from aish.core.errors import BudgetError
from aish.core.events import (
    NOWHERE,
    REFUSED,
    CallCounts,
    Event,
    Place,
    ToolDecided,
    ToolFinished,
    TurnFinished,
    TurnStarted,
)
from aish.core.frozen import frozen, slotted
from aish.core.messages import Finish, Spent, Usage
from aish.core.phrases import dollars, plural
from aish.core.protocols import Meter
from aish.engine.plan.plan import Plan
from aish.models.pricing import Pricing, pricing_of

Kind = Literal["turns", "tokens", "cost_usd", "tool_calls"]

_PER_DOLLAR = 10**12


@frozen
class Amount:
    """What a request may use at most, or has used; `None` is unknown, and fits no limit."""

    turns: int = 0
    tokens: int | None = 0
    cost_usd: float | None = 0.0
    tool_calls: int = 0


@frozen
class Demand:
    """A `need` of a step that does not fit what is left."""

    step: str | None
    need: Amount


@frozen
class Lease:
    """A reserved part of the remaining limits, lent to a worker that counts by itself.

    It is for what happens in `step` and within it; `limits` are by step, `None` is the run's.
    """

    step: str
    limits: Mapping[str | None, Limits]

    @property
    def used_up(self) -> Mapping[str | None, Amount]:
        """The usage of a lost lease: all of it."""
        return {
            step: Amount(one.turns or 0, one.tokens or 0, one.cost_usd or 0.0, one.tool_calls or 0)
            for step, one in self.limits.items()
        }


@frozen
class Reserved:
    """Reserved under the limits of the run and of `step`; to be settled or released once."""

    step: str | None
    need: Amount


@frozen
class Wait:
    """It does not fit beside other reservations, and may fit once those are settled."""


@frozen
class Over:
    """It exceeds a limit: which, of which step (`None`: the run's), and the amounts."""

    kind: Kind
    step: str | None
    limit: float
    spent: float
    need: float | None


@slotted
class _Units:
    """Like `Amount`, in integer units."""

    turns: int = 0
    tokens: int = 0
    cost_usd: int = 0
    tool_calls: int = 0

    def add(self, other: "_Units", sign: int = 1) -> None:
        self.turns += sign * other.turns
        self.tokens += sign * other.tokens
        self.cost_usd += sign * other.cost_usd
        self.tool_calls += sign * other.tool_calls


_KINDS: tuple[Kind, ...] = tuple(one.name for one in fields(_Units))  # type: ignore[misc]  # the names are those of `Kind`


@slotted
class _Account:
    """A set of limits, the amount spent, and the amount reserved for requests in progress."""

    step: str | None
    limits: Mapping[Kind, int]
    spent: _Units = field(default_factory=_Units)
    held: _Units = field(default_factory=_Units)

    def refusal(self, need: Amount) -> Over | None:
        """The first limit that is exceeded even without other reservations."""
        for kind, limit in self.limits.items():
            demand = _units(kind, getattr(need, kind), up=True)
            spent = getattr(self.spent, kind)
            if demand is None or (demand and spent + demand > limit):
                asked = None if demand is None else _plain(kind, demand)
                return Over(kind, self.step, _plain(kind, limit), _plain(kind, spent), asked)
        return None

    def is_crowded(self, need: Amount) -> bool:
        """Whether it does not fit beside the reserved amount."""
        return any(
            (demand := _units(kind, getattr(need, kind), up=True) or 0)
            and getattr(self.spent, kind) + getattr(self.held, kind) + demand > limit
            for kind, limit in self.limits.items()
        )

    def holds_for(self, step: str | None) -> bool:
        """Whether the limits apply to `step`."""
        return self.step is None or (step is not None and self.step in scopes(step))

    def all(self) -> _Units:
        """The maximum that the limits allow."""
        return _Units(*(self.limits.get(kind, 0) for kind in _KINDS))

    def as_limits(self, amount: _Units) -> Limits:
        """An amount as limits, for the kinds that are limited here."""
        return Limits(**{kind: _plain(kind, getattr(amount, kind)) for kind in self.limits})  # type: ignore[arg-type]  # tokens and calls are whole, as they were

    def share(self, parts: int, need: Amount) -> _Units:
        """One of `parts` shares of what is left, at least the `need`."""
        found = _Units()
        for kind, limit in self.limits.items():
            left = max(0, limit - getattr(self.spent, kind) - getattr(self.held, kind))
            demand = _units(kind, getattr(need, kind), up=True) or 0
            setattr(found, kind, max(left // parts, demand))
        return found


class Budget:
    """The limits of a run and of its steps, and the remaining amounts.

    A step is named as in `Place.step`; what a step within a step uses (`outer/inner`) counts for
    both.
    """

    def __init__(
        self,
        limits: Limits,
        steps: Mapping[str, Limits] | None = None,
        *,
        spent: Amount | None = None,
        steps_spent: Mapping[str, Amount] | None = None,
    ) -> None:
        self._run = _account(None, limits, spent)
        self._limits = limits
        before = steps_spent or {}
        self._steps = {
            id: _account(id, own, before.get(id))
            for id, own in (steps or {}).items()
            if _limited(own)
        }

    def limit(self, step: str, limits: Limits) -> None:
        """Add a limit for a step, before it begins."""
        if _limited(limits):
            self._steps[step] = _account(step, limits, None)

    @property
    def limits(self) -> Limits:
        """The limits of the run."""
        return self._limits

    def bound(self, kind: Kind, limit: float | None) -> None:
        """Change a limit of the run; what is spent and reserved stays."""
        self._limits = replace(self._limits, **{kind: limit})  # type: ignore[arg-type]  # whole, but for money
        self._run.limits = _limited(self._limits)

    def weighs(self, step: str | None) -> bool:
        """Whether tokens or money are limited there, so that a worst case must be known."""
        return any(
            kind in account.limits
            for account in self._accounts(step)
            for kind in ("tokens", "cost_usd")
        )

    def reserve(self, step: str | None, need: Amount) -> Reserved | Wait | Over:
        """Reserve `need` under every limit that applies to `step`."""
        accounts = tuple(self._accounts(step))
        for account in accounts:
            if over := account.refusal(need):
                return over
        if any(account.is_crowded(need) for account in accounts):
            return Wait()
        for account in accounts:
            account.held.add(_units_of(need))
        return Reserved(step, need)

    def settle(self, reserved: Reserved, used: Amount) -> None:
        """Replace the reservation by `used`; unknown amounts count as fully used."""
        known = Amount(
            turns=used.turns,
            tokens=reserved.need.tokens if used.tokens is None else used.tokens,
            cost_usd=reserved.need.cost_usd if used.cost_usd is None else used.cost_usd,
            tool_calls=used.tool_calls,
        )
        for account in self._accounts(reserved.step):
            account.held.add(_units_of(reserved.need), -1)
            account.spent.add(_units_of(known))

    def release(self, reserved: Reserved) -> None:
        """Release an unused reservation."""
        self.settle(reserved, Amount())

    def lend(self, step: str, parts: int, demand: Demand | None = None) -> Lease | Wait | Over:
        """Set aside one of `parts` of what is left for `step`; `demand` is in it."""
        needs = [
            (
                account,
                demand.need if demand is not None and account.holds_for(demand.step) else Amount(),
            )
            for account in self._of_lease(step)
        ]
        for account, need in needs:
            if over := account.refusal(need):
                return over
        if any(account.is_crowded(need) for account, need in needs):
            return Wait()
        limits: dict[str | None, Limits] = {}
        for account, need in needs:
            share = account.share(parts, need)
            account.held.add(share)
            limits[account.step] = account.as_limits(share)
        return Lease(step, limits)

    def take_back(self, lease: Lease, spent: Mapping[str | None, Amount]) -> None:
        """End a lease of which `spent` was used."""
        for account in self._of_lease(lease.step):
            account.held.add(_account(account.step, lease.limits[account.step], None).all(), -1)
            account.spent.add(_units_of(spent.get(account.step, Amount())))

    def _of_lease(self, step: str) -> Iterator[_Account]:
        """The run, the steps that `step` is in, and those within it."""
        yield from self._accounts(step)
        yield from (one for id, one in self._steps.items() if id.startswith(f"{step}/"))

    @property
    def all_spent(self) -> Mapping[str | None, Amount]:
        """Usage of the run and of each limited step."""
        return {account.step: _spent(account) for account in (self._run, *self._steps.values())}

    @property
    def spent(self) -> Amount:
        """Usage of the run."""
        return _spent(self._run)

    def _accounts(self, step: str | None) -> Iterator[_Account]:
        yield self._run
        if step is not None and self._steps:
            for id in scopes(step):
                if (account := self._steps.get(id)) is not None:
                    yield account


def tightest(one: Limits, other: Limits) -> Limits:
    """The minimum of both limits."""
    pairs = {f.name: (getattr(one, f.name), getattr(other, f.name)) for f in fields(Limits)}
    known = {name: [bound for bound in both if bound is not None] for name, both in pairs.items()}
    return Limits(**{name: min(bounds) for name, bounds in known.items() if bounds})


def scopes(step: str) -> Iterator[str]:
    """The steps that `outer/inner` belongs to: `outer`, then itself."""
    parts = step.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _account(step: str | None, limits: Limits, spent: Amount | None) -> _Account:
    return _Account(step, _limited(limits), _units_of(spent or Amount()))


def _limited(limits: Limits) -> Mapping[Kind, int]:
    given = ((kind, _units(kind, getattr(limits, kind), up=False)) for kind in _KINDS)
    return {kind: limit for kind, limit in given if limit is not None}


def _units_of(amount: Amount) -> _Units:
    cost = _units("cost_usd", amount.cost_usd, up=True)
    return _Units(amount.turns, amount.tokens or 0, cost or 0, amount.tool_calls)


def _units(kind: Kind, value: float | None, *, up: bool) -> int | None:
    """An amount in integer units: usage is rounded up, limits are rounded down."""
    if value is None or kind != "cost_usd":
        return None if value is None else int(value)
    exact = value * _PER_DOLLAR
    near = round(exact)
    if math.isclose(exact, near, rel_tol=1e-12, abs_tol=1e-6):
        return near
    return math.ceil(exact) if up else math.floor(exact)


def _plain(kind: Kind, units: int) -> float:
    return units / _PER_DOLLAR if kind == "cost_usd" else units


def _spent(account: _Account) -> Amount:
    amount = account.spent
    cost = _plain("cost_usd", amount.cost_usd)
    return Amount(amount.turns, amount.tokens, cost, amount.tool_calls)


if TYPE_CHECKING:
    from aish.engine.resume_state import ResumeState

_BYTES_PER_TOKEN = 4
_NOUNS: Mapping[Kind, str] = {
    "turns": "turn",
    "tokens": "token",
    "tool_calls": "tool call",
}
_OPTIONS: Mapping[Kind, str] = {"turns": "--max-turns", "cost_usd": "--max-cost-usd"}


class RunMeter:
    """`core.protocols.Meter` of one run; `prices` are by model alias.

    A request that does not fit beside those in progress waits for them, because they may use less
    than reserved. So what a limit allows does not depend on concurrency. A run in a session also
    counts for the meter of the session, `above`.
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
        """Reserve what a request may use; waits while others hold the rest of a limit.

        Raises:
            BudgetError: a limit would be exceeded.
        """
        return await self.reserve_at(self._prices.get(alias), place, size, max_tokens)

    def inner(self, plan: Plan) -> "InnerMeter":
        """The meter for a sub-pipeline."""
        return InnerMeter(self, prices_of(plan))

    def know(self, plan: Plan) -> None:
        """Add the prices of models that are opened later."""
        self._prices = {**self._prices, **prices_of(plan)}

    async def reserve_at(
        self, pricing: Pricing | None, place: Place, size: int, max_tokens: int | None
    ) -> "RequestHold":
        """Like `reserve`, for a model of that price.

        Raises:
            BudgetError: a limit would be exceeded.
        """
        need = Amount(turns=1)
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

    async def reserved(self, step: str | None, need: Amount) -> Reserved:
        """Reserve `need`; waits while others hold it.

        Raises:
            BudgetError: a limit would be exceeded.
        """
        while True:
            found = self.budget.reserve(step, need)
            match found:
                case Reserved():
                    return found
                case Over():
                    await self.refuse(found, Demand(step, need))
                case Wait():
                    await self._until_freed()

    async def refuse(self, over: Over, demand: Demand) -> None:  # ruff: ignore[no-self-use] - a meter of a lease waits here
        """The amount does not fit; returns if it is to be tried again.

        Raises:
            BudgetError: it can never fit.
        """
        del demand
        raise _error(over)

    def limit(self, kind: Kind) -> float | None:
        """A limit of the run; `None` for none."""
        found: float | None = getattr(self.budget.limits, kind)
        return found

    def bound(self, kind: Kind, limit: float | None) -> None:
        """Change a limit of the run, from the next request or call on; waiting ones look again."""
        self.budget.bound(kind, limit)
        self._free()

    async def _until_freed(self) -> None:
        self._freed = self._freed or anyio.Event()
        await self._freed.wait()

    async def count_call(self, place: Place) -> None:
        """A tool is about to be called.

        Raises:
            BudgetError: a limit would be exceeded.
        """
        need = Amount(tool_calls=1)
        self.settle(await self.reserved(place.step, need), need)
        if self._above is not None:
            try:
                await self._above.count_call(NOWHERE)
            except BudgetError as error:
                raise _of_session(error) from error

    async def lend(self, step: str, parts: int, demand: Demand | None = None) -> Lease:
        """A lease for `step`, as of `Budget.lend`; waits while others hold what is wanted.

        Raises:
            BudgetError: a limit would be exceeded.
        """
        while True:
            found = self.budget.lend(step, parts, demand)
            match found:
                case Lease():
                    return found
                case Over():
                    raise _error(found)
                case Wait():
                    await self._until_freed()

    def take_back(self, lease: Lease, spent: Mapping[str | None, Amount]) -> None:
        """End a lease; others may use what is left of it."""
        self.budget.take_back(lease, spent)
        self._free()

    def settle(self, reserved: Reserved, used: Amount) -> None:
        """The usage of a request is known, and waiting requests may continue."""
        self.budget.settle(reserved, used)
        self._free()

    def _free(self) -> None:
        if self._freed is not None:
            self._freed.set()
            self._freed = None


def _error(over: Over) -> BudgetError:
    return BudgetError(limit_text(over), hint=limit_hint(over))


def _of_session(error: BudgetError) -> BudgetError:
    """Adds a remark to a limit that belongs to the session, not to the run."""
    return BudgetError(f"{error.message} (in the session that runs it)", hint=error.hint)


def _worst(pricing: Pricing | None, size: int, max_tokens: int | None) -> Amount:
    if max_tokens is None:
        return Amount(turns=1, tokens=None, cost_usd=None)
    read = -(-size // _BYTES_PER_TOKEN)
    cost = None if pricing is None else pricing.cost(Usage(read, max_tokens))
    return Amount(turns=1, tokens=read + max_tokens, cost_usd=cost)


@frozen
class InnerMeter:
    """The run's meter for a sub-pipeline, whose models have aliases of their own."""

    meter: RunMeter
    prices: Mapping[str, Pricing | None]

    def inner(self, plan: Plan) -> "InnerMeter":
        """The meter for a sub-pipeline of this one."""
        return self.meter.inner(plan)

    async def reserve(
        self, place: Place, alias: str, size: int, max_tokens: int | None
    ) -> "RequestHold":
        """See `RunMeter.reserve`."""
        return await self.meter.reserve_at(self.prices.get(alias), place, size, max_tokens)

    async def count_call(self, place: Place) -> None:
        """See `RunMeter.count_call`."""
        await self.meter.count_call(place)


class RequestHold:
    """`core.protocols.Hold`: the reservation of one request, in the run and in `above`."""

    __slots__ = ("_meter", "_open", "_pricing", "_reserved", "above")

    def __init__(self, meter: RunMeter, reserved: Reserved, pricing: Pricing | None) -> None:
        self._meter = meter
        self._reserved = reserved
        self._pricing = pricing
        self._open = True
        self.above: RequestHold | None = None

    def settle(self, finish: Finish) -> Finish:
        """The request was answered; returns the same finish with its cost."""
        usage, cost = finish.usage, finish.cost_usd
        if cost is None and self._pricing is not None:
            cost = self._pricing.cost(usage)
        known = usage.input is not None and usage.output is not None
        tokens = (usage.input or 0) + (usage.output or 0) if known else None
        self.end(Amount(turns=1, tokens=tokens, cost_usd=cost))
        return finish if cost == finish.cost_usd else replace(finish, cost_usd=cost)

    def close(self, *, begun: bool) -> None:
        """End the reservation; does nothing after `settle`.

        If `begun`, the worst case counts as used, but not as a turn.
        """
        if begun:
            self.end(Amount(tokens=None, cost_usd=None))
        else:
            self.end(Amount())

    def end(self, used: Amount) -> None:
        """Record the usage of the request, once."""
        if self._open:
            self._open = False
            self._meter.settle(self._reserved, used)
            if self.above is not None:
                self.above.end(used)


class PlanMeter(Meter, Protocol):
    """The meter of a plan whose sub-pipelines have models of their own."""

    def inner(self, plan: Plan) -> "PlanMeter":
        """The meter for a sub-pipeline."""
        ...


def open_meter(
    plan: Plan, resume_state: "ResumeState | None" = None, above: RunMeter | None = None
) -> RunMeter:
    """The meter of a run, which continues from the usage of its earlier parts."""
    prices = prices_of(plan)
    bounded = dict(_bounds(plan))
    if resume_state is None:
        return RunMeter(Budget(plan.limits, bounded), prices, above)
    before = {id: _spent_before(one) for id, one in resume_state.by_step.items()}
    spent = _spent_before(resume_state.spent)
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


def _spent_before(spent: Spent) -> Amount:
    usage = spent.usage or Usage()
    tokens = (usage.input or 0) + (usage.output or 0)
    return Amount(spent.turns, tokens, spent.known_usd, spent.tool_calls)


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
    """How to continue."""
    key = f"`limits.{over.kind}`"
    if over.step is not None:
        return f"raise {key} of the step; `--resume` continues the run"
    option = f", or `{_OPTIONS[over.kind]}`" if over.kind in _OPTIONS else ""
    return f"raise {key} in the file{option}; `--resume` continues the run"


def _shown(kind: Kind, amount: float) -> str:
    if kind == "cost_usd":
        return dollars(amount)
    return f"{amount:,.0f} {plural(amount, _NOUNS[kind])}"


_NOTHING = Spent()
_Unit = tuple[str | None, str]


@slotted
class Spending:
    """Counts usage while a unit of work is in flight, for steps that end with an error.

    Its `calls` and `denials` are those of the whole run.
    """

    steps: dict[str | None, Spent] = field(default_factory=dict)
    items: dict[_Unit, Spent] = field(default_factory=dict)
    whole: Spent = _NOTHING
    calls: CallCounts = CallCounts()
    denials: dict[str, int] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Count a call, or a turn, for its item, its step and the whole run."""
        if isinstance(event, ToolFinished):
            self.calls = self.calls.plus(event.kind, event.exit_code)
        elif isinstance(event, ToolDecided) and event.verdict in REFUSED:
            self.denials[event.tool] = self.denials.get(event.tool, 0) + 1
        if not isinstance(event, TurnStarted | TurnFinished):
            return
        step, item, used = event.place.step, event.place.item, _of(event)
        self.whole = self.whole.plus(used)
        # Usage within a step also counts for the step.
        for id in scopes(step) if step is not None else (None,):
            self.steps[id] = self.steps.get(id, _NOTHING).plus(used)
        if item is not None:
            self.items[step, item] = self.items.get((step, item), _NOTHING).plus(used)

    def begin(self, earlier: "ResumeState") -> None:
        """Count the calls of earlier parts of the run."""
        self.calls = earlier.calls
        self.denials |= earlier.denials

    def add(self, used: Spent) -> None:
        """Add external usage, for the whole run."""
        self.whole = self.whole.plus(used)

    def carry(self, place: Place, used: Spent) -> None:
        """Count what an earlier part of the run has used for this unit; not for the whole."""
        if place.item is None:
            self.steps[place.step] = self.steps.get(place.step, _NOTHING).plus(used)
        else:
            unit = (place.step, place.item)
            self.items[unit] = self.items.get(unit, _NOTHING).plus(used)

    def of(self, place: Place) -> Spent:
        """Usage of the step or item at `place`: of a step with all of its items."""
        if place.item is None:
            return self.steps.get(place.step, _NOTHING)
        return self.items.get((place.step, place.item), _NOTHING)

    def forget(self, place: Place) -> None:
        """The item has ended."""
        if place.item is not None:
            self.items.pop((place.step, place.item), None)


def _of(event: TurnStarted | TurnFinished) -> Spent:
    if isinstance(event, TurnStarted):
        return Spent(turns=1)
    return Spent(usage=event.usage, cost_usd=event.cost_usd, known_usd=event.cost_usd or 0.0)
