"""A whole run: open resources, steps in order, one final state, one exit code.

`run.started`, which describes the run, is the first event.

Also the number of units of work, plain steps and items, in flight at the same time (F3).
"""

import os
import shlex
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, fields, replace

import anyio

from aish import __version__
from aish.config.model import Limits, LoopLimits
from aish.core.errors import AishError, BudgetError, ExitCode, InternalError, did_you_mean
from aish.core.events import (
    CassetteUse,
    Event,
    Exit,
    ModelInfo,
    Notice,
    Place,
    RunFinished,
    RunStarted,
    ServerInfo,
)
from aish.core.frozen import slotted
from aish.core.json import JsonValue
from aish.core.messages import Usage
from aish.core.protocols import Emit
from aish.engine.activity import Activity
from aish.engine.cancellation import (
    INTERRUPTED,
    Cancellation,
    Interrupt,
    interruptible,
    last_words,
    until_cancelled,
)
from aish.engine.environment import Recorder, RunEnvironment, RunHandle
from aish.engine.execution.fingerprint import fingerprint
from aish.engine.execution.graph import leave_out_the_rest, run_whole
from aish.engine.final import FinalState, decide_exit, status_of
from aish.engine.limits import RunMeter, Spending, open_meter
from aish.engine.plan.credentials import model_name, origin
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import steps_read
from aish.engine.plan.plan import Plan
from aish.engine.plan.validation.names import SERVED
from aish.engine.records import StepRecord
from aish.engine.resources.resources import (
    Resources,
    all_servers,
    lock_errors,
    open_resources,
    parts,
    require_lock,
    require_servers,
)
from aish.engine.resources.toolbox import AllTools, unmatched
from aish.engine.run_folder import resume_words
from aish.engine.run_values import Concurrency, TimeLimit, run_values
from aish.engine.steps.context import Examine, Inner, OpenCarrier, StepContext
from aish.policy.questions import Questions
from aish.system.computation import ComputationStoppedError
from aish.system.files import MANY_FILES, MANY_FILES_HINT, lacks_descriptors
from aish.system.globs import matches_word
from aish.system.user import login_name
from aish.templates.render import render_tree

FEWEST = 8


def slots(plan: Plan, options: RunOptions) -> int:
    """The number from the command line, else enough for the widest `foreach`."""
    if options.concurrency is not None:
        return options.concurrency
    return max(FEWEST, *_widths(plan), FEWEST)


def _widths(plan: Plan) -> Iterator[int]:
    """The concurrency of each step, including those of sub-pipelines."""
    for step in plan.steps:
        if step.flow.foreach is not None:
            yield step.flow.foreach.concurrency
    for inner in plan.inner.values():
        yield from _widths(inner)


def run_started(
    plan: Plan, options: RunOptions, servers: tuple[ServerInfo, ...], environment: RunEnvironment
) -> RunStarted:
    """The first event of the stream."""
    return RunStarted(
        aish=__version__,
        pipeline=plan.pipeline.name,
        digest=plan.pipeline.digest,
        models=tuple(_models(plan)),
        servers=servers,
        rules=plan.policy.infos(),
        limits=limits_of(plan),
        inputs=dict(options.inputs),
        overrides=plan.pipeline.overrides,
        folder=environment.folder.shown,
        resumed_from=None if environment.resume_state is None else environment.resume_state.run,
        # A run without a folder cannot be resumed.
        fingerprint={} if environment.folder.path is None else fingerprint(plan, options),
        shard=options.shard,
        cassette=None if environment.recorder is None else environment.recorder.info,
        uid=os.getuid(),
        user=login_name(),
    )


def _models(plan: Plan, prefix: str = "") -> Iterator[ModelInfo]:
    """Every model; those of sub-pipelines as `step/alias`, like their servers."""
    for alias, resolved in plan.models.items():
        yield ModelInfo(prefix + alias, model_name(resolved.entry), origin(resolved.entry))
    for id, inner in plan.inner.items():
        yield from _models(inner, f"{prefix}{id}/")


def limits_of(plan: Plan) -> Mapping[str, JsonValue]:
    """The limits of the run and of its steps' loops."""
    return {"time": None, **bounds_of(plan.limits), "steps": dict(_loops(plan))}


