"""The context of every step: plan, open resources, and earlier results."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from aish.agent.runtime import AgentRuntime, UsedCall
from aish.config.model import CallStep, PipelineStep, PromptStep, RunStep, Step
from aish.core.errors import ExitCode
from aish.core.events import Place, StepStatus
from aish.core.frozen import frozen, replace, slotted
from aish.core.json import JsonValue
from aish.core.protocols import Asking, Clock, Emit, Signal
from aish.core.sources import NO_SOURCES, Sources
from aish.core.text import safe_utf8
from aish.engine.activity import Activity
from aish.engine.cancellation import Cancellation
from aish.engine.limits import Spending
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.plan.template_context import template_context
from aish.engine.records import ItemRecord, StepRecord
from aish.engine.resources.resources import Resources
from aish.engine.run_values import Concurrency, TimeLimit
from aish.policy.questions import Questions

if TYPE_CHECKING:
    from aish.engine.resume_state import ResumeState, Unfinished

AskingStep = PromptStep | CallStep | RunStep
"""A step that makes calls itself."""

EXIT_OF_STATUS: Mapping[StepStatus, ExitCode] = {
    "ok": ExitCode.OK,
    "skipped": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "denied": ExitCode.DENIED,
    "budget": ExitCode.BUDGET,
    "paused": ExitCode.PAUSED,
}


@frozen
class ItemScope:
    """The current item: its key, its template names, and where its value came from."""

    key: str
    names: Mapping[str, JsonValue]
    sources: Sources = NO_SOURCES


@frozen
class Suspended:
    """A unit that goes on, within an attempt that began at the time `began` of the clock.

    `made` is a call of that attempt, if any, that may not be repeated.
    """

    unfinished: "Unfinished"
    made: UsedCall | None
    began: float


@slotted
class RunScope:
    """State that all steps and items of a run share, also those of sub-pipelines.

    `concurrency` limits the units of work in flight, `time` the whole run. `resume` is the command
    that continues the run, if possible. `ended` has the ended items of each step. `run_inner` runs
    a sub-pipeline, and `carrier` runs items on workers, if requested. `told` are the codes of
    notices that are given once a run.
    """

    concurrency: Concurrency
    time: TimeLimit | None = None
    spending: Spending = field(default_factory=Spending)
    replayed: bool = False
    has_cassette: bool = False
    resume: tuple[str, ...] = ()
    ended: dict[Place, list[ItemRecord]] = field(default_factory=dict)
    run_inner: "RunInner | None" = None
    carrier: "Carrier | None" = None
    told: set[str] = field(default_factory=set)


@slotted
class StepContext:
    """The surroundings of a step or item; `records` grows as steps finish.

    `item` is set while the step runs for an item, `turn` counts the requests of earlier attempts.
    `prefix` precedes the ids of a sub-pipeline's steps, and `within` is the outer item that it runs
    for. `needed` are the steps whose items are read later. `activity` is the task of the step or
    item, `anew` whether this is another attempt in this part of the run. An item that `suspends`
    gives up its task while a batch has its request, and goes on from what was `suspended`.
    `given` are the sources of a sub-pipeline's inputs, `base` those of all its steps.
    """

    run: RunScope
    plan: Plan
    options: RunOptions
    resources: Resources
    records: dict[str, StepRecord] = field(default_factory=dict)
    course: Cancellation = field(default_factory=Cancellation)
    resume_state: "ResumeState | None" = None
    needed: frozenset[str] = frozenset()
    prefix: str = ""
    within: str | None = None
    item: ItemScope | None = None
    turn: int = 0
    activity: Activity = field(default_factory=Activity)
    anew: bool = False
    suspends: bool = False
    suspended: "Suspended | None" = None
    given: Mapping[str, Sources] = field(default_factory=dict)
    base: Sources = NO_SOURCES

    @property
    def agent(self) -> AgentRuntime:
        """The tools of the run, with the gate before them; a step has it under its own settings."""
        return self.resources.runtime

    @property
    def emit(self) -> Emit:
        return self.agent.emit

    @property
    def clock(self) -> Clock:
        return self.agent.clock

    @property
    def questions(self) -> Questions:
        """The questions of the whole run about its calls."""
        return self.agent.gate.questions

    def name(self, step: Step) -> str:
        """The step's id as events have it: `outer/inner` in a sub-pipeline."""
        return self.prefix + step.id

    def place(self, step: Step) -> Place:
        key = self.within
        if self.item is not None:
            key = self.item.key if key is None else f"{key}/{self.item.key}"
        return Place(self.prefix + step.id, key or None)

    def tells_first(self, code: str) -> bool:
        """Return true for the first call with this notice in the run."""
        is_first = code not in self.run.told
        self.run.told.add(code)
        return is_first

    def template_values(self) -> Mapping[str, JsonValue]:
        """The current template context."""
        more = self.item.names if self.item is not None else None
        return template_context(
            self.plan.pipeline, self.options, self.records, self.plan.variables, more
        )

    def earlier_turns(self, step: Step) -> "Unfinished | None":
        """The conversation of an earlier part that the step or item goes on with, if any.

        Only its first attempt in this part does. One that was suspended in this part comes first.
        """
        if self.anew:
            return None
        if self.suspended is not None:
            return self.suspended.unfinished
        if self.resume_state is None:
            return None
        return self.resume_state.unfinished.get((self.name(step), self._own_key()))

    def earlier_call(self, step: Step) -> UsedCall | None:
        """A call of an earlier part that the step or item goes on after, and may not repeat."""
        if self.anew:
            return None
        if self.suspended is not None:
            return self.suspended.made
        if self.resume_state is None:
            return None
        return self.resume_state.made.get((self.name(step), self._own_key()))

    def goes_on(self, step: Step) -> bool:
        """Return true if an item continues from an earlier part of the run."""
        state, key = self.resume_state, (self.name(step), self._own_key())
        return state is not None and (key in state.unfinished or key in state.parts)

    def inner_state(self, step: PipelineStep) -> "ResumeState | None":
        """State of a step's or item's sub-pipeline from an earlier part of the run.

        Completed parts of an item are repeated, unless its questions stay open.
        """
        key = self._own_key()
        if self.resume_state is None or key is None:
            return self.resume_state
        return None if self.anew else self.resume_state.parts.get((self.name(step), key))

    def _own_key(self) -> str | None:
        """The key of the current item as in the journal, without those of outer items."""
        return None if self.item is None else safe_utf8(self.plan.secrets.mask(self.item.key))

    def asking(self, step: AskingStep) -> Asking:
        """The way to ask about calls of the step.

        Where nothing is kept to go on with, or somebody is asked at the terminal, a run is not
        paused; nor with a cassette. The gate lets no call of a replay wait.
        """
        asking, here = step.asking, self.agent.gate.attended or self.run.has_cassette
        if asking.on_ask == "pause" and not self.run.resume and not here:
            return Asking()
        return Asking("wait", asking.seconds) if asking.on_ask == "pause" and here else asking

    def runtime(self, step: AskingStep) -> AgentRuntime:
        """The resources for the tool loop, under a step's own settings."""
        asking = self.asking(step)

        async def park(signal: Signal) -> None:
            await self.activity.wait(signal, asking.on_ask)

        pauses = self.plan.pipeline.on_wait == "pause" and bool(self.run.resume)

        return replace(
            self.agent,
            limits=step.limits,
            on_denied=step.on_denied,
            asking=asking,
            park=park,
            park_request=self.activity.wait_for_request if pauses else None,
            resumes_rounds=True,
        )


