"""Steps as a graph: all ready steps run concurrently."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from anyio.abc import TaskGroup

from aish.config.model import Step
from aish.core.errors import AishError, ExitCode
from aish.core.events import Failure, Place, StepFinished, StepStarted
from aish.core.frozen import frozen, slotted
from aish.core.protocols import Emit
from aish.core.sources import union
from aish.engine.activity import Activity
from aish.engine.cancellation import Cancellation, CutOffError, until_cancelled
from aish.engine.execution.step import KINDS, PAUSED, cut_off, fail, run_unit, withdraw_questions
from aish.engine.final import failure_of
from aish.engine.plan.order import names_item, needs_of
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord, source_fields
from aish.engine.steps.context import OpenCarrier, StepContext, has_items
from aish.engine.steps.prompt import continuation_failure
from aish.system.computation import ComputationStoppedError
from aish.system.task_group import task_group
from aish.templates.render import evaluate


async def run_whole(context: StepContext, carriers: OpenCarrier | None) -> None:
    """Run every selected step, with the items of steps on workers, if there are any."""
    if carriers is None or not has_items(context.plan):
        await run_graph(context)
        return
    if context.agent.flow is not None:
        context.agent.flow.scatter()
    async with carriers(context) as carrier:
        context.run.carrier = carrier
        await run_graph(context)


async def run_graph(context: StepContext) -> None:
    """Run every selected step, and add a record for each that has ended."""
    steps = context.plan.steps
    known = [step.id for step in steps]
    # Template references are collected once: a file may have a thousand steps.
    graph = _Graph(context, {step.id: _WaitingStep(step, needs_of(step, known)) for step in steps})
    async with task_group() as tasks:
        graph.begin(tasks)


def leave_out_the_rest(
    plan: Plan,
    records: dict[str, StepRecord],
    course: Cancellation,
    emit: Emit,
    place: Callable[[Step], Place] = lambda step: Place(step.id),
) -> None:
    """Report for each step without a record that it was not begun, and why."""
    for step in plan.steps:
        if step.id not in records:
            why = Failure("run_ended", f"not started: {course.reason or 'the run ended before it'}")
            record = records[step.id] = _skip_record(step, why)
            emit(end_event(record, place(step)))


@frozen
class _WaitingStep:
    """A step that has not begun, and the steps that it waits for."""

    step: Step
    needs: tuple[str, ...]


@slotted
class _Graph:
    context: StepContext
    waiting: dict[str, _WaitingStep]

    def begin(self, tasks: TaskGroup) -> None:
        """Begin each step whose needs have ended; skip those that are not to run."""
        context = self.context
        again = True
        while again:
            again = False
            for task in tuple(self.waiting.values()):
                if context.course.stopped or context.activity.paused.is_set():
                    return
                if any(need not in context.records for need in task.needs):
                    continue
                step = self.waiting.pop(task.step.id).step
                resumed = (
                    context.resume_state.steps.get(context.name(step))
                    if context.resume_state
                    else None
                )
                left_out = _skip_reason(step, task.needs, context)
                if resumed is not None:
                    context.records[step.id] = resumed
                elif left_out is not None:
                    record = context.records[step.id] = _skip_record(step, left_out)
                    context.emit(end_event(record, context.place(step)))
                else:
                    tasks.start_soon(self._run, step, tasks, context.activity.begin())
                    continue
                # A dependent step may come before it in the file.
                again = True

    async def _run(self, step: Step, tasks: TaskGroup, activity: Activity) -> None:
        here = replace(self.context, activity=activity)
        try:
            record = self.context.records[step.id] = await _run_step(step, here)
            fails = record.exit_code is not ExitCode.OK
            if fails and (step.flow.on_error == "fail" or record.status != "failed"):
                paused = record.status == "paused"
                name = self.context.name(step)
                self.context.course.stop(PAUSED if paused else f"step `{name}` failed")
            self.begin(tasks)
        finally:
            activity.end()


def _skip_reason(step: Step, needs: tuple[str, ...], context: StepContext) -> Failure | None:
    """Why a step is skipped if its input is missing, or if it has no `when` of its own."""
    unmet = continuation_failure(step, context.records)
    if unmet is not None or step.flow.when is not None:
        return unmet
    skipped = next((need for need in needs if context.records[need].status == "skipped"), None)
    if skipped is None:
        return None
    hint = "give the step a `when` of its own to decide"
    return Failure("need_skipped", f"it needs `{skipped}`, which was skipped", hint)


def _skip_record(step: Step, why: Failure) -> StepRecord:
    items = None if step.flow.foreach is None else ()
    return StepRecord(step.id, KINDS[type(step)], "skipped", failure=why, items=items)


async def _run_step(step: Step, context: StepContext) -> StepRecord:
    emit, clock = context.emit, context.clock
    begun = clock.monotonic()
    try:
        record = await _outcome(step, context)
    except CutOffError:
        record = _cut_off(step, context)
    except BaseException:
        # Cancelled (a signal, the time limit) or a bug: the step's end is emitted anyway.
        now = clock.monotonic()
        record = replace(_whole(_cut_off(step, context), step, context), seconds=now - begun)
        context.records[step.id] = record
        emit(end_event(record, context.place(step), follows=context.agent.flow is not None))
        raise
    record = replace(_whole(record, step, context), seconds=clock.monotonic() - begun)
    context.run.spending.forget(context.place(step))
    emit(end_event(record, context.place(step), follows=context.agent.flow is not None))
    return record


def _whole(record: StepRecord, step: Step, context: StepContext) -> StepRecord:
    """A step with items becomes a list of those that ended, even if it failed as a whole."""
    ended = context.run.ended.pop(context.place(step), [])
    if step.flow.foreach is None or record.items is not None:
        return record
    ended.sort(key=lambda item: item.index)
    sources = union((record.sources, *(item.record.sources for item in ended)))
    return replace(record, items=tuple(ended), sources=sources)


async def _outcome(step: Step, context: StepContext) -> StepRecord:
    flow = step.flow
    began, emit = StepStarted(context.place(step), KINDS[type(step)]), context.emit
    try:
        per_item = flow.foreach is not None and names_item(step)
        if (
            flow.when is not None
            and not per_item
            and not evaluate(flow.when, context.template_values())
        ):
            why = Failure("when", f"condition `when` is false: {flow.when}")
            return _skip_record(step, why)
        if flow.foreach is not None:
            from aish.engine.execution.foreach import run_items

            return await _within_time(step, context, run_items(step, flow.foreach, context))
    except AishError as error:
        emit(began)
        return fail(step, context, failure_of(error), error.exit_code, retryable=error.retryable)
    except ComputationStoppedError:
        emit(began)
        await until_cancelled()
    if KINDS[type(step)] == "pipeline":
        # Its own steps take the slots; one for the step itself could cause a deadlock.
        emit(began)
        return await _within_time(step, context, run_unit(step, context))
    await context.activity.take_slot(context.run.concurrency.slots)
    try:
        emit(began)
        with context.course.plain_unit():
            return await _within_time(step, context, run_unit(step, context))
    finally:
        context.activity.give_back_slot()


async def _within_time(step: Step, context: StepContext, work: Awaitable[StepRecord]) -> StepRecord:
    """The end of a step with all its items and attempts, within its `limits.time`."""
    limit = step.flow.limits.time
    with context.activity.within(limit) as scope:
        try:
            record = await work
        except ComputationStoppedError:
            await until_cancelled()
    if not scope.cancelled_caught:
        return record
    withdraw_questions(step, context)
    message = f"the time limit of the step, {limit:g} s, is exceeded"
    hint = "raise its `limits.time`; `--resume` continues the run"
    return fail(step, context, Failure("time", message, hint), ExitCode.BUDGET)


def _cut_off(step: Step, context: StepContext) -> StepRecord:
    if context.run.time is not None and context.run.time.left <= 0:
        late = Failure("time", "the time limit of the run is exceeded")
        return fail(step, context, late, ExitCode.BUDGET)
    return cut_off(step, context)


def end_event(record: StepRecord, place: Place, *, follows: bool = False) -> StepFinished:
    """The event of the end of a step, with its sources if the run `follows` them."""
    return StepFinished(
        place=place,
        status=record.status,
        text=record.text,
        output=record.output,
        usage=record.usage,
        cost_usd=record.cost_usd,
        seconds=record.seconds,
        error=record.failure,
        exit_code=int(record.exit_code),
        **(source_fields(record) if follows else {}),
    )