def _loops(plan: Plan, prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """The limits of each step; those of sub-pipelines as `step/step`."""
    for step in plan.steps:
        limits: LoopLimits = step.limits
        loop = {
            "max_tool_depth": limits.max_tool_depth,
            "max_calls_per_turn": limits.max_calls_per_turn,
            "result_limit": limits.result_limit,
        }
        yield prefix + step.id, {**loop, **bounds_of(step.flow.limits)}
        if step.id in plan.inner:
            yield from _loops(plan.inner[step.id], f"{prefix}{step.id}/")


def bounds_of(limits: Limits) -> Mapping[str, JsonValue]:
    """The limits that are set (B8)."""
    given = ((field.name, getattr(limits, field.name)) for field in fields(limits))
    return {name: value for name, value in given if value is not None}


_ANNOTATING_SECONDS = 10.0
"""For all annotations of a run, which come after its time limit."""


@slotted
class _Progress:
    """The state so far; the final state is computed from it however the run ends."""

    meter: RunMeter
    concurrency: Concurrency
    time: TimeLimit
    activity: Activity
    records: dict[str, StepRecord] = field(default_factory=dict)
    started: bool = False
    outputs: JsonValue = None
    error: AishError | None = None
    early: list[Event] = field(default_factory=list)
    others: list[AishError] = field(default_factory=list)
    examine: Examine | None = None
    carriers: OpenCarrier | None = None
    tools: list[AllTools] = field(default_factory=list)
    course: Cancellation = field(default_factory=Cancellation)
    spending: Spending = field(default_factory=Spending)


async def execute(
    plan: Plan,
    options: RunOptions,
    environment: RunEnvironment,
    examine: Examine | None = None,
    carriers: OpenCarrier | None = None,
    above: RunMeter | None = None,
) -> Exit:
    """Run `plan` to its end and return the result; every failure becomes part of it.

    The stream of events begins with `run.started` and ends with `run.finished` in any case (B12). A
    successful run is passed to `examine` while everything is still open. `carriers` opens workers
    for items. Usage is also counted by the meter `above`.
    """
    begun = environment.clock.monotonic()
    activity = Activity()
    # A limit holds for the whole run, including all its parts (B8).
    spent = 0.0 if environment.resume_state is None else environment.resume_state.spent.seconds
    progress = _Progress(
        open_meter(plan, environment.resume_state, above),
        Concurrency(slots(plan, options), options.concurrency),
        TimeLimit(plan.time_limit, activity, spent),
        activity,
        examine=examine,
        carriers=carriers,
    )
    if environment.recorder is not None:
        environment = environment.with_emit(environment.recorder.followed(environment.emit))
    past = () if environment.resume_state is None else environment.resume_state.questions
    recording = None if environment.recorder is None else environment.recorder.approvals
    questions = Questions(environment.emit, environment.clock, past, recording)
    environment = replace(environment, questions=questions)
    course = progress.course

    def end(code: ExitCode) -> None:
        course.interrupt(scope, code)
        _tell_of_end(environment, course.items if code is ExitCode.INTERRUPTED else 0)

    with anyio.CancelScope() as scope, interruptible(end) as interrupt:
        if environment.folder.path is not None:
            again = shlex.join(resume_words(plan.pipeline.file, environment.folder))
            interrupt.farewell = f"\nrun {environment.folder.id} was ended; `{again}` resumes it\n"
        if environment.attach is not None:
            emit = _Listening(environment.emit, progress)
            values = run_values(plan, progress.meter, progress.concurrency, progress.time)
            handle = RunHandle(questions, emit, interrupt.arrive, values)
            environment.attach(replace(handle, approver=environment.approver))
        try:
            await _to_its_end(plan, options, environment, progress)
            if interrupt.code is None:
                await _annotate(plan, options, environment, progress)
                if environment.before_pause is not None and progress.activity.paused.is_set():
                    await environment.before_pause()
        except Exception as error:
            if lacks_descriptors(error):
                progress.error = AishError(MANY_FILES, hint=MANY_FILES_HINT)
                return _end(plan, options, environment, progress, interrupt, begun)
            # A bug: the stream is completed, and the boundary writes the log.
            progress.error = InternalError(f"{type(error).__name__}: {error}")
            _end(plan, options, environment, progress, interrupt, begun)
            raise
    return _end(plan, options, environment, progress, interrupt, begun)


def _tell_of_end(environment: RunEnvironment, items: int) -> None:
    """Tell that a signal has come: `items` go on for a while."""
    if items:
        environment.emit(Notice(Place(), "warning", INTERRUPTED, last_words(items)))
    elif environment.attach is not None:
        # Who follows the run learns of it before its servers have ended.
        environment.emit(Notice(Place(), "info", INTERRUPTED, "the run is being ended"))


async def _to_its_end(
    plan: Plan, options: RunOptions, environment: RunEnvironment, progress: _Progress
) -> None:
    try:
        with _alone(environment.recorder, progress):
            await _within_time(plan, options, environment, progress)
    except AishError as error:
        progress.error = error


async def _annotate(
    plan: Plan, options: RunOptions, environment: RunEnvironment, progress: _Progress
) -> None:
    """Create the annotations of a run, however it ended, including failed gates (B11)."""
    if not (plan.pipeline.annotations and progress.started):
        return
    from aish.engine.execution.annotations import annotations_of
    from aish.engine.plan.template_context import template_context

    context = template_context(plan.pipeline, options, progress.records, plan.variables)
    with anyio.move_on_after(_ANNOTATING_SECONDS) as scope:
        try:
            found = annotations_of(
                plan.pipeline, context, progress.records, Place(), plan.secrets.mask
            )
            for event in found:
                environment.emit(event)
        except ComputationStoppedError:
            await until_cancelled()
    if scope.cancelled_caught:
        text = f"rendering took longer than {_ANNOTATING_SECONDS:g} s; the rest is left out"
        environment.emit(Notice(Place(), "warning", "annotations", text))


@contextmanager
def _alone(recorder: Recorder | None, progress: _Progress) -> Generator[None]:
    """Forbid network access if everything is replayed; swallowed errors are reported too."""
    if recorder is None or not recorder.offline:
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
    environment: RunEnvironment,
    progress: _Progress,
    interrupt: Interrupt,
    begun: float,
) -> Exit:
    if not progress.started:
        _start(plan, options, environment, progress, ())
    resumed = {} if environment.resume_state is None else environment.resume_state.steps
    for step in plan.steps:
        # Completed work stays completed, even if nothing could be begun any more.
        if step.id in resumed:
            progress.records.setdefault(step.id, resumed[step.id])
    leave_out_the_rest(plan, progress.records, progress.course, environment.emit)
    return _finish(environment, progress, interrupt, begun)


