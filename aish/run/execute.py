"""A whole run: resources open, steps in order, one final state, one exit."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import field, replace

import anyio

from aish.agent.runtime import add_cost, add_usage
from aish.core.deltas import Usage
from aish.core.errors import AishError, BudgetError, ExitCode, InternalError
from aish.core.events import (
    CassetteUse,
    Event,
    Exit,
    Notice,
    Place,
    RunFinished,
    ServerInfo,
    ToolDecided,
    Verdict,
)
from aish.core.frozen import slotted
from aish.core.json import JsonValue
from aish.core.protocols import Emit
from aish.run.course import Course, last_words, until_cancelled
from aish.run.final import FinalState, decide_exit, status_of
from aish.run.folder import resume_words
from aish.run.graph import leave_out_the_rest, run_whole
from aish.run.interrupt import Interrupt, interruptible
from aish.run.metering import RunMeter, open_meter
from aish.run.opening import run_started
from aish.run.options import RunOptions
from aish.run.order import steps_read
from aish.run.plan import Plan
from aish.run.records import StepRecord
from aish.run.resources import (
    Resources,
    all_servers,
    lock_errors,
    open_resources,
    parts,
    require_lock,
    require_servers,
)
from aish.run.slots import slots
from aish.run.spending import Spending
from aish.run.stage import Examine, Inner, OpenCarrier, Stage
from aish.run.surroundings import Recorder, Surroundings
from aish.run.tools import AllTools
from aish.system.computation import ComputationStoppedError
from aish.system.files import MANY_FILES, MANY_FILES_HINT, lacks_descriptors
from aish.templates.render import render_tree

_REFUSED: frozenset[Verdict] = frozenset({"ask-no", "deny"})
_ANNOTATING_SECONDS = 10.0
"""For all annotations of a run, which come after its time limit."""


@slotted
class _Progress:
    """What is known so far; read by the final state however the run ends."""

    records: dict[str, StepRecord] = field(default_factory=dict)
    started: bool = False
    ends: float | None = None
    outputs: JsonValue = None
    error: AishError | None = None
    early: list[Event] = field(default_factory=list)
    denials: list[str] = field(default_factory=list)
    others: list[AishError] = field(default_factory=list)
    examine: Examine | None = None
    carriers: OpenCarrier | None = None
    above: RunMeter | None = None
    tools: list[AllTools] = field(default_factory=list)
    course: Course = field(default_factory=Course)
    spending: Spending = field(default_factory=Spending)


async def execute(
    plan: Plan,
    options: RunOptions,
    around: Surroundings,
    examine: Examine | None = None,
    carriers: OpenCarrier | None = None,
    above: RunMeter | None = None,
) -> Exit:
    """Run `plan` to its end and say how it ended; every failure becomes part of the answer.

    The stream of events begins with `run.started` and ends with `run.finished`, whatever happens
    in between (B12). A run that succeeded is shown to `examine` while everything is still open.
    `carriers` opens what runs items elsewhere. What it uses counts for the meter `above` it too.
    """
    begun = around.clock.monotonic()
    progress = _Progress(examine=examine, carriers=carriers, above=above)
    if around.tape is not None:
        around = around.with_emit(around.tape.followed(around.emit))
    course = progress.course

    def end(code: ExitCode) -> None:
        course.interrupt(scope, code)
        if code is ExitCode.INTERRUPTED and course.items:
            around.emit(Notice(Place(), "warning", "interrupted", last_words(course.items)))

    with anyio.CancelScope() as scope, interruptible(end) as interrupt:
        try:
            await _to_its_end(plan, options, around, progress)
            if interrupt.code is None:
                await _annotate(plan, options, around, progress)
        except Exception as error:
            if lacks_descriptors(error):
                progress.error = AishError(MANY_FILES, hint=MANY_FILES_HINT)
                return _end(plan, options, around, progress, interrupt, begun)
            # A bug: the stream ends as it has to, and the boundary writes the log.
            progress.error = InternalError(f"{type(error).__name__}: {error}")
            _end(plan, options, around, progress, interrupt, begun)
            raise
    return _end(plan, options, around, progress, interrupt, begun)


async def _to_its_end(
    plan: Plan, options: RunOptions, around: Surroundings, progress: _Progress
) -> None:
    try:
        with _alone(around.tape, progress):
            await _within_time(plan, options, around, progress)
    except AishError as error:
        progress.error = error


async def _annotate(
    plan: Plan, options: RunOptions, around: Surroundings, progress: _Progress
) -> None:
    """Say what the run has found, however it has ended: a gate that failed most of all (B11)."""
    if not (plan.pipeline.annotations and progress.started):
        return
    from aish.run.annotations import annotations_of
    from aish.run.context import template_context

    context = template_context(plan.pipeline, options, progress.records, plan.variables)
    with anyio.move_on_after(_ANNOTATING_SECONDS) as scope:
        try:
            found = annotations_of(
                plan.pipeline, context, progress.records, Place(), plan.secrets.mask
            )
            for event in found:
                around.emit(event)
        except ComputationStoppedError:
            await until_cancelled()
    if scope.cancelled_caught:
        text = f"rendering took longer than {_ANNOTATING_SECONDS:g} s; the rest is left out"
        around.emit(Notice(Place(), "warning", "annotations", text))


@contextmanager
def _alone(tape: Recorder | None, progress: _Progress) -> Generator[None]:
    """Nothing is reached where everything is replayed; who swallows an attempt hides nothing."""
    if tape is None or not tape.offline:
        yield
        return
    from aish.system.offline import offline

    with offline() as trips:
        try:
            yield
        finally:
            progress.others += trips


def _end(
    plan: Plan,
    options: RunOptions,
    around: Surroundings,
    progress: _Progress,
    interrupt: Interrupt,
    begun: float,
) -> Exit:
    if not progress.started:
        _start(plan, options, around, progress, ())
    carried = {} if around.carried is None else around.carried.steps
    for step in plan.steps:
        # What is done stays done, also where nothing could be begun any more.
        if step.id in carried:
            progress.records.setdefault(step.id, carried[step.id])
    leave_out_the_rest(plan, progress.records, progress.course, around.emit)
    return _finish(around, progress, interrupt, begun)


async def _within_time(
    plan: Plan, options: RunOptions, around: Surroundings, progress: _Progress
) -> None:
    limit = plan.time_limit
    if limit is not None and around.carried is not None:
        # A limit holds for the whole run, whatever its parts (B8).
        limit = max(0.0, limit - around.carried.spent.seconds)
    if limit is not None:
        progress.ends = around.clock.monotonic() + limit
    with anyio.move_on_after(limit) as scope:
        await _open_and_run(plan, options, around, progress)
    if scope.cancelled_caught:
        raise BudgetError(
            f"the time limit of {plan.time_limit:g} s is over",
            hint="raise `limits.time` in the file, or `--timeout`",
        )


async def _open_and_run(
    plan: Plan, options: RunOptions, around: Surroundings, progress: _Progress
) -> None:
    # Servers may have things to say before `run.started`, which has to come first.
    emit = _Listening(around.emit, progress)
    meter = open_meter(plan, around.carried, progress.above)
    async with open_resources(plan, around.with_emit(emit), meter) as resources:
        _start(plan, options, around, progress, all_servers(resources))
        for part, opened in parts(plan, resources):
            _optional_servers(part, around.emit, opened.servers)
            require_servers(part, opened.servers)
            require_lock(opened.tools)
            progress.tools.append(opened.tools)
        stage = _stage(plan, options, around, resources, progress)
        await run_whole(stage, progress.carriers)
        if progress.course.stopped:
            return
        # Also where something failed and the file says to go on.
        outputs = plan.pipeline.outputs
        try:
            progress.outputs = None if outputs is None else render_tree(outputs, stage.context())
            went_well = all(one.exit_code is ExitCode.OK for one in progress.records.values())
            if went_well and progress.examine is not None:
                await progress.examine(stage, progress.outputs)
        except ComputationStoppedError:
            await until_cancelled()


def _stage(
    plan: Plan,
    options: RunOptions,
    around: Surroundings,
    resources: Resources,
    progress: _Progress,
) -> Stage:
    inner: Inner | None = None
    if plan.inner:
        from aish.run.inner_run import run_inner as inner
    pipeline = plan.pipeline
    return Stage(
        plan,
        options,
        resources,
        anyio.CapacityLimiter(slots(plan, options)),
        progress.records,
        progress.ends,
        course=progress.course,
        spending=progress.spending,
        carried=around.carried,
        inner=inner,
        replayed=around.tape is not None and around.tape.offline,
        resume=() if around.tape is not None else resume_words(pipeline.file, around.folder),
        # A test may look at any of them.
        needed=steps_read(pipeline)
        if progress.examine is None
        else frozenset(step.id for step in plan.steps),
    )


def _start(
    plan: Plan,
    options: RunOptions,
    around: Surroundings,
    progress: _Progress,
    servers: tuple[ServerInfo, ...],
) -> None:
    progress.started = True
    around.emit(run_started(plan, options, servers, around))
    if around.carried is not None:
        progress.denials += around.carried.denials
        for notice in around.carried.notices:
            around.emit(notice)
    for event in progress.early:
        around.emit(event)
    progress.early.clear()


def _optional_servers(plan: Plan, emit: Emit, servers: tuple[ServerInfo, ...]) -> None:
    """Say once of each optional server that it is missing (M5)."""
    optional = {server.entry.alias for server in plan.servers if not server.entry.required}
    for server in servers:
        if server.state == "failed" and server.alias in optional:
            text = f"mcp server `{server.alias}` is missing: {server.error}"
            emit(Notice(Place(), "warning", "server_missing", text))


@slotted
class _Listening:
    """Holds events back until the run has started, and notes which calls were denied.

    From the events, because a step that ends by an error leaves no record of its calls.
    """

    emit: Emit
    progress: _Progress

    def __call__(self, event: Event) -> None:
        if isinstance(event, ToolDecided) and event.verdict in _REFUSED:
            self.progress.denials.append(event.tool)
        self.progress.spending.take(event)
        if self.progress.started:
            self.emit(event)
        else:
            self.progress.early.append(event)


def _finish(around: Surroundings, progress: _Progress, interrupt: Interrupt, begun: float) -> Exit:
    records = tuple(progress.records.values())
    others = (*progress.others, *(e for tools in progress.tools for e in lock_errors(tools)))
    state = FinalState(records, progress.error, interrupt.code, others)
    cassette: CassetteUse | None = None
    if around.tape is not None:
        ended = around.tape.end(state, around.emit)
        state, cassette = replace(state, others=state.others + ended.errors), ended.use
    end = decide_exit(state)
    usage, cost = _used(around, progress)
    around.emit(
        RunFinished(
            status=status_of(end.code),
            exit=end,
            outputs=progress.outputs,
            usage=usage,
            cost_usd=cost,
            seconds=around.clock.monotonic() - begun,
            denials=tuple(progress.denials),
            folder=around.folder.shown,
            cassette=cassette,
        )
    )
    return end


def _used(around: Surroundings, progress: _Progress) -> tuple[Usage, float | None]:
    """Tokens and money of the whole run, with what it had used before it was resumed."""
    now = progress.spending.whole
    if around.carried is None or not around.carried.spent.turns:
        return now.usage or Usage(), now.cost_usd
    before = around.carried.spent
    usage = Usage(before.tokens_in, before.tokens_out)
    cost = add_cost(before.cost_usd, now.cost_usd)
    return usage if now.usage is None else add_usage(usage, now.usage), cost