RunInner = Callable[[PipelineStep, StepContext], Awaitable[StepRecord]]
"""Runs a sub-pipeline."""


@slotted
class RemoteItem:
    """An item run on a worker: `begin` is called once at its start, `end` at its end.

    An item that has not `ended` is incomplete.
    """

    context: StepContext
    begin: Callable[[], None]
    end: Callable[[StepRecord], None]
    begun: bool = False
    ended: bool = False


class Carrier(Protocol):
    """Runs items on workers: a `Dispatcher` of the cluster, imported only if used."""

    def size(self, step: Step, context: StepContext) -> int:
        """The number of items of the step to hand over together now."""

    async def carry(
        self, step: Step, items: Sequence[RemoteItem], wanted: Callable[[], bool]
    ) -> None:
        """Run items one after the other on a worker, if still `wanted` when it is free."""


CALLS_REPEATED = "calls_repeated"
"""The code of a notice that names calls before they may be made again."""
CALLS_UNTRACKED = "calls_untracked"
"""The code of a step's notice: calls of its items are in the journal when the items come back."""
ITEM_UNFINISHED = "item_unfinished"
"""The code of an item's notice: it came back without an end, and all of its calls are told."""

RAG_DEGRADED = "rag_degraded"
"""The code of the notice that a search for passages attached nothing."""
RAG_REDUCED = "rag_reduced"
"""The code of the notice that such a search was less than it could be: without vectors."""
ONCE_A_RUN = frozenset({RAG_DEGRADED, RAG_REDUCED})
"""Codes of notices that are given once a run, however many steps, items and workers it has."""

OpenCarrier = Callable[[StepContext], AbstractAsyncContextManager[Carrier]]
"""Opens what runs the items of a run elsewhere."""


def has_items(plan: Plan) -> bool:
    """Return true if a step of it, or of a sub-pipeline, has items."""
    own = any(step.flow.foreach is not None for step in plan.steps)
    return own or any(map(has_items, plan.inner.values()))


Examine = Callable[[StepContext, JsonValue], Awaitable[None]]
"""Looks at a run that has succeeded, and at its outputs: `aish test` does."""
