"""What a run may use and what it has used (B8): pure, exact, and never over its limits.

    budget = Budget(limits, {"notes": step_limits}, spent=before)
    answer = budget.reserve("notes", Need(tokens=5000, cost_usd=0.02))
    match answer:
        case Reserved(): send, then budget.settle(answer, used) or budget.release(answer)
        case Wait(): others hold what is missing; ask again when one of them is settled
        case Over(): it does not fit even if they use nothing

Money is counted in whole millionths of a millionth of a dollar, so that sums are exact.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from typing import Literal

from aish.config.model import Limits
from aish.core.frozen import frozen, slotted

Kind = Literal["turns", "tokens", "cost_usd", "tool_calls"]

_PER_DOLLAR = 10**12


@frozen
class Spent:
    """What a run, or a step, has used; carried over a resume. `seconds` are not the budget's."""

    turns: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    tool_calls: int = 0
    seconds: float = 0.0


@frozen
class Need:
    """What a request may use at most; `None` is unknown, and fits no limit on it."""

    turns: int = 0
    tokens: int | None = 0
    cost_usd: float | None = 0.0
    tool_calls: int = 0


@frozen
class Wanted:
    """A `need` of a step that does not fit what is left."""

    step: str | None
    need: Need


@frozen
class Lease:
    """A part of what the limits leave, lent to a worker that counts by itself.

    It is for what happens in `step` and within it; `limits` are by step, `None` is the run's.
    """

    step: str
    limits: Mapping[str | None, Limits]

    @property
    def used_up(self) -> Mapping[str | None, Spent]:
        """What was spent of it where nobody knows: all of it."""
        return {
            step: Spent(one.turns or 0, one.tokens or 0, one.cost_usd or 0.0, one.tool_calls or 0)
            for step, one in self.limits.items()
        }


@frozen
class Reserved:
    """Set aside under the limits of the run and of `step`; to be settled or released once."""

    step: str | None
    need: Need


@frozen
class Wait:
    """It does not fit beside what others hold, and may fit once they have used less."""


@frozen
class Over:
    """It fits a limit no more: which, whose (`None`: the run's), and the amounts."""

    kind: Kind
    step: str | None
    limit: float
    spent: float
    need: float | None


@slotted
class _Amount:
    """As `Spent`, in whole units."""

    turns: int = 0
    tokens: int = 0
    cost_usd: int = 0
    tool_calls: int = 0

    def add(self, other: "_Amount", sign: int = 1) -> None:
        for one in _KINDS:
            setattr(self, one, getattr(self, one) + sign * getattr(other, one))


_KINDS: tuple[Kind, ...] = tuple(one.name for one in fields(_Amount))  # type: ignore[misc]  # the names are those of `Kind`


