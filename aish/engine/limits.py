"""Limits of a run and its usage: pure, exact, and never over its limits.

budget = Budget(limits, {"notes": step_limits}, spent=before)
answer = budget.reserve("notes", Amount(tokens=5000, cost_usd=0.02))
match answer:
    case Reserved(): send, then budget.settle(answer, used) or budget.release(answer)
    case Wait(): others hold the rest; ask again when one of them is settled
    case Over(): it does not fit even if they use nothing

Money is counted in whole millionths of a millionth of a dollar, so that sums are exact.

`RunMeter` is the meter of a run: it prices, counts and bounds each request and call. `Spending` is
the ledger of what was used, by step and item, from the events of turns.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio

from aish.config.model import Limits
from aish.core.errors import BudgetError
from aish.core.events import (
    NOWHERE,
    REFUSED,
    CallCounts,
    Event,
    ItemFinished,
    Notice,
    PipelineSpent,
    Place,
    ServedLog,
    ServedModels,
    StepFinished,
    ToolDecided,
    ToolFinished,
    TurnFinished,
    TurnStarted,
)
from aish.core.frozen import frozen, replace, slotted
from aish.core.messages import Finish, Spent, Usage
from aish.core.phrases import dollars, plural
from aish.core.protocols import Meter
from aish.engine.plan.plan import Plan
from aish.models.pricing import (
    Pricing,
    as_charged,
    pricing_of,
)

Kind = Literal["turns", "tokens", "cost_usd", "tool_calls"]

_PER_DOLLAR = 10**12


@frozen
class Amount:
    """The most that a request may use, or its usage; `None` is unknown, and fits no limit."""

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
        """The usage that is assumed for a lost lease: its limits."""
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
    """An amount that may fit once other reservations are settled."""


@frozen
class Over:
    """An exceeded limit: which, of which step (`None`: the run's), and the amounts."""

    kind: Kind
    step: str | None
    limit: float
    spent: float
    need: float | None


_KINDS: tuple[Kind, ...] = ("turns", "tokens", "cost_usd", "tool_calls")
_Units = Mapping[Kind, int | None]
"""An amount in whole units; `None` is unknown."""


@slotted
class _LimitAccount:
    """A set of limits, the amount spent, and the amount reserved for requests in progress."""

    step: str | None
    limits: Mapping[Kind, int]
    spent: dict[Kind, int]
    held: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))

    def refusal(self, need: _Units) -> Over | None:
        """The first limit that is exceeded even without other reservations."""
        for kind, limit in self.limits.items():
            demand, spent = need[kind], self.spent[kind]
            if demand is None or (demand and spent + demand > limit):
                asked = None if demand is None else _plain(kind, demand)
                return Over(kind, self.step, _plain(kind, limit), _plain(kind, spent), asked)
        return None

    def is_crowded(self, need: _Units) -> bool:
        """True if it does not fit beside the reserved amount."""
        for kind, limit in self.limits.items():
            demand = need[kind]
            if demand and self.spent[kind] + self.held[kind] + demand > limit:
                return True
        return False

    def holds_for(self, step: str | None) -> bool:
        """True if the limits apply to `step`."""
        return self.step is None or (step is not None and self.step in scopes(step))

    def hold(self, need: _Units) -> None:
        for kind, units in need.items():
            self.held[kind] += units or 0

    def spend(self, used: _Units, held: _Units) -> None:
        """Count as used what was held; of what is known, so much of it as was `used`."""
        for kind, units in held.items():
            self.held[kind] -= units or 0
        for kind, units in used.items():
            self.spent[kind] += (held.get(kind) or 0) if units is None else units

    def share(self, parts: int, need: _Units) -> dict[Kind, int]:
        """A share of the rest, divided by `parts`, but at least `need`."""
        left = {
            kind: max(0, limit - self.spent[kind] - self.held[kind])
            for kind, limit in self.limits.items()
        }
        return {kind: max(rest // parts, need[kind] or 0) for kind, rest in left.items()}


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
        steps_spent: Mapping[str | None, Amount] | None = None,
    ) -> None:
        self._run = _account(None, limits, spent)
        self._limits = limits
        before = steps_spent or {}
        self._steps = {
            id: _account(id, own, before.get(id))
            for id, own in (steps or {}).items()
            if _limits_of(own)
        }

    def limit(self, step: str, limits: Limits) -> None:
        if _limits_of(limits):
            self._steps[step] = _account(step, limits, None)

    @property
    def limits(self) -> Limits:
        return self._limits

    def set_limit(self, kind: Kind, limit: float | None) -> None:
        """Change a limit of the run; what is spent and reserved stays."""
        self._limits = replace(self._limits, **{kind: limit})  # type: ignore[arg-type]  # whole, but for money
        self._run.limits = _limits_of(self._limits)

    def weighs(self, step: str | None) -> bool:
        """True if tokens or money are limited there, so that a worst case must be known."""
        for account in self._accounts(step):
            if "tokens" in account.limits or "cost_usd" in account.limits:
                return True
        return False

    def reserve(self, step: str | None, need: Amount) -> Reserved | Wait | Over:
        """Reserve `need` under every limit that applies to `step`."""
        accounts, units = self._accounts(step), _units_of(need)
        for account in accounts:
            if over := account.refusal(units):
                return over
        for account in accounts:
            if account.is_crowded(units):
                return Wait()
        for account in accounts:
            account.hold(units)
        return Reserved(step, need)

    def settle(self, reserved: Reserved, used: Amount) -> None:
        """Replace the reservation by `used`; unknown amounts count as fully used."""
        held, units = _units_of(reserved.need), _units_of(used)
        for account in self._accounts(reserved.step):
            account.spend(units, held)

    def release(self, reserved: Reserved) -> None:
        self.settle(reserved, Amount())

    def lend(self, step: str, parts: int, demand: Demand | None = None) -> Lease | Wait | Over:
        """Set aside one of `parts` of what is left for `step`; `demand` is in it."""
        needs: list[tuple[_LimitAccount, _Units]] = []
        for account in self._of_lease(step):
            applies = demand is not None and account.holds_for(demand.step)
            needs.append((account, _units_of(demand.need if applies and demand else Amount())))
        for account, need in needs:
            if over := account.refusal(need):
                return over
        if any(account.is_crowded(need) for account, need in needs):
            return Wait()
        limits: dict[str | None, Limits] = {}
        for account, need in needs:
            share = account.share(parts, need)
            account.hold(share)
            # Tokens and calls are whole, as they were.
            plain: Any = {kind: _plain(kind, units) for kind, units in share.items()}
            limits[account.step] = Limits(**plain)
        return Lease(step, limits)

    def take_back(self, lease: Lease, spent: Mapping[str | None, Amount]) -> None:
        """End a lease of which `spent` was used."""
        for account in self._of_lease(lease.step):
            used = _zero_unknown(_units_of(spent.get(account.step, Amount())))
            account.spend(used, _limits_of(lease.limits[account.step]))

    def _of_lease(self, step: str) -> Iterator[_LimitAccount]:
        """The run, the steps that `step` is in, and those within it."""
        yield from self._accounts(step)
        yield from (account for id, account in self._steps.items() if id.startswith(f"{step}/"))

    @property
    def all_spent(self) -> Mapping[str | None, Amount]:
        return {account.step: _amount_of(account) for account in (self._run, *self._steps.values())}

    @property
    def spent(self) -> Amount:
        return _amount_of(self._run)

    def _accounts(self, step: str | None) -> Sequence[_LimitAccount]:
        if step is None or not self._steps:
            return (self._run,)
        return (self._run, *(self._steps[id] for id in scopes(step) if id in self._steps))


def tightest(one: Limits, other: Limits) -> Limits:
    pairs = {f.name: (getattr(one, f.name), getattr(other, f.name)) for f in fields(Limits)}
    known = {name: [bound for bound in both if bound is not None] for name, both in pairs.items()}
    return Limits(**{name: min(bounds) for name, bounds in known.items() if bounds})


def scopes(step: str) -> Sequence[str]:
    """The steps that `outer/inner` belongs to: `outer`, then itself."""
    if "/" not in step:
        return (step,)
    parts = step.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _account(step: str | None, limits: Limits, spent: Amount | None) -> _LimitAccount:
    return _LimitAccount(step, _limits_of(limits), _zero_unknown(_units_of(spent or Amount())))


def _limits_of(limits: Limits) -> Mapping[Kind, int]:
    limits_by_kind = ((kind, _units(kind, getattr(limits, kind), up=False)) for kind in _KINDS)
    return {kind: limit for kind, limit in limits_by_kind if limit is not None}


def _units_of(amount: Amount) -> _Units:
    cost = 0 if amount.cost_usd == 0 else _units("cost_usd", amount.cost_usd, up=True)
    turns, tokens, calls = amount.turns, amount.tokens, amount.tool_calls
    return {"turns": turns, "tokens": tokens, "cost_usd": cost, "tool_calls": calls}


def _zero_unknown(units: _Units) -> dict[Kind, int]:
    return {kind: count or 0 for kind, count in units.items()}


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


def _amount_of(account: _LimitAccount) -> Amount:
    values: Any = {kind: _plain(kind, account.spent[kind]) for kind in _KINDS}
    return Amount(**values)


if TYPE_CHECKING:
    from aish.engine.resume_state import ResumeState

_BYTES_PER_TOKEN = 4
_NOUNS: Mapping[Kind, str] = {"turns": "turn", "tokens": "token", "tool_calls": "tool call"}
_OPTIONS: Mapping[Kind, str] = {"turns": "--max-turns", "cost_usd": "--max-cost-usd"}


class RunMeter:
    """`core.protocols.Meter` of one run; `prices` are by model alias.

    A request that does not fit beside those in progress waits for them, because they may use less
    than reserved. So what a limit allows does not depend on concurrency. A run in a session also
    counts for the meter of the session, `above`.
    """

    def __init__(
        self, budget: Budget, prices: Mapping[str, Pricing | None], above: "RunMeter | None" = None
    ) -> None:
        self.budget = budget
        self._prices = prices
        self._above = above
        self._freed: anyio.Event | None = None
        self.note_crowded: Callable[[int], None] = lambda _: None
        """Is told how many more tasks wait until others need less, or how many fewer."""

    async def reserve(
        self, place: Place, alias: str, size: int, max_tokens: int | None
    ) -> "RequestHold":
        """Reserve what a request may use; waits while others hold the rest of a limit.

        Raises:
            BudgetError: a limit would be exceeded.
        """
        return await self.reserve_at(self._prices.get(alias), place, size, max_tokens)

    def inner(self, plan: Plan) -> "ModelsMeter":
        return ModelsMeter(prices_of(plan), lambda _: self)

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
        hold = RequestHold(self, await self.reserve_when_free(place.step, need), pricing)
        if self._above is not None:
            try:
                hold.above = await self._above.reserve_at(pricing, NOWHERE, size, max_tokens)
            except BudgetError as error:
                raise _of_session(error) from error
            finally:
                if hold.above is None:
                    hold.close(begun=False)
        return hold

    async def reserve_when_free(self, step: str | None, need: Amount) -> Reserved:
        """Reserve `need`; waits while others hold it.

        Raises:
            BudgetError: a limit would be exceeded.
        """
        while True:
            result = self.budget.reserve(step, need)
            match result:
                case Reserved():
                    return result
                case Over():
                    await self.refuse(result, Demand(step, need))
                case Wait():
                    self.note_crowded(1)
                    try:
                        await self._wait_for_release()
                    finally:
                        self.note_crowded(-1)

    async def refuse(self, over: Over, demand: Demand) -> None:  # ruff: ignore[no-self-use] - a meter of a lease waits here
        """The amount does not fit; returns if it is to be tried again.

        Raises:
            BudgetError: it can never fit.
        """
        del demand
        raise _error(over)

    def limit(self, kind: Kind) -> float | None:
        limit: float | None = getattr(self.budget.limits, kind)
        return limit

    def set_limit(self, kind: Kind, limit: float | None) -> None:
        """Change a limit of the run, from the next request or call on; waiting ones look again."""
        self.budget.set_limit(kind, limit)
        self._free()

    async def _wait_for_release(self) -> None:
        self._freed = self._freed or anyio.Event()
        await self._freed.wait()

    async def count_call(self, place: Place) -> None:
        """A tool is about to be called.

        Raises:
            BudgetError: a limit would be exceeded.
        """
        need = Amount(tool_calls=1)
        self.settle(await self.reserve_when_free(place.step, need), need)
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
            lease = self.budget.lend(step, parts, demand)
            match lease:
                case Lease():
                    return lease
                case Over():
                    raise _error(lease)
                case Wait():
                    await self._wait_for_release()

    def take_back(self, lease: Lease, spent: Mapping[str | None, Amount]) -> None:
        """End a lease; others may use what is left of it."""
        self.budget.take_back(lease, spent)
        self._free()

    def settle(self, reserved: Reserved, used: Amount) -> None:
        """Book the actual usage of a request, and let waiting requests continue."""
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
    cost = None if pricing is None else pricing.most(read, max_tokens)
    return Amount(turns=1, tokens=read + max_tokens, cost_usd=cost)


@frozen
class ModelsMeter:
    """The meter for models with aliases of their own, as of a sub-pipeline; `at` counts them."""

    prices: Mapping[str, Pricing | None]
    at: Callable[[Place], RunMeter]

    def inner(self, plan: Plan) -> "ModelsMeter":
        return ModelsMeter(prices_of(plan), self.at)

    async def reserve(
        self, place: Place, alias: str, size: int, max_tokens: int | None
    ) -> "RequestHold":
        return await self.at(place).reserve_at(self.prices.get(alias), place, size, max_tokens)

    async def count_call(self, place: Place) -> None:
        await self.at(place).count_call(place)


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
        pricing = as_charged(self._pricing, in_batch=finish.in_batch)
        if cost is None and pricing is not None:
            cost = pricing.cost(usage, finish.long_written or 0)
        known = usage.input is not None and usage.output is not None
        tokens = (usage.input or 0) + (usage.output or 0) if known else None
        self.end(Amount(turns=1, tokens=tokens, cost_usd=cost))
        return finish if cost == finish.cost_usd else replace(finish, cost_usd=cost)

    def close(self, *, begun: bool) -> None:
        """End the reservation; does nothing after `settle`.

        If `begun`, the worst case counts as used, but not as a turn.
        """
        self.end(Amount(tokens=None, cost_usd=None) if begun else Amount())

    def end(self, used: Amount) -> None:
        """Record the usage of the request, once."""
        if self._open:
            self._open = False
            self._meter.settle(self._reserved, used)
            if self.above is not None:
                self.above.end(used)


class PlanMeter(Meter, Protocol):
    """The meter of a plan whose sub-pipelines have models of their own."""

    def inner(self, plan: Plan) -> "PlanMeter": ...


def open_meter(
    plan: Plan, resume_state: "ResumeState | None" = None, above: RunMeter | None = None
) -> RunMeter:
    """The meter of a run, which continues from the usage of its earlier parts."""
    prices = prices_of(plan)
    bounded = dict(_bounds(plan))
    if resume_state is None:
        return RunMeter(Budget(plan.limits, bounded), prices, above)
    before = {id: _amount_before(totals) for id, totals in resume_state.by_step.items()}
    spent = _amount_before(resume_state.spent)
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


def _amount_before(spent: Spent) -> Amount:
    usage = spent.usage or Usage()
    tokens = (usage.input or 0) + (usage.output or 0)
    return Amount(spent.turns, tokens, spent.known_usd, spent.tool_calls)


def limit_text(over: Over) -> str:
    """Names the limit, what was spent, and what the next request could take."""
    whose = "the limit" if over.step is None else f"the limit of the step `{over.step}`"
    if over.kind in {"turns", "tool_calls"}:
        return f"{whose} of {_amount_text(over.kind, over.limit)} is reached"
    limit, spent = _amount_text(over.kind, over.limit), _amount_text(over.kind, over.spent)
    if over.need is None:
        more = "what the next request could use is not known"
    elif over.kind == "tokens":
        more = f"the next request could use {_amount_text(over.kind, over.need)}"
    else:
        more = f"the next request could cost {_amount_text(over.kind, over.need)}"
    return f"{whose} of {limit} is reached: {spent} spent, and {more}"


def limit_hint(over: Over) -> str:
    key = f"`limits.{over.kind}`"
    if over.need is not None and over.need > over.limit and over.kind in {"tokens", "cost_usd"}:
        whose = "" if over.step is None else " of the step"
        return (
            f"no such request fits: allow shorter answers by `max_tokens` in `params` of the model"
            f" or the step, or raise {key}{whose}"
        )
    if over.step is not None:
        return f"raise {key} of the step; `--resume` continues the run"
    option = f", or `{_OPTIONS[over.kind]}`" if over.kind in _OPTIONS else ""
    return f"raise {key} in the file{option}; `--resume` continues the run"


def _amount_text(kind: Kind, amount: float) -> str:
    if kind == "cost_usd":
        return dollars(amount)
    return f"{amount:,.0f} {plural(amount, _NOUNS[kind])}"


_NOTHING = Spent()
_ONE_TURN = Spent(turns=1)
_COUNTED = frozenset({PipelineSpent, ToolDecided, ToolFinished, TurnFinished, TurnStarted}) | {
    ItemFinished,
    StepFinished,
}
_Unit = tuple[str | None, str]


@slotted
class Spending:
    """The ledger of a run: what its items in flight, its steps and the whole have used.

    Its `calls` and `denials` are those of the whole run; `earlier` is the usage of earlier parts.
    `bits` are those that an output of a step loses labels with, or one of its items.
    """

    steps: dict[str | None, Spent] = field(default_factory=dict)
    items: dict[_Unit, Spent] = field(default_factory=dict)
    whole: Spent = _NOTHING
    earlier: Spent = _NOTHING
    calls: CallCounts = CallCounts()
    denials: dict[str, int] = field(default_factory=dict)
    bits: Mapping[tuple[type[Event], str], int] = field(default_factory=dict)
    released_bits: int = 0
    served: ServedLog = field(default_factory=ServedLog)

    def take(self, event: Event) -> Notice | None:
        """Count a call, a denial or a turn; one without an answer is a turn too.

        Returns what is to be told of it.
        """
        if event.__class__ not in _COUNTED:
            return None
        match event:
            case ToolFinished():
                self.calls = self.calls.plus(event.kind, event.exit_code)
            case ToolDecided() if event.verdict in REFUSED:
                self.denials[event.tool] = self.denials.get(event.tool, 0) + 1
            case TurnStarted(place=place):
                self.add(_ONE_TURN, place.step, place.item)
            case TurnFinished(place=place, usage=usage, cost_usd=cost):
                used = Spent(usage=usage, cost_usd=cost, known_usd=cost or 0.0)
                self.add(used, place.step, place.item)
                mixed = self.served.add(place.step, event.model, event.served)
                return None if mixed is None else Notice(place, "warning", *served_mixed(mixed))
            case StepFinished() | ItemFinished() if self.bits and event.output is not None:
                self.released_bits += self.bits.get((type(event), event.place.step or ""), 0)
            case PipelineSpent():
                self.whole = self.whole.plus(Spent(event.turns, event.usage, event.cost_usd))
            case _:
                pass
        return None

    def add(self, used: Spent, step: str | None, item: str | None = None) -> None:
        """Count usage for the run, for the step and the steps around it, and for the item."""
        self.whole = self.whole.plus(used)
        for id in (None,) if step is None else scopes(step):
            self.steps[id] = self.steps.get(id, _NOTHING).plus(used)
        if item is not None:
            self.items[step, item] = self.items.get((step, item), _NOTHING).plus(used)

    def begin(self, earlier: "ResumeState") -> None:
        """Count the usage and the calls of earlier parts of the run."""
        self.earlier, self.calls = earlier.spent, earlier.calls
        self.denials |= earlier.denials
        self.served = ServedLog(earlier.served)
        for (kind, step), bits in self.bits.items():
            items = earlier.items.get(step) if kind is ItemFinished else None
            self.released_bits += bits * (items.ok if items else step in earlier.steps)

    @property
    def total(self) -> Spent:
        return self.earlier.plus(self.whole)

    def carry(self, place: Place, used: Spent) -> None:
        """Count what an earlier part of the run has used for this unit; not for the whole."""
        if place.item is None:
            self.steps[place.step] = self.of(place).plus(used)
        else:
            self.items[place.step, place.item] = self.of(place).plus(used)

    def of(self, place: Place) -> Spent:
        """The usage of the step or item at `place`; a step includes its items."""
        if place.item is None:
            return self.steps.get(place.step, _NOTHING)
        return self.items.get((place.step, place.item), _NOTHING)

    def forget(self, place: Place) -> None:
        if place.item is not None:
            self.items.pop((place.step, place.item), None)


def served_mixed(served: ServedModels) -> tuple[str, str]:
    """The code and the text of a warning: two models have answered under one alias."""
    first, second, *_ = served.names
    text = f"model `{served.alias}`: `{first}` has answered, and `{second}` too"
    return "served_mixed", text


def answer_usage(usage: Usage, cost_usd: float | None, turns: int = 1) -> Spent:
    """The usage of an answer of an earlier part; tokens that it did not report count as none."""
    known = replace(usage, input=usage.input or 0, output=usage.output or 0) if turns else None
    return Spent(turns, known, cost_usd, known_usd=cost_usd or 0.0)
