"""Values of a run that can be changed while it runs: its limits and its concurrency.

A closed table. What decides about calls, the rules, is not in it. A change holds from the next
request, call or item on; a resumed run begins with the values of its file again.
"""

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio

from aish.config.fields import duration
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.engine.activity import Activity
from aish.engine.limits import Kind, RunMeter

if TYPE_CHECKING:
    from aish.engine.plan.plan import Plan

ValueType = Literal["integer", "number", "string"]
_MOST = 10**12
_LEAST: Mapping[Kind, int] = {"turns": 1, "tokens": 1, "tool_calls": 0}


@frozen
class SettableValue:
    """A value of a run; `type` is a word of JSON Schema, and a limit may be `None`, for no limit.

    `set` raises `ValueError` for what it cannot be. `check`, where there is one, does the same and
    changes nothing.
    """

    type: ValueType
    get: Callable[[], JsonValue]
    set: Callable[[JsonValue], None]
    check: Callable[[JsonValue], object] = lambda _: None


class Concurrency:
    """Limit on the units of work, plain steps and items, in flight in the whole run.

    `most` is a bound that somebody has set, also for each `foreach`; without one these have their
    own. `idle` counts the tasks that wait for a batch, `crowded` those that wait until others need
    less of a limit.
    """

    def __init__(self, slots: float, most: int | None = None) -> None:
        self.slots = anyio.CapacityLimiter(slots)
        self.idle = 0
        self.crowded = 0
        self._most = most
        self._followers: list[Callable[[], None]] = []

    def width(self, wanted: int) -> int:
        """The number of items in flight for a step that wants so many."""
        return wanted if self._most is None else min(wanted, self._most)

    def set_most(self, most: int) -> None:
        """Set the bound; units that have begun continue."""
        self._most = most
        self.slots.total_tokens = most
        self._tell(1)

    def note_idle(self, change: int) -> None:
        """Count more or fewer tasks that wait for a batch; meanwhile others may work."""
        self.idle += change
        self._tell(change)

    def note_crowded(self, change: int) -> None:
        """Count more or fewer tasks that wait for a limit; meanwhile others may end."""
        self.crowded += change
        self._tell(change)

    def _tell(self, change: int) -> None:
        if change > 0:
            for follower in tuple(self._followers):
                follower()

    @contextmanager
    def on_change(self, follower: Callable[[], None]) -> Generator[None]:
        """Call `follower` in the block after each change."""
        self._followers.append(follower)
        try:
            yield
        finally:
            self._followers.remove(follower)


class TimeLimit:
    """The time limit of a run with all its parts, in seconds; `spent` is that of earlier parts.

    It does not run while all of the run waits for answers, which `activity` tells.
    """

    def __init__(self, seconds: float | None, activity: Activity, spent: float = 0.0) -> None:
        self._seconds = seconds
        self._activity = activity
        self._spent = spent
        self._begun: float | None = None
        self._scope: anyio.CancelScope | None = None

    @property
    def seconds(self) -> float | None:
        return self._seconds

    @property
    def left(self) -> float:
        if self._seconds is None:
            return math.inf
        passed = 0.0
        if self._begun is not None:
            passed = anyio.current_time() - self._begun - self._activity.waited
        return self._seconds - self._spent - passed

    @contextmanager
    def enforce(self) -> Generator[anyio.CancelScope]:
        """The limit holds in the block, which is cancelled when it is over."""
        with self._activity.within(max(0.0, self.left)) as scope:
            self._begun, self._scope = anyio.current_time(), scope
            try:
                yield scope
            finally:
                self._scope = None

    def limit(self, seconds: float | None) -> None:
        """Set the limit; one that is over already ends the run.

        Raises:
            ValueError: it has ended the run.
        """
        if self._scope is not None and self._scope.cancel_called:
            raise ValueError("it is exceeded, and the run ends")
        self._seconds = seconds
        if self._scope is not None:
            self._activity.allow(self._scope, self.left)


def run_values(
    plan: "Plan", meter: RunMeter, concurrency: Concurrency, time: TimeLimit
) -> Mapping[str, SettableValue]:
    """The values of a run, by path."""
    return {
        "concurrency": SettableValue(
            "integer",
            lambda: int(concurrency.slots.total_tokens),
            lambda value: concurrency.set_most(_whole(value, 1)),
            partial(_whole, least=1),
        ),
        "limits.time": SettableValue(
            "number", lambda: time.seconds, lambda value: time.limit(seconds_of(value)), seconds_of
        ),
        **limit_values(plan, meter),
    }


def limit_values(plan: "Plan", meter: RunMeter) -> Mapping[str, SettableValue]:
    """The limits that a meter watches over: tokens, money, requests, calls."""
    kinds: tuple[Kind, ...] = ("cost_usd", "tokens", "tool_calls", "turns")
    return {
        f"limits.{kind}": SettableValue(
            "number" if kind == "cost_usd" else "integer",
            partial(meter.limit, kind),
            lambda value, kind=kind: meter.set_limit(kind, _limit(plan, kind, value)),  # type: ignore[misc]  # `kind` is of this round
            partial(_limit, plan, kind),
        )
        for kind in kinds
    }


def _limit(plan: "Plan", kind: Kind, value: JsonValue) -> float | None:
    if value is None:
        return None
    limit = _money(value) if kind == "cost_usd" else _whole(value, _LEAST[kind])
    if kind in {"cost_usd", "tokens"}:
        _require_worst_case(plan, kind)
    return limit


def _require_worst_case(plan: "Plan", kind: Kind) -> None:
    """Refuse a limit under which no request could be sent: its worst case must be known.

    Raises:
        ValueError: a model has no price, or no `max_tokens`.
    """
    from aish.engine.plan.validation.validate import limit_check
    from aish.models.dialect_choice import answer_limit
    from aish.models.pricing import is_free

    limits = replace(plan.limits, **{kind: 1})
    if problems := limit_check(plan.pipeline, limits, plan.steps, plan.default_model, ()):
        raise ValueError(problems[0].message)
    for alias, resolved in plan.models.items():
        # One that costs nothing gets a `max_tokens` only from a limit that the run starts with.
        if is_free(resolved.entry) and answer_limit(resolved.entry) is None:
            raise ValueError(
                f"`limits.{kind}` needs `max_tokens` in the `params` of the model `{alias}`"
            )
    for inner in plan.inner.values():
        _require_worst_case(inner, kind)


def _whole(value: JsonValue, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise ValueError(f"the value is not a whole number from {least} to {_MOST:,}")
    return value


def _money(value: JsonValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
        raise ValueError(f"the value is not a number above 0, up to {_MOST:,}")
    return float(value)


def seconds_of(value: JsonValue) -> float | None:
    """The time limit that a value means; `None` for none.

    Raises:
        ValueError: it is neither a duration nor a number of seconds.
    """
    if isinstance(value, str):
        value = duration(value)
    return None if value is None else _money(value)