async def _within_time(
    plan: Plan, options: RunOptions, environment: RunEnvironment, progress: _Progress
) -> None:
    with progress.time.running() as scope:
        await _open_and_run(plan, options, environment, progress)
    if scope.cancelled_caught:
        raise BudgetError(
            f"the time limit of {progress.time.seconds:g} s is exceeded",
            hint="raise `limits.time` in the file, or `--timeout`; `--resume` continues the run",
        )


async def _open_and_run(
    plan: Plan, options: RunOptions, environment: RunEnvironment, progress: _Progress
) -> None:
    # Servers may send messages before `run.started`, which has to come first.
    emit = _Listening(environment.emit, progress)
    runtime = environment.with_emit(emit)
    async with open_resources(plan, runtime, progress.meter) as resources:
        _start(plan, options, environment, progress, all_servers(resources))
        for part, opened in parts(plan, resources):
            _optional_servers(part, environment.emit, opened.servers)
            require_servers(part, opened.servers)
            require_lock(opened.tools)
            _tell_unmatched_rules(part, environment.emit, opened)
            progress.tools.append(opened.tools)
        context = _context(plan, options, environment, resources, progress)
        await run_whole(context, progress.carriers)
        if progress.course.stopped:
            return
        # Also if a step failed and the file says to continue.
        outputs = plan.pipeline.outputs
        try:
            progress.outputs = (
                None if outputs is None else render_tree(outputs, context.template_values())
            )
            went_well = all(one.exit_code is ExitCode.OK for one in progress.records.values())
            if went_well and progress.examine is not None:
                await progress.examine(context, progress.outputs)
        except ComputationStoppedError:
            await until_cancelled()


