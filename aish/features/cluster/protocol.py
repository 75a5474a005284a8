"""What travels between a run and its workers: what to open, slices of items, and their results."""

import pickle  # ruff: ignore[suspicious-pickle-import] - Dask itself carries nothing else
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
    """A value as bytes: Dask looks into nothing of it, and writes nothing of it into its logs.

    It only travels over connections that no one else has: TLS with certificates on both ends, or a
    loopback address that the user has named. Whoever could write there could run programs anyway.
    """

    __slots__ = ("_data",)

    def __init__(self, value: object) -> None:
        self._data = pickle.dumps(value)

    def value(self) -> Any:
        """What was packed at the other end."""
        return pickle.loads(self._data)  # ruff: ignore[suspicious-pickle-usage] - see above: it is ours


@frozen
class Opening:
    """What a worker opens for a run, and keeps open until the run is over.

    `keeps` says whether the run has a folder for files, `staging` makes what staged calls are held
    against.
    """

    run: str
    plan: Plan
    keeps: bool
    staging: Callable[[Plan, str], Staging] | None


@frozen
class Scene:
    """What all items of a step have in common."""

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

    `used` is what each item has used before, on a worker that was lost.
    """

    number: int
    scene: int
    items: tuple[ItemScope, ...]
    used: tuple[Spent, ...]
    lease: Lease
    seconds: float | None


@frozen
class Renewal:
    """A slice that has used up its lease goes on: with another one, or with a `refusal`.

    Without a lease it only brings back what there is.
    """

    number: int
    lease: Lease | None = None
    refusal: AishError | None = None


@frozen
class ItemResult:
    """What an item has told since the last result of its slice, and its end if it has ended."""

    events: tuple[Event, ...]
    record: StepRecord | None


@frozen
class SliceResult:
    """What came of a slice so far.

    It is over, unless there is a `demand` that its lease does not meet. `items` are those that
    were begun; `files` are for the run's folder; `notices` are of what the worker has open.
    `errors` end the run when all of it is done, and `broken` is the traceback of a bug.
    """

    items: tuple[ItemResult, ...]
    spent: Mapping[str | None, Amount]
    demand: Demand | None
    files: tuple[tuple[str, bytes], ...]
    notices: tuple[Event, ...]
    errors: tuple[AishError, ...]
    broken: str | None
