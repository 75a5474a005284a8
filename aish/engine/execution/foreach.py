"""A step over many items: several in flight, each result reported once.

Items run in this process or on workers.
"""

from collections.abc import Callable, Iterator
from dataclasses import field
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from aish.agent.converse import SuspendedError
from aish.config.model import Foreach, MaxFailures, PipelineStep, PromptStep, RunStep, Step
from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.events import (
    Failure,
    ItemFinished,
    ItemMoved,
    ItemStarted,
    KeySurvey,
    Notice,
    Place,
    StepStarted,
)
from aish.core.frozen import frozen, replace, slotted
from aish.core.messages import Spent, Usage
from aish.core.phrases import counted
from aish.core.sources import union
from aish.engine.activity import MOST_WAITING, Activity
from aish.engine.cancellation import CutOffError, until_cancelled
from aish.engine.execution.item_source import count, input_parts, items_of, key_of, survey_keys
from aish.engine.execution.step import KINDS, cut_off, ends_the_run, fail, how_to_go_on, run_unit
from aish.engine.final import PRECEDENCE, failure_of
from aish.engine.plan.order import names_item
from aish.engine.plan.plan import USUAL_ITEMS
from aish.engine.records import (
    ItemRecord,
    StepRecord,
    has_no_usage,
    may_be_mended,
    source_fields,
)
from aish.engine.resources.resources import require_live_servers
from aish.engine.steps.context import Carrier, ItemScope, RemoteItem, StepContext, Suspended
from aish.engine.steps.sources import item_sources
from aish.items.items import Item, Items
from aish.items.keys import DuplicateKeyError, KeyOf, Keys, StandInKeyError, key_text, place_key
from aish.items.shards import holds
from aish.items.source import digest_of
from aish.system.computation import ComputationStoppedError
from aish.system.task_group import task_group
from aish.templates.render import evaluate

if TYPE_CHECKING:
    from aish.engine.execution.suspension import SuspendedItems
    from aish.engine.resume_state import DoneItem, DoneItems