@slotted
class _Purse:
    """One set of limits, what is spent of it, and what is held for requests under way."""

    step: str | None
    limits: Mapping[Kind, int]
    spent: _Amount = field(default_factory=_Amount)
    held: _Amount = field(default_factory=_Amount)

    def refusal(self, need: Need) -> Over | None:
        """The first limit that is over, whatever others will use."""
        for kind, limit in self.limits.items():
            wanted = _units(kind, getattr(need, kind), up=True)
            spent = getattr(self.spent, kind)
            if wanted is None or (wanted and spent + wanted > limit):
                asked = None if wanted is None else _plain(kind, wanted)
                return Over(kind, self.step, _plain(kind, limit), _plain(kind, spent), asked)
        return None

    def is_crowded(self, need: Need) -> bool:
        """Whether it does not fit beside what is held."""
        return any(
            (wanted := _units(kind, getattr(need, kind), up=True) or 0)
            and getattr(self.spent, kind) + getattr(self.held, kind) + wanted > limit
            for kind, limit in self.limits.items()
        )

    def holds_for(self, step: str | None) -> bool:
        """Whether the limits are for what `step` does."""
        return self.step is None or (step is not None and self.step in scopes(step))

    def all(self) -> _Amount:
        """As much as the limits allow."""
        return _Amount(*(self.limits.get(kind, 0) for kind in _KINDS))

    def as_limits(self, amount: _Amount) -> Limits:
        """An amount as limits, of what is limited here."""
        return Limits(**{kind: _plain(kind, getattr(amount, kind)) for kind in self.limits})  # type: ignore[arg-type]  # tokens and calls are whole, as they were

    def share(self, parts: int, need: Need) -> _Amount:
        """One of so many parts of what is left, and the `need` at least."""
        found = _Amount()
        for kind, limit in self.limits.items():
            left = max(0, limit - getattr(self.spent, kind) - getattr(self.held, kind))
            wanted = _units(kind, getattr(need, kind), up=True) or 0
            setattr(found, kind, max(left // parts, wanted))
        return found


class Budget:
    """The limits of a run and of its steps, and what is left of them.

    A step is named as in `Place.step`; what a step within a step uses (`outer/inner`) counts for
    both.
    """

    def __init__(
        self,
        limits: Limits,
        steps: Mapping[str, Limits] | None = None,
        *,
        spent: Spent | None = None,
        steps_spent: Mapping[str, Spent] | None = None,
    ) -> None:
        self._run = _purse(None, limits, spent)
        before = steps_spent or {}
        self._steps = {
            id: _purse(id, own, before.get(id))
            for id, own in (steps or {}).items()
            if _amounts(own)
        }

    def limit(self, step: str, limits: Limits) -> None:
        """Bound one more step, before it begins."""
        if _amounts(limits):
            self._steps[step] = _purse(step, limits, None)

    def weighs(self, step: str | None) -> bool:
        """Whether tokens or money are bounded there, so that a worst case is called for."""
        return any(
            kind in purse.limits for purse in self._purses(step) for kind in ("tokens", "cost_usd")
        )

    def reserve(self, step: str | None, need: Need) -> Reserved | Wait | Over:
        """Set `need` aside, under every limit that holds for `step`."""
        purses = tuple(self._purses(step))
        for purse in purses:
            if over := purse.refusal(need):
                return over
        if any(purse.is_crowded(need) for purse in purses):
            return Wait()
        for purse in purses:
            purse.held.add(_amount(need))
        return Reserved(step, need)

    def settle(self, reserved: Reserved, used: Need) -> None:
        """What was set aside is used as far as `used` says; what that does not know is used up."""
        known = Need(
            turns=used.turns,
            tokens=reserved.need.tokens if used.tokens is None else used.tokens,
            cost_usd=reserved.need.cost_usd if used.cost_usd is None else used.cost_usd,
            tool_calls=used.tool_calls,
        )
        for purse in self._purses(reserved.step):
            purse.held.add(_amount(reserved.need), -1)
            purse.spent.add(_amount(known))

    def release(self, reserved: Reserved) -> None:
        """What was set aside was not used."""
        self.settle(reserved, Need())

    def lend(self, step: str, parts: int, wanted: Wanted | None = None) -> Lease | Wait | Over:
        """Set aside one of `parts` of what is left for `step`; what is `wanted` is in it."""
        needs = [
            (purse, wanted.need if wanted is not None and purse.holds_for(wanted.step) else Need())
            for purse in self._of_lease(step)
        ]
        for purse, need in needs:
            if over := purse.refusal(need):
                return over
        if any(purse.is_crowded(need) for purse, need in needs):
            return Wait()
        limits: dict[str | None, Limits] = {}
        for purse, need in needs:
            share = purse.share(parts, need)
            purse.held.add(share)
            limits[purse.step] = purse.as_limits(share)
        return Lease(step, limits)

    def take_back(self, lease: Lease, spent: Mapping[str | None, Spent]) -> None:
        """A lease is over, and `spent` of it was used."""
        for purse in self._of_lease(lease.step):
            purse.held.add(_purse(purse.step, lease.limits[purse.step], None).all(), -1)
            purse.spent.add(_begun(spent.get(purse.step, Spent())))

    def _of_lease(self, step: str) -> Iterator[_Purse]:
        """The run, the steps that `step` is in, and those within it."""
        yield from self._purses(step)
        yield from (one for id, one in self._steps.items() if id.startswith(f"{step}/"))

    @property
    def all_spent(self) -> Mapping[str | None, Spent]:
        """What the run and each step that is bounded have used."""
        return {purse.step: _spent(purse) for purse in (self._run, *self._steps.values())}

    @property
    def spent(self) -> Spent:
        """What the run has used."""
        return _spent(self._run)

    def spent_by(self, step: str) -> Spent | None:
        """What a step that is bounded has used."""
        purse = self._steps.get(step)
        return None if purse is None else _spent(purse)

    def _purses(self, step: str | None) -> Iterator[_Purse]:
        yield self._run
        if step is not None and self._steps:
            for id in scopes(step):
                if (purse := self._steps.get(id)) is not None:
                    yield purse


def tightest(one: Limits, other: Limits) -> Limits:
    """What holds where both do."""
    pairs = {f.name: (getattr(one, f.name), getattr(other, f.name)) for f in fields(Limits)}
    known = {name: [bound for bound in both if bound is not None] for name, both in pairs.items()}
    return Limits(**{name: min(bounds) for name, bounds in known.items() if bounds})


def scopes(step: str) -> Iterator[str]:
    """The steps that `outer/inner` belongs to: `outer`, then itself."""
    parts = step.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _purse(step: str | None, limits: Limits, spent: Spent | None) -> _Purse:
    return _Purse(step, _amounts(limits), _begun(spent or Spent()))


def _begun(before: Spent) -> _Amount:
    return _amount(Need(before.turns, before.tokens, before.cost_usd, before.tool_calls))


def _amounts(limits: Limits) -> Mapping[Kind, int]:
    given = ((kind, _units(kind, getattr(limits, kind), up=False)) for kind in _KINDS)
    return {kind: limit for kind, limit in given if limit is not None}


def _amount(need: Need) -> _Amount:
    return _Amount(*(_units(kind, getattr(need, kind), up=True) or 0 for kind in _KINDS))


def _units(kind: Kind, value: float | None, *, up: bool) -> int | None:
    """An amount in whole units: what is used is rounded up, what is allowed down."""
    if value is None or kind != "cost_usd":
        return None if value is None else int(value)
    exact = value * _PER_DOLLAR
    near = round(exact)
    if math.isclose(exact, near, rel_tol=1e-12, abs_tol=1e-6):
        return near
    return math.ceil(exact) if up else math.floor(exact)


def _plain(kind: Kind, units: int) -> float:
    return units / _PER_DOLLAR if kind == "cost_usd" else units


def _spent(purse: _Purse) -> Spent:
    amount = purse.spent
    cost = _plain("cost_usd", amount.cost_usd)
    return Spent(amount.turns, amount.tokens, cost, amount.tool_calls)
