"""Messages between a run and its workers: resources to open, slices of items, results."""

import pickle  # ruff: ignore[suspicious-pickle-import] - Dask itself uses pickle
from collections.abc import Callable, Mapping
from typing import Any

from aish.core.errors import AishError
from aish.core.events import Event
from aish.core.frozen import frozen
from aish.core.messages import Spent
from aish.engine.limits import Amount, Demand, Lease
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord
from aish.engine.steps.context import ItemScope
from aish.policy.gate import Staging


class Packed:
    """A value as bytes, so that Dask neither inspects nor logs it.

    It is sent only over trusted connections: TLS with mutual authentication, or a loopback address
    named by the user. Anyone able to write there could run programs anyway.
    """

    __slots__ = ("_data",)

    def __init__(self, value: object) -> None:
        self._data = pickle.dumps(value)

    def value(self) -> Any:
        return pickle.loads(self._data)  # ruff: ignore[suspicious-pickle-usage] - see above: the data is trusted


@frozen
class Opening:
    """The resources that a worker opens for a run, until the run is over.

    `keeps` says whether the run has a folder for files, `staging` makes the check of staged calls.
    `tag` is that of the run, for its blocks of changed files.
    """

    run: str
    plan: Plan
    keeps: bool
    staging: Callable[[Plan, str], Staging] | None
    tag: str


@frozen
class Scene:
    """The data shared by all items of a step."""

    number: int
    step: str
    prefix: str
    within: str | None
    options: RunOptions
    records: Mapping[str, StepRecord]
    needed: frozenset[str]


@frozen
class Slice:
    """Items that a worker runs one after the other, within `lease` and `seconds`.

    `used` is the earlier usage of each item, on a worker that was lost.
    """

    number: int
    scene: int
    items: tuple[ItemScope, ...]
    used: tuple[Spent, ...]
    lease: Lease
    seconds: float | None


@frozen
class LeaseRenewal:
    """Continuation of a slice whose lease is used up: another lease, or a `refusal`.

    Without a lease it only returns partial results.
    """

    number: int
    lease: Lease | None = None
    refusal: AishError | None = None


@frozen
class ItemResult:
    """The events of an item since the last result of its slice, and its end if it has ended."""

    events: tuple[Event, ...]
    record: StepRecord | None


@frozen
class SliceResult:
    """The result of a slice so far.

    The slice is complete, unless there is a `demand` that its lease does not cover. `items` are
    those that were begun; `files` are for the run's folder; `notices` are of the worker's
    resources. `errors` end the run after everything is done, and `broken` is the traceback of a
    bug. `secrets` are the names and values of those that the worker has made: the run masks them.
    """

    items: tuple[ItemResult, ...]
    spent: Mapping[str | None, Amount]
    demand: Demand | None
    files: tuple[tuple[str, bytes], ...]
    notices: tuple[Event, ...]
    errors: tuple[AishError, ...]
    broken: str | None
    secrets: tuple[tuple[str, str], ...] = ()