@frozen
class ItemTask:
    """An item to be run; with a `problem` it has no key of its own, and fails with it."""

    item: Item
    key: str
    digest: str
    problem: Failure | None = None

    def start_event(self, place: Place) -> ItemStarted:
        return ItemStarted(place, self.key, self.item.index, self.digest, self.item.value)

    def finish_event(
        self, place: Place, record: StepRecord, *, follows: bool = False
    ) -> ItemFinished:
        """The event of its end, with its sources if the run `follows` them."""
        return ItemFinished(
            place=place,
            key=self.key,
            index=self.item.index,
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


async def run_item(
    step: Step, context: StepContext, begin: Callable[[], None]
) -> StepRecord | None:
    """The end of the item of `context`; `None` if it has none because the run was stopped.

    Raises:
        SuspendedError: it waits for a batch, and is to go on later.
    """
    skipped = None
    if context.suspended is None:
        skipped = await skip_record(step, context)
        begin()
    root = context.course.root()
    root.items += 1
    try:
        return skipped or await run_unit(step, context)
    except CutOffError:
        return None
    finally:
        root.items -= 1


async def skip_record(step: Step, context: StepContext) -> StepRecord | None:
    """The end of an item that is skipped by the step's `when`."""
    when = step.flow.when
    try:
        if when is None or not names_item(step) or evaluate(when, context.template_values()):
            return None
    except AishError as error:
        return fail(step, context, failure_of(error), error.exit_code)
    except ComputationStoppedError:
        await until_cancelled()
    why = Failure("when", f"condition `when` is false: {when}")
    return StepRecord(step.id, KINDS[type(step)], "skipped", failure=why)


# If the total is unknown, a share is meaningful only after some items.
_FEWEST = 20


def exceeds(most: MaxFailures, bad: int, done: int, total: int | None) -> bool:
    """Return true if `bad` of `done` items exceed the limit of the file."""
    if most.count is not None:
        return bad > most.count
    if total is None and done < _FEWEST:
        return False
    return bad > (most.share or 0.0) * (total if total is not None else done)


MOST_AT_WORK = 64
"""Items of one step by batches that are at work at once, and do not wait: for their prompts and
their tool calls. All answers of a batch come together."""
# Failures that decide the exit code even if the run is completed.
_NAMED = frozenset({ExitCode.DENIED, ExitCode.BUDGET})
# Number of completed items to skip before yielding to other tasks.
_AT_ONCE = 500
_BEGUN_AT_ONCE = 16


async def run_items(step: Step, foreach: Foreach, context: StepContext) -> StepRecord:
    """Run `step` for each item that is not completed; also emits `step.started`.

    Raises:
        StepFailedError: the items cannot be read.
    """
    values = context.template_values()
    kind = KINDS[type(step)]
    try:
        items = items_of(foreach, values)
        keys = await _survey_items(step, foreach, items, context)
        known = await count(items, keys, foreach, context)
        odd = items.other_delimiter() if foreach.delimiter is None else None
    except (ComputationStoppedError, CutOffError, anyio.get_cancelled_exc_class()):
        context.emit(StepStarted(context.place(step), kind))
        raise
    before = context.resume_state.items.get(context.name(step)) if context.resume_state else None
    done = before.ok + before.failed if before is not None else 0
    parts = () if context.prefix else input_parts(step, context.plan)
    schema = step.output.schema if isinstance(step, PromptStep) and step.output else None
    context.emit(StepStarted(context.place(step), kind, known, done, parts, schema))
    if odd is not None:
        context.emit(
            Notice(context.place(step), "warning", "delimiter", f"{items.place(1)}: {odd}")
        )
    total = items.total if context.options.shard is None else None
    kept = context.run.ended[context.place(step)] = []
    repeats = None if foreach.key is None else Keys(foreach.on_duplicate)
    queue = _ItemQueue(
        step, foreach, context, items, iter(items), key_of(foreach, values), repeats, kept
    )
    return await _ForeachRun(step, foreach, context, queue, kept, total, known).run()


async def _survey_items(
    step: Step, foreach: Foreach, items: Items, context: StepContext
) -> KeySurvey | None:
    """The survey of the items' keys, if one is required; not repeated when resuming.

    Raises:
        ItemsError: the items cannot be read, or a duplicate key is an error.
    """
    if foreach.key is None:
        return None
    # An item of a sub-pipeline may have rewritten the file since the run began.
    known = None if context.within else context.options.surveys.get(context.name(step))
    if known is not None or not context.options.key_check or context.resume_state is not None:
        return known
    with context.course.plain_unit():
        for known in survey_keys(foreach, items, context.template_values()):
            if known is None:
                await checkpoint()
    return known


@slotted
class _ItemQueue:
    """The items of one `foreach` step in their order, each with its key.

    `kept` gets the results of those that an earlier part of the run has completed. `repeated`
    counts the items whose key was taken.
    """

    step: Step
    foreach: Foreach
    context: StepContext
    items: Items
    source: Iterator[Item]
    key_of: KeyOf
    keys: Keys | None
    kept: list[ItemRecord]
    repeated: int = 0

    @property
    def before(self) -> "DoneItems | None":
        """The items that earlier parts of the run have completed."""
        state = self.context.resume_state
        return None if state is None else state.items.get(self.context.name(self.step))

    def is_empty(self) -> bool:
        """Return true if no items are left, without reading ahead."""
        try:
            return next(self.source, None) is None
        except AishError:
            return False

    def task(self, item: Item) -> ItemTask | None:
        """The task for an item; `None` if it is completed, skipped, or in another shard."""
        context, problem = self.context, None
        try:
            key = self._key(item)
        except DuplicateKeyError:
            raise
        except AishError as error:
            key = place_key(item.index)
            where = self.items.place(item.index if item.line is None else item.line)
            problem = Failure("key", f"{where}: {error.message}", error.hint)
        if key is None:
            return None
        if self.foreach.on_duplicate == "first":
            # Skipped items leave no gap.
            item = replace(item, index=item.index - self.repeated)
        shard = context.options.shard
        if shard is not None and not holds(shard, key):
            return None
        digest = digest_of(item.value)
        done = self.before.get(key) if self.before is not None else None
        if done is None:
            return ItemTask(item, key, digest, problem)
        self._carry(key, item.index, digest, done)
        return None

    def report_repeated(self) -> None:
        """Report how many items had a duplicate key, and how they were handled."""
        if not self.repeated:
            return
        is_single = self.repeated == 1
        if self.foreach.on_duplicate == "first":
            became = "is left out" if is_single else "are left out"
        else:
            became = "has a number added to it" if is_single else "have numbers added to them"
        message = f"{counted(self.repeated, 'item')} with a duplicate key {became}"
        place = self.context.place(self.step)
        self.context.emit(Notice(place, "warning", "keys_repeated", message))

    def _key(self, item: Item) -> str | None:
        """The key of the item; `None` if it is skipped."""
        try:
            key = key_text(self.key_of(item))
        except StandInKeyError as error:
            # Earlier versions wrote such keys; completed items stay completed.
            if not self._is_done(error.key, item):
                raise
            key = error.key
        if self.keys is None:
            return key
        name = self.keys.add(key, item.index)
        if name == key:
            return key
        self.repeated += 1
        return None if name is None else key_text(name)

    def _is_done(self, key: str, item: Item) -> bool:
        done = self.before.get(key) if self.before is not None else None
        left_out = self.repeated if self.foreach.on_duplicate == "first" else 0
        return done is not None and done.index == item.index - left_out

    def _carry(self, key: str, index: int, digest: str, done: "DoneItem") -> None:
        if done.digest != digest and not self.context.options.force:
            raise UsageError(
                f"the item `{key}` changed since the run started",
                where=f"step `{self.context.name(self.step)}`",
                hint="`--force` continues with the existing results",
            )
        if done.index != index:
            place = replace(self.context, item=ItemScope(key, {})).place(self.step)
            self.context.emit(ItemMoved(place, key, index))
        if done.record is not None:
            self.kept.append(ItemRecord(key, index, done.record))


@slotted
class _Failures:
    """The failed items of one step.

    `earlier` of them failed in an earlier part of the run, and `can_be_mended` tells that another
    attempt could help one. `rule` is a rule that would approve the first denied call.
    """

    count: int = 0
    earlier: int = 0
    codes: set[ExitCode] = field(default_factory=set)
    first: ItemRecord | None = None
    rule: str | None = None
    can_be_mended: bool = False

    def add(self, item: ItemRecord) -> None:
        record, failure = item.record, item.record.failure
        self.count += 1
        self.codes.add(record.exit_code)
        code = None if failure is None else failure.code
        self.can_be_mended = self.can_be_mended or may_be_mended(record.status, code)
        is_lost = record.exit_code is ExitCode.UNAVAILABLE
        if (is_lost or record.status == "denied") and failure is not None:
            self.rule = self.rule or failure.hint
        self.first = self.first or item

    def describe(self, done: int) -> str:
        """Say how many of the `done` items failed, and why the first one did."""
        text = f"{self.count:,} of {'1 item' if done == 1 else f'{done:,} items'} failed"
        if self.earlier:
            many = "all" if self.earlier == self.count else f"{self.earlier:,}"
            text = f"{text} ({many} before this part)"
        if self.first is None:
            return text
        failure = self.first.record.failure
        reason = self.first.record.status if failure is None else failure.message
        return f"{text}; first `{self.first.key}`: {reason}"

    @property
    def hint(self) -> str | None:
        failure = None if self.first is None else self.first.record.failure
        return self.rule or (None if failure is None else failure.hint)


class _Stage(IntEnum):
    """Progress of a step through its items; it only moves forward."""

    READING = 0
    READ = 1
    """All items have been begun."""
    CUT_OFF = 2
    """An item has no result, because the run was stopped."""
    STOPPED = 3
    """Too many items have failed: no more are begun."""


@slotted
class _ForeachRun:
    """The state of one `foreach` step: which items run, and how they have ended.

    `total` is the number of items, `expected` an estimate for a file that was not read yet.
    `stage` is a record if that of an item ends the whole run.
    """

    step: Step
    foreach: Foreach
    context: StepContext
    queue: _ItemQueue
    kept: list[ItemRecord]
    total: int | None
    expected: int | None
    stage: _Stage | StepRecord = _Stage.READING
    done: int = 0
    failures: _Failures = field(default_factory=_Failures)
    spent: Spent = Spent()
    paused: list[ItemRecord] = field(default_factory=list)
    workers: int = 0
    waiting: int = 0
    tasks: TaskGroup | None = None
    suspended: "SuspendedItems[ItemTask] | None" = None
    suspension: Activity | None = None
    is_idle: bool = False
    left: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> StepRecord:
        """Run items, `concurrency` at a time; returns the step's end once all have ended."""
        self._take_over()
        if self.context.plan.in_batches(self.step):
            # Few runs need it.
            from aish.engine.execution.suspension import SuspendedItems, may_suspend

            if may_suspend(self.step, self.context):
                self.suspended = SuspendedItems(self._on_ready)
        try:
            with self.context.run.concurrency.on_change(self._widen):
                async with task_group() as tasks:
                    self.tasks = tasks
                    for _ in range(min(self.width, USUAL_ITEMS)):
                        self._begin_worker()
                    if not self.workers:
                        self.left.set()
                    # Those that are suspended have no task that keeps the group open.
                    await self.left.wait()
        finally:
            if self.suspended is not None:
                self.suspended.close()
                self._note_suspended()
                self._note_idle(is_idle=False)
        if self.stage is _Stage.READING and self.queue.is_empty():
            self.stage = _Stage.READ
        if self.stage is _Stage.READ and self._was_stopped():
            self.stage = _Stage.STOPPED
        self.queue.report_repeated()
        return self._record()

    @property
    def width(self) -> int:
        width = self.context.run.concurrency.width(self.context.plan.width(self.step))
        return width if self.total is None else min(width, self.total)

    @property
    def _at_work(self) -> int:
        return self.workers - self.waiting

    @property
    def _most_at_work(self) -> int:
        """The most items at work at once; by batches, beside those that wait for one."""
        if not self.context.plan.in_batches(self.step):
            return self.width
        return min(self.width, MOST_AT_WORK + self.context.run.concurrency.idle)

    def _has_room(self, more: int) -> bool:
        """Return true if so many more items may be open, and at work."""
        suspended = 0 if self.suspended is None else len(self.suspended)
        is_open = self._at_work + suspended + more <= self.width
        return is_open and self._at_work + more <= self._most_at_work

    def _widen(self) -> None:
        """Begin more items at once if more may be in flight now."""
        if self.suspended is not None and self.suspended.is_ready:
            self._on_ready()
        while not self.left.is_set() and self._has_room(1):
            if self.stage is _Stage.READ or not self._goes_on():
                return
            self._begin_worker()

    def _take_over(self) -> None:
        """Take over the completed items of a resumed run."""
        before = self.queue.before
        if before is None:
            return
        self.done, failed = before.ok + before.failed, before.failed
        if failed:
            codes, can_be_mended = set(before.exit_codes), before.mendable > 0
            self.failures = _Failures(failed, failed, codes, can_be_mended=can_be_mended)
        usage = before.spent.usage or Usage() if self.done and self._asks_models else None
        self.spent = Spent(usage=usage, cost_usd=before.spent.cost_usd)

    def _was_stopped(self) -> bool:
        """Return true if items of earlier parts have stopped the step, and none was left."""
        before = self.queue.before
        if before is None or not self.failures.count or self.done > len(before):
            return False
        return self._has_too_many() if before.stopped is None else before.stopped

    def _begin_worker(self) -> None:
        activity = self.context.activity.begin()
        activity.on_wait = self._on_wait
        self.workers += 1
        self._note_idle(is_idle=False)
        assert self.tasks is not None, "the step has begun"
        self.tasks.start_soon(self._worker, activity)

    def _on_wait(self, waits: bool) -> None:  # ruff: ignore[boolean-type-hint-positional-argument] - the only thing that is told
        """An item begins to wait for an answer, and another may run; or it goes on."""
        self.waiting += 1 if waits else -1
        if waits and self.stage is not _Stage.READ and self._goes_on():
            self._begin_worker()

    async def _worker(self, activity: Activity) -> None:
        try:
            await self._run_items(activity)
        finally:
            self.workers -= 1
            activity.end()
            if not self.workers:
                self._note_idle(is_idle=bool(self.suspended))
                if not self.suspended:
                    self.left.set()

    async def _run_items(self, activity: Activity) -> None:
        carrier, slots = self.context.run.carrier, self.context.run.concurrency.slots
        # The steps of a local sub-pipeline take their own.
        takes_slot = carrier is not None or not isinstance(self.step, PipelineStep)
        begun = 0
        while True:
            task, suspended = None, None
            if self.suspended is not None and self.suspended.is_ready:
                task, suspended = self.suspended.take()
                self._note_suspended()
            elif not self._goes_on() or not self._has_room(0):
                return
            if takes_slot:
                await activity.take_slot(slots)
            try:
                if task is None:
                    tasks = await self._next_tasks(carrier)
                    if not tasks:
                        return
                    task = tasks[0]
                if carrier is None or suspended is not None:
                    await self._run(task, activity, suspended)
                else:
                    await self._hand_over(tasks, carrier, activity)
            finally:
                activity.give_back_slot()
            begun += 1
            if begun % _BEGUN_AT_ONCE == 0:
                # An item that is skipped has not waited for anything.
                await checkpoint()

    async def _next_tasks(self, carrier: Carrier | None) -> list[ItemTask]:
        """The next item to run, or as many as are handed over together; empty at the end."""
        size = 1 if carrier is None else carrier.size(self.step, self.context)
        tasks: list[ItemTask] = []
        try:
            while len(tasks) < size and (task := await self._next()) is not None:
                tasks.append(task)
        except AishError as error:
            self._end(fail(self.step, self.context, failure_of(error), error.exit_code))
            return []
        if tasks and self.stage is _Stage.READING and self._has_room(1):
            # Most items that there may be at once are never there.
            self._begin_worker()
        return tasks

    async def _next(self) -> ItemTask | None:
        """The next item to run, if there is one and more are allowed.

        Raises:
            UnavailableError: a server that it needs is lost for good.
        """
        passed = 0
        while self._goes_on():
            item = next(self.queue.source, None)
            if item is None:
                self._advance(_Stage.READ)
                return None
            task = self.queue.task(item)
            if task is not None:
                if not isinstance(self.step, RunStep):
                    require_live_servers(self.context.plan, self.context.resources)
                return task
            passed += 1
            if passed % _AT_ONCE == 0:
                await checkpoint()
        return None

    def _note_suspended(self) -> None:
        """More or fewer items are suspended: not stuck, and after a Ctrl-C not waited for."""
        if self.suspended and self.suspension is None:
            self.suspension = self.context.activity.begin()
        elif not self.suspended and self.suspension is not None:
            self.suspension.end()
            self.suspension = None

    def _note_idle(self, *, is_idle: bool) -> None:
        """All open items are suspended: so is an item whose part this is."""
        if is_idle != self.is_idle:
            self.is_idle = is_idle
            self.context.run.concurrency.note_idle(1 if is_idle else -1)

    def _on_ready(self) -> None:
        """A suspended item may go on: in a task of its own, or in that of the next one to end."""
        most = self._most_at_work + self.context.run.concurrency.crowded
        if not self.workers or self._at_work < most:
            self._begin_worker()

    async def _run(
        self, task: ItemTask, activity: Activity, suspended: Suspended | None = None
    ) -> None:
        here = self._stage_of(task, activity)
        if self.suspended is not None:
            here = replace(here, suspends=True, suspended=suspended)
        place = here.place(self.step)
        begin = partial(self._begin, task, place)
        if task.problem is None:
            try:
                record = await run_item(self.step, here, begin)
            except SuspendedError as error:
                assert self.suspended is not None, "no other item suspends"
                # What it was raised from is part of a cycle, and large.
                error.__traceback__ = None
                self.suspended.add(task, error)
                self._note_suspended()
                return
        else:
            begin()
            record = fail(self.step, here, task.problem, ExitCode.FAILED)
        if record is None:
            self._advance(_Stage.CUT_OFF)
        else:
            self._finish(task, place, record)

    async def _hand_over(self, tasks: list[ItemTask], carrier: Carrier, activity: Activity) -> None:
        """Run items on workers, one after the other.

        Those that need no execution end here, and those that go on run here: workers know nothing
        of an earlier part of the run.
        """
        items = []
        for task in tasks:
            here = self._stage_of(task, activity)
            known = here.goes_on(self.step)
            if known or task.problem is not None or await skip_record(self.step, here) is not None:
                await self._run(task, activity)
                continue
            place = here.place(self.step)
            begin, end = partial(self._begin, task, place), partial(self._finish, task, place)
            items.append(RemoteItem(here, begin, end))
        if items:
            await carrier.carry(self.step, items, self._goes_on)
        if not all(item.ended for item in items):
            self._advance(_Stage.CUT_OFF)

    def _goes_on(self) -> bool:
        """Return true if more items are to be begun."""
        if self._is_over or self.context.course.stopped or self.context.activity.paused.is_set():
            return False
        return self.waiting < MOST_WAITING

    @property
    def _is_over(self) -> bool:
        """A failure keeps other items from being begun."""
        return self.stage is _Stage.STOPPED or isinstance(self.stage, StepRecord)

    def _advance(self, stage: _Stage | StepRecord) -> None:
        """Move to a later stage; the first record that ends the run is the last one."""
        if isinstance(self.stage, StepRecord):
            return
        if isinstance(stage, StepRecord) or stage > self.stage:
            self.stage = stage

    def _stage_of(self, task: ItemTask, activity: Activity) -> StepContext:
        names = {self.foreach.name: task.item.value, "index": task.item.index}
        # Anew for each: a file is read on while others may write.
        item = ItemScope(task.key, names, item_sources(self.foreach, self.context))
        return replace(self.context, item=item, activity=activity)

    def _begin(self, task: ItemTask, place: Place) -> None:
        self.context.emit(task.start_event(place))

    def _finish(self, task: ItemTask, place: Place, record: StepRecord) -> None:
        self.context.run.spending.forget(place)
        if not has_no_usage(record):
            self._bill(record)
        if ends_the_run(record):
            # Not finished: it is run again with a higher limit or a repaired cassette.
            self._end(record)
            return
        follows = self.context.agent.flow is not None
        self.context.emit(task.finish_event(place, record, follows=follows))
        if record.status == "paused":
            self.paused.append(ItemRecord(task.key, task.item.index, record))
            return
        self._count(ItemRecord(task.key, task.item.index, record))

    def _bill(self, record: StepRecord) -> None:
        usage = record.usage if self._asks_models else None
        self.spent = self.spent.plus(Spent(usage=usage, cost_usd=record.cost_usd))

    @property
    def _asks_models(self) -> bool:
        return isinstance(self.step, PromptStep | PipelineStep)

    def _count(self, item: ItemRecord) -> None:
        self.done += 1
        if self.context.name(self.step) in self.context.needed:
            self.kept.append(item)
        if item.record.exit_code is ExitCode.OK:
            return
        self.failures.add(item)
        if self._has_too_many():
            self._advance(_Stage.STOPPED)
            if self.step.flow.on_error == "fail":
                self._stop_run()

    def _has_too_many(self) -> bool:
        most = self.foreach.max_failures
        if most is None:
            return self.step.flow.on_error == "fail"
        return exceeds(most, self.failures.count, self.done, self.expected)

    def _end(self, record: StepRecord) -> None:
        self._advance(record)
        self._stop_run()

    def _stop_run(self) -> None:
        self.context.course.stop(f"step `{self.context.name(self.step)}` failed")

    def _record(self) -> StepRecord:
        self.kept.sort(key=lambda item: item.index)
        kind = KINDS[type(self.step)]
        items = tuple(self.kept)
        usage, cost_usd = self.spent.usage or Usage(), self.spent.cost_usd
        calls = tuple(call for item in items for call in item.record.calls)
        if isinstance(self.stage, StepRecord):
            record = self.stage
        elif self.paused and not self.failures.codes & _NAMED:
            record = self._pause_record()
        elif self.stage in {_Stage.READING, _Stage.CUT_OFF}:
            record = cut_off(self.step, self.context)
            if self.failures.count:
                record = replace(record, exit_code=self._code())
        elif not self.failures.count:
            record = StepRecord(self.step.id, kind, "ok")
        else:
            failure, code = self._failure(), self._code()
            record = StepRecord(self.step.id, kind, "failed", failure=failure, exit_code=code)
        # There may be none, and those that are skipped have a key.
        own = item_sources(self.foreach, self.context)
        sources = union((own, *(item.record.sources for item in items)))
        return replace(
            record, items=items, usage=usage, cost_usd=cost_usd, calls=calls, sources=sources
        )

    def _pause_record(self) -> StepRecord:
        """The record of a step with items that wait for answers."""
        first = self.paused[0]
        why = first.record.failure
        said = f"{counted(len(self.paused), 'item')} {'waits' if len(self.paused) == 1 else 'wait'}"
        detail = f"; first `{first.key}`: {why.message}" if why is not None else ""
        alone = why is not None and len(self.paused) == 1
        hint = why.hint if why is not None and alone else how_to_go_on(self.context, ())
        failure = Failure("paused", f"{said} for an answer{detail}", hint)
        return replace(fail(self.step, self.context, failure, ExitCode.PAUSED), status="paused")

    def _failure(self) -> Failure:
        text = self.failures.describe(self.done)
        if not self._is_over:
            code, goes_on = "items", ""
        elif self.foreach.max_failures is not None:
            code, goes_on = "max_failures", "raise `max_failures`"
        else:
            code = "items_stopped"
            goes_on = "`on_error: continue` or `max_failures` continues with the others"
        if ExitCode.UNAVAILABLE in self.failures.codes:
            goes_on = ""  # more items would fail likewise
        hint = "; ".join(filter(None, (self.failures.hint, goes_on, self._resume_hint())))
        return Failure(
            code, f"{text}; no more were started" if self._is_over else text, hint or None
        )

    def _resume_hint(self) -> str:
        """A hint for running the failed items again, if that can help, or those left."""
        # Nested items are run again with the outer item.
        if not self.context.run.resume or self.context.course.in_item:
            return ""
        import shlex

        if self.failures.can_be_mended:
            command = shlex.join((*self.context.run.resume, "--retry-failed"))
            return f"`{command}` runs the failed items again"
        if self._is_over and not self.failures.codes & _NAMED:
            return f"then `{shlex.join(self.context.run.resume)}` runs the remaining items"
        return ""

    def _code(self) -> ExitCode:
        """The exit code: 1 for a completed batch, else the code of what stopped it."""
        codes = self.failures.codes
        if self._is_over or codes & _NAMED:
            return next(code for code in PRECEDENCE if code in codes)
        return ExitCode.FAILED
