"""The meters of a worker: each slice counts for itself, within the lease that it was given (B8)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace

import anyio

from aish.config.model import Limits
from aish.core.errors import AishError, InternalError
from aish.core.events import Place
from aish.core.frozen import frozen, slotted
from aish.engine.limits import (
    Amount,
    Budget,
    Lease,
    Over,
    RequestHold,
    Reserved,
    RunMeter,
    Wanted,
    prices_of,
)
from aish.engine.plan.plan import Plan
from aish.models.pricing import Pricing


@slotted
class _Waiting:
    wanted: Wanted
    answered: anyio.Event = field(default_factory=anyio.Event)
    refusal: AishError | None = None


class LeasedMeter(RunMeter):
    """Counts within a lease: what does not fit waits for another lease, or for a refusal.

    `changed` is called when something waits, or a request is over. `owns` says what it counts.
    """

    def __init__(
        self, lease: Lease, changed: Callable[[], None], owns: Callable[[Place], bool]
    ) -> None:
        super().__init__(_budget(lease.limits), {})
        self._lease = lease
        self._changed = changed
        self._requests = 0
        self._waiting: list[_Waiting] = []
        self.owns = owns

    @property
    def wanted(self) -> Wanted | None:
        """What the lease does not hold, once nothing is under way that could leave it over."""
        return self._waiting[0].wanted if self._waiting and not self._requests else None

    def give_back(self) -> Mapping[str | None, Amount]:
        """The lease is over: what was spent of it. Nothing more fits until it is renewed."""
        spent = self.budget.all_spent
        self.budget = _budget({step: _nothing(own) for step, own in self._lease.limits.items()})
        return spent

    def renew(self, lease: Lease, refusal: AishError | None) -> None:
        """Go on with another lease; `refusal` is for what has waited longest."""
        self.budget = _budget(lease.limits)
        answered, self._waiting = self._waiting, []
        for number, waiting in enumerate(answered):
            waiting.refusal = None if number else refusal
            waiting.answered.set()

    async def refuse(self, over: Over, wanted: Wanted) -> None:
        """Wait for another lease.

        Raises:
            BudgetError: the run has no more to lend.
        """
        del over
        waiting = _Waiting(wanted)
        self._waiting.append(waiting)
        self._changed()
        try:
            await waiting.answered.wait()
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        if waiting.refusal is not None:
            raise waiting.refusal

    async def reserved(self, step: str | None, need: Amount) -> Reserved:
        """As of `RunMeter`; counted until it is settled."""
        found = await super().reserved(step, need)
        self._requests += 1
        return found

    def settle(self, reserved: Reserved, used: Amount) -> None:
        """As of `RunMeter`."""
        super().settle(reserved, used)
        self._requests -= 1
        self._changed()


@frozen
class SliceMeters:
    """The meter to the models of a plan: each request counts for the slice that it is of."""

    prices: Mapping[str, Pricing | None]
    meters: Callable[[], Iterable[LeasedMeter]]

    def inner(self, plan: Plan) -> "SliceMeters":
        """The same, to a sub-pipeline."""
        return SliceMeters(prices_of(plan), self.meters)

    async def reserve(
        self, place: Place, alias: str, size: int, max_tokens: int | None
    ) -> RequestHold:
        """As `RunMeter.reserve`, of the slice."""
        return await self._of(place).reserve_at(self.prices.get(alias), place, size, max_tokens)

    async def count_call(self, place: Place) -> None:
        """As `RunMeter.count_call`, of the slice."""
        await self._of(place).count_call(place)

    def _of(self, place: Place) -> LeasedMeter:
        meters = tuple(self.meters())
        if not meters:
            raise InternalError(f"nothing is under way that could be {place}")
        # What is nobody's own is counted all the same.
        return next((meter for meter in meters if meter.owns(place)), meters[0])


def _budget(limits: Mapping[str | None, Limits]) -> Budget:
    steps = {step: own for step, own in limits.items() if step is not None}
    return Budget(limits.get(None, Limits()), steps)


def _nothing(limits: Limits) -> Limits:
    bounded = (one.name for one in fields(Limits) if getattr(limits, one.name) is not None)
    return replace(limits, **dict.fromkeys(bounded, 0))
