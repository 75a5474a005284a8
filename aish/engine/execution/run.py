"""A whole run: open resources, steps in order, one final state, one exit code.

`run.started`, which describes the run, is the first event.

Also the number of units of work, plain steps and items, in flight at the same time.
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
    ItemFinished,
    ModelInfo,
    Notice,
    Place,
    RunFinished,
    RunStarted,
    ServerInfo,
    StepFinished,
)
from aish.core.frozen import slotted
from aish.core.json import JsonValue
from aish.core.messages import Usage
from aish.core.protocols import Emit
from aish.core.sources import NO_SOURCES, names_of
from aish.engine.activity import Activity
from aish.engine.answer_schema import released_bits
from aish.engine.cancellation import (
    INTERRUPTED,
    Cancellation,
    Interrupt,
    interruptible,
    last_words,
    until_cancelled,
)
from aish.engine.environment import RunEnvironment, RunHandle
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
from aish.engine.resources.toolbox import AllTools, rules_without_tool
from aish.engine.run_folder import resume_words
from aish.engine.run_values import Concurrency, TimeLimit, run_values
from aish.engine.steps.context import Examine, OpenCarrier, RunInner, RunScope, StepContext
from aish.engine.steps.sources import sources_of_tree
from aish.models.smollm2 import params_of
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
            yield plan.width(step)
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
        entry = resolved.entry
        yield ModelInfo(prefix + alias, model_name(entry), origin(entry), params_of(entry))
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


def _released(plan: Plan, prefix: str = "") -> Iterator[tuple[tuple[type[Event], str], int]]:
    """The bits that each output of a step loses labels with, or one of its items."""
    for step in plan.steps:
        if bits := released_bits(step):
            kind = StepFinished if step.flow.foreach is None else ItemFinished
            yield (kind, prefix + step.id), bits
        if step.id in plan.inner:
            yield from _released(plan.inner[step.id], f"{prefix}{step.id}/")


def bounds_of(limits: Limits) -> Mapping[str, JsonValue]:
    values = ((field.name, getattr(limits, field.name)) for field in fields(limits))
    return {name: value for name, value in values if value is not None}


_ANNOTATING_SECONDS = 10.0
"""For all annotations of a run, which come after its time limit."""


def finish_run(
    environment: RunEnvironment,
    end: Exit,
    begun: float,
    spending: Spending,
    outputs: JsonValue = None,
    cassette: CassetteUse | None = None,
    waiting: int = 0,
    output_sources: Mapping[str, tuple[str, ...]] | None = None,
) -> Exit:
    """Emit the last event of the stream, with the usage of all parts of the run; returns `end`."""
    used = spending.total
    environment.emit(
        RunFinished(
            status=status_of(end.code),
            exit=end,
            outputs=outputs,
            usage=used.usage or Usage(),
            cost_usd=used.cost_usd,
            seconds=environment.clock.monotonic() - begun,
            denials=spending.denials,
            folder=environment.folder.shown,
            cassette=cassette,
            waiting=waiting,
            calls=spending.calls,
            released_bits=spending.released_bits,
            output_sources=output_sources,
            served=spending.served.all,
        )
    )
    return end


@slotted
class HeldEvents:
    """Holds events back until the run has started, which has to be told first."""

    emit: Emit
    started: bool = False
    early: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if self.started:
            self.emit(event)
        else:
            self.early.append(event)

    def release(self) -> None:
        """Emit what was held back; nothing is any more."""
        self.started = True
        for event in self.early:
            self.emit(event)
        self.early.clear()


async def execute(
    plan: Plan,
    options: RunOptions,
    environment: RunEnvironment,
    examine: Examine | None = None,
    carriers: OpenCarrier | None = None,
    above: RunMeter | None = None,
) -> Exit:
    """Run `plan` to its end and return the result; every failure becomes part of it.

    The stream of events begins with `run.started` and ends with `run.finished` in any case. A
    successful run is passed to `examine` while everything is still open. `carriers` opens workers
    for items. Usage is also counted by the meter `above`.
    """
    recorder, resumed = environment.recorder, environment.resume_state
    if recorder is not None:
        environment = environment.with_emit(recorder.followed(environment.emit))
    past = () if resumed is None else resumed.questions
    recording = None if recorder is None else recorder.approvals
    questions = Questions(environment.emit, environment.clock, past, recording)
    activity = Activity()
    # A limit holds for the whole run, including all its parts.
    spent = 0.0 if resumed is None else resumed.spent.seconds
    concurrency = Concurrency(slots(plan, options), options.concurrency)
    meter = open_meter(plan, resumed, above)
    meter.note_crowded = concurrency.note_crowded
    run = _Run(
        plan,
        options,
        replace(environment, questions=questions, note_idle=concurrency.note_idle),
        questions,
        meter,
        concurrency,
        TimeLimit(plan.time_limit, activity, spent),
        activity,
        examine,
        carriers,
        HeldEvents(environment.emit),
        environment.clock.monotonic(),
        spending=Spending(bits=dict(_released(plan))),
    )
    return await run.to_its_end()


@slotted
class _Run:
    """A run and its state so far; the final state is computed from that however the run ends."""

    plan: Plan
    options: RunOptions
    environment: RunEnvironment
    questions: Questions
    meter: RunMeter
    concurrency: Concurrency
    time: TimeLimit
    activity: Activity
    examine: Examine | None
    carriers: OpenCarrier | None
    held: HeldEvents
    begun: float
    records: dict[str, StepRecord] = field(default_factory=dict)
    outputs: JsonValue = None
    output_sources: Mapping[str, tuple[str, ...]] | None = None
    error: AishError | None = None
    others: list[AishError] = field(default_factory=list)
    tools: list[AllTools] = field(default_factory=list)
    course: Cancellation = field(default_factory=Cancellation)
    spending: Spending = field(default_factory=Spending)

    async def to_its_end(self) -> Exit:
        environment, folder = self.environment, self.environment.folder

        def end(code: ExitCode) -> None:
            self.course.interrupt(scope, code)
            self._tell_of_end(self.course.items if code is ExitCode.INTERRUPTED else 0)

        with anyio.CancelScope() as scope, interruptible(end) as interrupt:
            if folder.path is not None:
                again = shlex.join(resume_words(self.plan.pipeline.file, folder))
                interrupt.farewell = f"\nrun {folder.id} was ended; `{again}` resumes it\n"
            if environment.attach is not None:
                values = run_values(self.plan, self.meter, self.concurrency, self.time)
                handle = RunHandle(self.questions, self._emit, interrupt.arrive, values)
                environment.attach(replace(handle, approver=environment.approver))
            try:
                await self._run_watched()
                if interrupt.code is None:
                    await self._annotate()
                    if environment.before_pause is not None and self.activity.paused.is_set():
                        await environment.before_pause()
            except Exception as error:
                if lacks_descriptors(error):
                    self.error = AishError(MANY_FILES, hint=MANY_FILES_HINT)
                    return self._end(interrupt)
                # A bug: the stream is completed, and the boundary writes the log.
                self.error = InternalError(f"{type(error).__name__}: {error}")
                self._end(interrupt)
                raise
        return self._end(interrupt)

    async def _run_watched(self) -> None:
        """Run, and tell which files have changed, also after a signal."""
        changes = self.environment.changes
        if changes is None:
            await self._run()
            return
        try:
            await changes.begin()
            await self._run()
        finally:
            with anyio.CancelScope(shield=True):
                for event in await changes.end():
                    self._emit(event)

    async def _run(self) -> None:
        try:
            with self._alone(), self.time.enforce() as scope:
                await self._open_and_run()
            if scope.cancelled_caught:
                self.error = BudgetError(
                    f"the time limit of {self.time.seconds:g} s is exceeded",
                    hint="raise `limits.time` in the file, or `--timeout`; `--resume` continues "
                    "the run",
                )
        except AishError as error:
            self.error = error

    def _emit(self, event: Event) -> None:
        """Count turns and calls: a step that ends with an error leaves no record of its calls.

        Servers may send messages before `run.started`, which has to come first.
        """
        notice = self.spending.take(event)
        for one in (event,) if notice is None else (event, notice):
            if self.held.started:
                self.held.emit(one)
            else:
                self.held(one)

    def _tell_of_end(self, items: int) -> None:
        """Tell that a signal has come: `items` go on for a while."""
        if items:
            self._emit(Notice(Place(), "warning", INTERRUPTED, last_words(items)))
        elif self.environment.attach is not None:
            # Who follows the run learns of it before its servers have ended.
            self._emit(Notice(Place(), "info", INTERRUPTED, "the run is being ended"))

    async def _annotate(self) -> None:
        """Create the annotations of a run, however it ended, including failed gates."""
        plan, emit = self.plan, self.environment.emit
        if not (plan.pipeline.annotations and self.held.started):
            return
        from aish.engine.execution.annotations import annotations_of
        from aish.engine.plan.template_context import template_context

        context = template_context(plan.pipeline, self.options, self.records, plan.variables)
        with anyio.move_on_after(_ANNOTATING_SECONDS) as scope:
            try:
                mask = plan.secrets.mask
                for event in annotations_of(plan.pipeline, context, self.records, Place(), mask):
                    emit(event)
            except ComputationStoppedError:
                await until_cancelled()
        if scope.cancelled_caught:
            text = f"rendering took longer than {_ANNOTATING_SECONDS:g} s; the rest is left out"
            emit(Notice(Place(), "warning", "annotations", text))

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Forbid network access in a replay, except to live models; swallowed errors count too."""
        recorder = self.environment.recorder
        if recorder is None or not (recorder.offline or recorder.asks_only_models):
            yield
            return
        from aish.system.offline import offline, offline_here

        with offline() if recorder.offline else offline_here() as trips:
            try:
                yield
            finally:
                self.others += trips

    @property
    def _replays_all(self) -> bool:
        return self.environment.recorder is not None and self.environment.recorder.offline

    async def _open_and_run(self) -> None:
        plan, emit = self.plan, self.environment.emit
        runtime = self.environment.with_emit(self._emit)
        async with open_resources(plan, runtime, self.meter) as resources:
            self._start(all_servers(resources))
            for part, opened in parts(plan, resources):
                _optional_servers(part, emit, opened.servers)
                require_servers(part, opened.servers)
                require_lock(opened.tools)
                _tell_unmatched_rules(part, emit, opened)
                self.tools.append(opened.tools)
            context = self._context(resources)
            await run_whole(context, self.carriers)
            if self.course.stopped:
                return
            # Also if a step failed and the file says to continue.
            outputs = plan.pipeline.outputs
            if context.agent.flow is not None and outputs is not None:
                self.output_sources = {
                    name: names_of(sources_of_tree(value, context))
                    for name, value in outputs.items()
                }
            try:
                if outputs is not None:
                    self.outputs = render_tree(outputs, context.template_values())
                went_well = all(record.exit_code is ExitCode.OK for record in self.records.values())
                if went_well and self.examine is not None:
                    await self.examine(context, self.outputs)
            except ComputationStoppedError:
                await until_cancelled()

    def _context(self, resources: Resources) -> StepContext:
        plan, environment = self.plan, self.environment
        run_inner: RunInner | None = None
        if plan.inner:
            from aish.engine.execution.sub_pipeline import run_inner
        has_cassette = environment.recorder is not None
        # A test may refer to any step.
        every = frozenset(step.id for step in plan.steps)
        given = environment.around.inputs if environment.around else NO_SOURCES
        run = RunScope(
            self.concurrency,
            self.time,
            self.spending,
            replayed=self._replays_all,
            has_cassette=has_cassette,
            resume=() if has_cassette else resume_words(plan.pipeline.file, environment.folder),
            run_inner=run_inner,
        )
        return StepContext(
            run,
            plan,
            self.options,
            resources,
            self.records,
            self.course,
            environment.resume_state,
            activity=self.activity,
            needed=steps_read(plan.pipeline) if self.examine is None else every,
            given=dict.fromkeys(plan.pipeline.inputs, given),
        )

    def _start(self, servers: tuple[ServerInfo, ...]) -> None:
        environment, resumed = self.environment, self.environment.resume_state
        started = run_started(self.plan, self.options, servers, environment)
        if environment.recorder is None:
            words = resume_words(self.plan.pipeline.file, environment.folder)
            started = replace(started, resume_command=shlex.join(words) or None)
        environment.emit(started)
        if resumed is not None:
            self.spending.begin(resumed)
        for notice in (*environment.notices, *(() if resumed is None else resumed.notices)):
            environment.emit(notice)
        self.held.release()

    def _end(self, interrupt: Interrupt) -> Exit:
        environment, questions = self.environment, self.questions
        if not self.held.started:
            self._start(())
        resumed = {} if environment.resume_state is None else environment.resume_state.steps
        for step in self.plan.steps:
            # Completed work stays completed, even if nothing could be begun any more.
            if step.id in resumed:
                self.records.setdefault(step.id, resumed[step.id])
        leave_out_the_rest(self.plan, self.records, self.course, environment.emit)
        others = (*self.others, *(e for tools in self.tools for e in lock_errors(tools)))
        state = FinalState(tuple(self.records.values()), self.error, interrupt.code, others)
        cassette: CassetteUse | None = None
        if environment.recorder is not None:
            ended = environment.recorder.end(state, environment.emit)
            state, cassette = replace(state, others=state.others + ended.errors), ended.use
        end = decide_exit(state)
        if interrupt.code is None and not self.activity.paused.is_set():
            # The run is over for good: nobody is asked any more.
            questions.withdraw(lambda _: True, earlier=end.code == ExitCode.OK)
        return finish_run(
            environment,
            end,
            self.begun,
            self.spending,
            self.outputs,
            cassette,
            questions.waiting,
            self.output_sources,
        )


def _tell_unmatched_rules(plan: Plan, emit: Emit, opened: Resources) -> None:
    """Tell of rules that match no tool, unless their server is not there, or only served."""
    if not plan.pipeline.rules.all:
        return
    absent = [SERVED, *(one.alias for one in opened.servers if one.state != "ready")]
    for rule in rules_without_tool(plan.policy, opened.tools):
        server = rule.tool.partition("__")[0]
        if not any(matches_word(server, alias) for alias in absent):
            near = did_you_mean(rule.tool, [str(tool.name) for tool in opened.tools.listed()])
            text = f"the rule `{rule.tool}` matches no tool" + (f": {near}" if near else "")
            emit(Notice(Place(), "warning", "rule_unmatched", text))


def _optional_servers(plan: Plan, emit: Emit, servers: tuple[ServerInfo, ...]) -> None:
    """Report each missing optional server once."""
    optional = {server.entry.alias for server in plan.servers if not server.entry.required}
    for server in servers:
        if server.state == "failed" and server.alias in optional:
            text = f"mcp server `{server.alias}` is missing: {server.error}"
            emit(Notice(Place(), "warning", "server_missing", text))
