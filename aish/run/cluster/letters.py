"""What the driver of a run and its workers say to each other; pickled, in the order it was said.

A *ticket* is the number of an item that was handed over, a *path* the steps whose sub-pipelines
lead to a plan.
"""

from collections.abc import Mapping

from aish.core.deltas import Finish
from aish.core.errors import AishError
from aish.core.events import Event, Place
from aish.core.frozen import frozen
from aish.engine.limits.usage import Used
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord
from aish.engine.steps.context import ItemScope
from aish.policy.gate import Decision, Proposal

Path = tuple[str, ...]

GATHERING = 0.005
"""Seconds in which what is said is gathered, to go in one message."""

# From a worker.


@frozen
class Hello:
    """A worker is there, for the first time; `address` is what Dask calls it."""

    address: str
    version: str


@frozen
class Opened:
    """What the run needs is open on the worker; or it is not, by an `error`."""

    error: AishError | None = None


@frozen
class Told:
    """An event, of an item or of none."""

    ticket: int | None
    event: Event


@frozen
class Redeemed:
    """An approval is used up: the call follows."""

    ticket: int
    path: Path
    number: int


@frozen
class HoldEnded:
    """A request is over: with its `finish`, or without one after it had `begun` or not."""

    hold: int
    finish: Finish | None
    begun: bool = False


@frozen
class Kept:
    """A file for the run's folder."""

    name: str
    data: bytes


@frozen
class Done:
    """An item has ended."""

    ticket: int
    record: StepRecord


@frozen
class Broken:
    """A bug of ours came to light in an item."""

    ticket: int
    said: str


@frozen
class Begin:
    """May the item begin? The answer is a `Start`, or nothing."""


@frozen
class Decide:
    """May this call be made? The answer is a `Decision`."""

    path: Path
    proposal: Proposal


@frozen
class PutDown:
    """Is a staged call where it is reviewed?"""

    path: Path
    decision: Decision


@frozen
class Reserve:
    """May this request be sent? The answer is the number of its hold."""

    path: Path
    place: Place
    alias: str
    size: int
    max_tokens: int | None


@frozen
class CountCall:
    """Do the limits allow for another call?"""

    path: Path
    place: Place


Question = Begin | Decide | PutDown | Reserve | CountCall


@frozen
class Asked:
    """A question of an item, or of a model that answers one; `number` is the worker's."""

    number: int
    ticket: int | None
    question: Question


FromWorker = Hello | Opened | Told | Redeemed | HoldEnded | Kept | Done | Broken | Asked


@frozen
class Parcel:
    """What a session of a worker has to say."""

    session: str
    number: int
    letters: tuple[FromWorker, ...]


# To a worker.


@frozen
class Opening:
    """What to open; only sent over connections that are ours alone, or encrypted.

    `keeps` says whether the run has a folder for files.
    """

    run: str
    plan: Plan
    keeps: bool


@frozen
class Scene:
    """What the items of a step have in common."""

    number: int
    step: str
    prefix: str
    within: str | None
    options: RunOptions
    records: Mapping[str, StepRecord]
    needed: frozenset[str]


@frozen
class Start:
    """An item may begin; what it has used before, where it was begun on a worker that is lost."""

    used: Used


@frozen
class Answer:
    """To the question of that number."""

    number: int
    value: object = None
    error: AishError | None = None


@frozen
class Cancel:
    """The item is not waited for any more."""

    ticket: int


@frozen
class Close:
    """The run is over."""


ToWorker = Opening | Scene | Answer | Cancel | Close


@frozen
class Orders:
    """What a session is told: up to which parcel all is written down, and whether work stops."""

    acked: int
    stopped: bool
    letters: tuple[ToWorker, ...] = ()


# In a task.


@frozen
class Unit:
    """An item as it travels."""

    ticket: int
    scene: int
    item: ItemScope


@frozen
class Load:
    """Several items of one task."""

    units: tuple[Unit, ...]
