"""What every kind of step is given: the plan, the open resources, and what came before."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol

import anyio

from aish.agent.runtime import AgentRuntime
from aish.config.model import LoopLimits, OnDenied, PipelineStep, Step
from aish.core.errors import ExitCode
from aish.core.events import Place, StepStatus
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.engine.cancellation import Cancellation
from aish.engine.limits import Spending
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.plan.template_context import template_context
from aish.engine.records import ItemRecord, StepRecord
from aish.engine.resources.resources import Resources

if TYPE_CHECKING:
    from aish.engine.resume_state import ResumeState

EXIT_OF_STATUS: Mapping[StepStatus, ExitCode] = {
    "ok": ExitCode.OK,
    "skipped": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "denied": ExitCode.DENIED,
    "budget": ExitCode.BUDGET,
}


@frozen
class ItemScope:
    """The item that is being worked on: its key, and what templates call it."""

    key: str
    names: Mapping[str, JsonValue]


@slotted
class StepContext:
    """A run in progress; `records` grows as steps finish, `ends` is when its time is over.

    `slots` bounds how many units of work are in flight in the whole run. `item` is set while the
    step runs for an item, `turn` counts the requests that earlier attempts made. `prefix` goes
    before the ids of a sub-pipeline's steps, `within` is the outer item that it runs for, and
    `inner` runs one. `carrier` runs items elsewhere, where that is wanted. `needed` are the steps
    whose items anything reads later; `ended` has those of each step that have ended so far.
    `resume` are the words of the command that continues the run, where one can.
    """

    plan: Plan
    options: RunOptions
    resources: Resources
    slots: anyio.CapacityLimiter
    records: dict[str, StepRecord] = field(default_factory=dict)
    ends: float | None = None
    course: Cancellation = field(default_factory=Cancellation)
    spending: Spending = field(default_factory=Spending)
    resume_state: "ResumeState | None" = None
    replayed: bool = False
    chance: Callable[[], float] = random.random  # ruff: ignore[suspicious-non-cryptographic-random-usage] - no secret
    needed: frozenset[str] = frozenset()
    resume: tuple[str, ...] = ()
    ended: dict[Place, list[ItemRecord]] = field(default_factory=dict)
    prefix: str = ""
    within: str | None = None
    inner: "Inner | None" = None
    carrier: "Carrier | None" = None
    item: ItemScope | None = None
    turn: int = 0

    def name(self, step: Step) -> str:
        """The step's id as events have it: `outer/inner` in a sub-pipeline."""
        return self.prefix + step.id

    def place(self, step: Step) -> Place:
        """Where the step's events happen."""
        own = None if self.item is None else self.item.key
        keys = [key for key in (self.within, own) if key is not None]
        return Place(self.prefix + step.id, "/".join(keys) or None)

    def context(self) -> Mapping[str, JsonValue]:
        """What templates see now."""
        more = self.item.names if self.item is not None else None
        return template_context(
            self.plan.pipeline, self.options, self.records, self.plan.variables, more
        )

    def runtime(self, limits: LoopLimits, on_denied: OnDenied) -> AgentRuntime:
        """The resources as the loop takes them, under a step's own limits."""
        return replace(self.resources.runtime, limits=limits, on_denied=on_denied)


Inner = Callable[[PipelineStep, StepContext], Awaitable[StepRecord]]
"""Runs a sub-pipeline."""


@slotted
class RemoteItem:
    """An item that is run elsewhere: `begin` is called once when it is begun, `end` when it ends.

    One that has not `ended` in the end is not done.
    """

    stage: StepContext
    begin: Callable[[], None]
    end: Callable[[StepRecord], None]
    begun: bool = False
    ended: bool = False


class Carrier(Protocol):
    """Runs items on workers (B7): a `Dispatcher` of the cluster, which most runs do not import."""

    def size(self, step: Step, stage: StepContext) -> int:
        """How many items of the step are handed over together now."""
        ...

    async def carry(
        self, step: Step, items: Sequence[RemoteItem], wanted: Callable[[], bool]
    ) -> None:
        """Run items one after the other on a worker, if they still are `wanted` when it is free."""
        ...


CALLS_UNTRACKED = "calls_untracked"
"""The code of a step's notice: calls of its items are in the journal when the items come back."""
ITEM_UNFINISHED = "item_unfinished"
"""The code of an item's notice: it came back without an end, and all of its calls are told."""

OpenCarrier = Callable[[StepContext], AbstractAsyncContextManager[Carrier]]
"""Opens what runs the items of a run elsewhere."""


def has_items(plan: Plan) -> bool:
    """Whether a step of it, or of a sub-pipeline, has items."""
    own = any(step.flow.foreach is not None for step in plan.steps)
    return own or any(map(has_items, plan.inner.values()))


Examine = Callable[[StepContext, JsonValue], Awaitable[None]]
"""Looks at a run that has succeeded, and at its outputs: `aish test` does."""