def _tell_unmatched_rules(plan: Plan, emit: Emit, opened: Resources) -> None:
    """Tell of rules that match no tool, unless their server is not there, or only served."""
    if not plan.pipeline.rules.all:
        return
    absent = [SERVED, *(one.alias for one in opened.servers if one.state != "ready")]
    for rule in unmatched(plan.policy, opened.tools):
        server = rule.tool.partition("__")[0]
        if not any(matches_word(server, alias) for alias in absent):
            near = did_you_mean(rule.tool, [str(one.name) for one in opened.tools.listed()])
            text = f"the rule `{rule.tool}` matches no tool" + (f": {near}" if near else "")
            emit(Notice(Place(), "warning", "rule_unmatched", text))


def _context(
    plan: Plan,
    options: RunOptions,
    environment: RunEnvironment,
    resources: Resources,
    progress: _Progress,
) -> StepContext:
    inner: Inner | None = None
    if plan.inner:
        from aish.engine.execution.sub_pipeline import run_inner as inner
    pipeline = plan.pipeline
    return StepContext(
        plan,
        options,
        resources,
        progress.concurrency,
        progress.records,
        progress.time,
        course=progress.course,
        activity=progress.activity,
        spending=progress.spending,
        resume_state=environment.resume_state,
        inner=inner,
        replayed=environment.recorder is not None and environment.recorder.offline,
        has_cassette=environment.recorder is not None,
        resume=()
        if environment.recorder is not None
        else resume_words(pipeline.file, environment.folder),
        # A test may refer to any of them.
        needed=steps_read(pipeline)
        if progress.examine is None
        else frozenset(step.id for step in plan.steps),
    )


def _start(
    plan: Plan,
    options: RunOptions,
    environment: RunEnvironment,
    progress: _Progress,
    servers: tuple[ServerInfo, ...],
) -> None:
    progress.started = True
    environment.emit(run_started(plan, options, servers, environment))
    for notice in environment.notices:
        environment.emit(notice)
    if environment.resume_state is not None:
        progress.spending.begin(environment.resume_state)
        for notice in environment.resume_state.notices:
            environment.emit(notice)
    for event in progress.early:
        environment.emit(event)
    progress.early.clear()


def _optional_servers(plan: Plan, emit: Emit, servers: tuple[ServerInfo, ...]) -> None:
    """Report each missing optional server once (M5)."""
    optional = {server.entry.alias for server in plan.servers if not server.entry.required}
    for server in servers:
        if server.state == "failed" and server.alias in optional:
            text = f"mcp server `{server.alias}` is missing: {server.error}"
            emit(Notice(Place(), "warning", "server_missing", text))


@slotted
class _Listening:
    """Buffers events until the run has started, and counts turns and calls.

    From the events, because a step that ends with an error leaves no record of its calls.
    """

    emit: Emit
    progress: _Progress

    def __call__(self, event: Event) -> None:
        self.progress.spending.take(event)
        if self.progress.started:
            self.emit(event)
        else:
            self.progress.early.append(event)


def _finish(
    environment: RunEnvironment, progress: _Progress, interrupt: Interrupt, begun: float
) -> Exit:
    records = tuple(progress.records.values())
    others = (*progress.others, *(e for tools in progress.tools for e in lock_errors(tools)))
    state = FinalState(records, progress.error, interrupt.code, others)
    cassette: CassetteUse | None = None
    if environment.recorder is not None:
        ended = environment.recorder.end(state, environment.emit)
        state, cassette = replace(state, others=state.others + ended.errors), ended.use
    end = decide_exit(state)
    questions = environment.questions
    if questions is not None and interrupt.code is None and not progress.activity.paused.is_set():
        # The run is over for good: nobody is asked any more (A6).
        questions.withdraw(lambda _: True, earlier=end.code == ExitCode.OK)
    used = progress.spending.whole
    if environment.resume_state is not None:
        used = environment.resume_state.spent.plus(used)
    environment.emit(
        RunFinished(
            status=status_of(end.code),
            exit=end,
            outputs=progress.outputs,
            usage=used.usage or Usage(),
            cost_usd=used.cost_usd,
            seconds=environment.clock.monotonic() - begun,
            denials=progress.spending.denials,
            folder=environment.folder.shown,
            cassette=cassette,
            waiting=0 if questions is None else questions.waiting,
            calls=progress.spending.calls,
        )
    )
    return end
