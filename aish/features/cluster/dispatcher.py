"""The run's side of a cluster: sends slices of items as tasks, collects their results.

Only the run writes: the journal, the files of its folder, staged calls. A task is bound to one
session of one worker, so Dask never runs it again elsewhere; what happens to the items of a lost
worker is decided here.
"""

import itertools
import math
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from anyio.abc import TaskGroup
from distributed import Client, Future, KilledWorker, Security

from aish import __version__
from aish.config.model import Step
from aish.core.errors import AishError, BudgetError, ExitCode, InternalError, UnavailableError
from aish.core.events import NOWHERE, Event, Failure, Notice, Retry, ToolDecided
from aish.core.phrases import backticked
from aish.engine.execution.step import fail
from aish.engine.limits import Lease, RunMeter
from aish.engine.records import StepRecord, without_histories
from aish.engine.run_folder import RunFolder
from aish.engine.steps.context import (
    CALLS_UNTRACKED,
    ITEM_UNFINISHED,
    ONCE_A_RUN,
    Carrier,
    RemoteItem,
    StepContext,
)
from aish.features.cluster.address import ClusterAddress
from aish.features.cluster.connection import close_in_order, quiet
from aish.features.cluster.failure_policy import LOST, ToolRules, after_loss, unrepeatable
from aish.features.cluster.local_workers import local_cluster
from aish.features.cluster.protocol import LeaseRenewal, Opening, Packed, Scene, Slice, SliceResult
from aish.features.cluster.worker_session import (
    add_scene,
    attend,
    cancel_slice,
    close_session,
    open_session,
    run_slice,
)
from aish.policy.gate import Decision
from aish.system.task_group import task_group

_SLICE_SECONDS = 0.1
_LARGEST_SLICE = 32
"""A slice has as many items as take a tenth of a second, so that little is lost with a worker."""
_PARTS = 4
"""A lease is a quarter of a slot's part of what is left: with a worker it is lost as a whole."""
_LOOK_SECONDS = 0.5
_HEARTBEAT = 20
"""So many looks from one word to a worker to the next, while there is nothing new to tell."""
_PATIENCE = 60.0
_CONNECTING = 30
_CLOSING = 5.0


class _LostError(Exception):
    """A worker, or its session of this run, was lost."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A session of this run on a worker: its slices, and the data sent to it."""

    address: str
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    ready: bool = False
    lost: bool = False
    busy: int = 0
    scenes: set[int] = field(default_factory=set)
    waits: set[anyio.CancelScope] = field(default_factory=set)
    telling: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass(slots=True)
class _RemoteStep:
    """A step whose items run on workers.

    `tools` may be called for an item, and not be called again without consent. `records` are those
    at the start of the step. `seconds` is the approximate duration of an item.
    """

    scene: Scene
    tools: tuple[str, ...]
    records: Mapping[str, StepRecord]
    seconds: float | None = None
    notified: bool = False


@dataclass(slots=True)
class _Handover:
    """A slice on a worker: its task, and its current lease."""

    number: int
    worker: _Worker
    remote: _RemoteStep
    items: Sequence[RemoteItem]
    lease: Lease | None = None
    task: Future | None = None
    paused: bool = False
    not_staged: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Dispatcher:
    """`context.Carrier` of one run; `context` is that of the whole run.

    `living` returns the maximum number of workers. `errors` end the run after everything is done.
    """

    client: Client
    context: StepContext
    folder: RunFolder
    rules: ToolRules
    living: Callable[[], int]
    errors: list[AishError] = field(default_factory=list)
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _remote: dict[tuple[str, str | None, int], _RemoteStep] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _carrying: int = 0
    _places: int = 1
    _changed: anyio.Event = field(default_factory=anyio.Event)

    @property
    def slots(self) -> int:
        return int(self.context.run.concurrency.slots.total_tokens)

    def size(self, step: Step, context: StepContext) -> int:
        """As many items as take a tenth of a second; one if a call must not be repeated."""
        remote = self._of(step, context)
        if remote.tools or remote.seconds is None:
            return 1
        return max(1, min(_LARGEST_SLICE, int(_SLICE_SECONDS / max(remote.seconds, 1e-4))))

    async def carry(
        self, step: Step, items: Sequence[RemoteItem], wanted: Callable[[], bool]
    ) -> None:
        """Run items on a worker; those of a lost one on another one, if allowed."""
        remote, lost = self._of(step, items[0].context), 0
        root = self.context.course.root()
        self._carrying += 1
        try:
            while items:
                async with self._place() as worker:
                    if not wanted():
                        return
                    root.items += 1
                    try:
                        self._begin(step, items, remote, lost)
                        came_back = await self._ran(worker, remote, step, items)
                    finally:
                        root.items -= 1
                items = [item for item in items if not item.ended]
                if not items or (came_back and not wanted()):
                    return
                # A session that ended by itself returns its results, and still counts as lost.
                lost += 1
                failure = after_loss(remote.tools, lost, retry_unknown=self.rules.retry_unknown)
                if failure is not None:
                    for item in items:
                        end = fail(step, item.context, failure, ExitCode.FAILED, retryable=False)
                        _end(item, end)
                    return
        finally:
            self._carrying -= 1

    async def serve(self, tasks: TaskGroup) -> None:
        """Watch the workers, and open on each what the run needs, until cancelled.

        Raises:
            UnavailableError: there are no workers left, or the scheduler is gone.
        """
        opening = Packed(
            Opening(
                self.folder.id,
                self.context.plan,
                self.folder.path is not None,
                self.rules.staging,
                self.context.resources.files.tag,
            )
        )
        absent = 0.0
        while True:
            try:
                identity = await self.client.scheduler.identity(n_workers=-1)
            except OSError as error:
                raise unavailable(error) from error
            addresses = frozenset(identity["workers"])
            for worker in tuple(self._workers.values()):
                if worker.address not in addresses:
                    self._lose(worker)
            for address in addresses - self._workers.keys():
                worker = self._workers[address] = _Worker(address)
                tasks.start_soon(self._attend, worker, opening)
            self._places = max(1, math.ceil(self.slots / max(1, len(addresses), self.living())))
            absent = 0.0 if addresses else absent + _LOOK_SECONDS
            if not self.living() or (self._carrying and absent >= _PATIENCE):
                said = "the cluster has no workers left"
                raise UnavailableError(said, where="--cluster", hint="`--resume` continues the run")
            await anyio.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        with anyio.move_on_after(_CLOSING, shield=True):
            async with anyio.create_task_group() as tasks:
                for worker in self._workers.values():
                    tasks.start_soon(self._close, worker)

    async def _close(self, worker: _Worker) -> None:
        # A lost worker has nothing open any more.
        with suppress(_LostError):
            await self._call(worker, close_session)

    async def _attend(self, worker: _Worker, opening: Packed) -> None:
        """Open a session, and send heartbeats to it until it is lost."""
        with suppress(_LostError):
            error = await self._call(worker, open_session, opening, version=__version__)
            if error is not None:
                error.where = " on ".join(part for part in (error.where, worker.address) if part)
                raise error
            worker.ready = True
            self._stir()
            stopped = self.context.course.stopped
            while await self._call(worker, attend, stopped):
                for _ in range(_HEARTBEAT):
                    await anyio.sleep(_LOOK_SECONDS)
                    if stopped != self.context.course.stopped:
                        break
                stopped = self.context.course.stopped
        self._lose(worker)

    async def _call(self, worker: _Worker, function: Any, *given: object, **more: object) -> Any:
        """Call a function of `worker_session` on the worker, outside of all tasks."""
        try:
            results = await self.client.run(
                function, self.folder.id, worker.token, *given, workers=[worker.address], **more
            )
        except OSError as error:
            raise _LostError from error
        except (AttributeError, ImportError, TypeError) as error:
            raise unavailable(error) from error
        return results[worker.address]

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[_Worker]:
        """A free place on the worker with the most; waits until there is one."""
        while True:
            ready = [one for one in self._workers.values() if one.ready and not one.lost]
            worker = min(ready, key=lambda one: one.busy, default=None)
            if worker is not None and worker.busy < self._places:
                break
            await self._changed.wait()
        worker.busy += 1
        try:
            yield worker
        finally:
            worker.busy -= 1
            self._stir()

    def _lose(self, worker: _Worker) -> None:
        worker.lost = True
        if self._workers.get(worker.address) is worker:
            del self._workers[worker.address]
        for scope in worker.waits:
            scope.cancel()

    def _stir(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _of(self, step: Step, context: StepContext) -> _RemoteStep:
        """The state of a step, and the data shared by its items."""
        # A retried sub-pipeline has the same steps, and other records.
        key = context.name(step), context.within, id(context.records)
        remote = self._remote.get(key)
        if remote is None:
            scene = Scene(
                len(self._remote),
                step.id,
                context.prefix,
                context.within,
                replace(context.options, environ={}),
                without_histories(context.records),
                context.needed,
            )
            tools = unrepeatable(step, context.plan, context.resources, self.rules.repeatable)
            remote = self._remote[key] = _RemoteStep(scene, tools, context.records)
        return remote

    def _begin(
        self, step: Step, items: Sequence[RemoteItem], remote: _RemoteStep, lost: int
    ) -> None:
        if remote.tools and not remote.notified:
            remote.notified = True
            place = replace(items[0].context, item=None).place(step)
            self._emit(Notice(place, "info", CALLS_UNTRACKED, _unknown_calls_text(remote.tools)))
        for item in items:
            if not item.begun:
                item.begun = True
                item.begin()
            else:
                place = item.context.place(step)
                self._emit(Retry(place, f"item {place.item}", lost + 1, 0.0, LOST))

    async def _ran(
        self, worker: _Worker, remote: _RemoteStep, step: Step, items: Sequence[RemoteItem]
    ) -> bool:
        """Run a slice on its worker; return false if the worker was lost before its end."""
        sent = _Handover(next(self._numbers), worker, remote, items)
        try:
            await self._exchange(sent, step)
        except _LostError:
            return False
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_CLOSING, shield=True):
                await self._recall(sent, step)
            raise
        finally:
            if sent.lease is not None:
                # Its outcome is unknown.
                self._meter.take_back(sent.lease, sent.lease.used_up)
            if sent.task is not None:
                sent.task.release()
        return True

    async def _exchange(self, sent: _Handover, step: Step) -> None:
        """Send a slice, and again with each further lease, until it is done."""
        name, parts = sent.items[0].context.name(step), _PARTS * self.slots
        sent.lease = await self._meter.lend(name, parts)
        async with sent.worker.telling:
            if sent.remote.scene.number not in sent.worker.scenes:
                if not await self._call(sent.worker, add_scene, Packed(sent.remote.scene)):
                    self._lose(sent.worker)
                    raise _LostError
                sent.worker.scenes.add(sent.remote.scene.number)
        self._submit(sent, self._order(sent, step))
        while (demand := (await self._take_result(sent, step)).demand) is not None:
            sent.paused = True
            refusal: AishError | None = None
            try:
                sent.lease = await self._meter.lend(name, parts, demand)
            except BudgetError as error:
                sent.lease, refusal = await self._meter.lend(name, parts), error
            self._submit(sent, LeaseRenewal(sent.number, sent.lease, refusal))

    async def _recall(self, sent: _Handover, step: Step) -> None:
        """Cancel a slice that is no longer needed, and collect its partial results."""
        if sent.task is None:
            # It was not sent.
            self._tell_unfinished(sent, step)
            return
        with suppress(_LostError):
            await self._call(sent.worker, cancel_slice, sent.number)
            if sent.paused:
                self._submit(sent, LeaseRenewal(sent.number))
            await self._take_result(sent, step)

    def _order(self, sent: _Handover, step: Step) -> Slice:
        time = self.context.run.time
        scopes = [item.context.item for item in sent.items if item.context.item is not None]
        used = [item.context.run.spending.of(item.context.place(step)) for item in sent.items]
        assert sent.lease is not None
        return Slice(
            number=sent.number,
            scene=sent.remote.scene.number,
            items=tuple(scopes),
            used=tuple(used),
            lease=sent.lease,
            seconds=None if time is None or time.seconds is None else max(0.0, time.left),
        )

    def _submit(self, sent: _Handover, order: Slice | LeaseRenewal) -> None:
        """A task for this worker only: if the worker is lost, the task is not run."""
        if sent.task is not None:
            sent.task.release()
        sent.paused = False
        sent.task = self.client.submit(
            run_slice,
            self.folder.id,
            sent.worker.token,
            Packed(order),
            key=f"aish-{self.folder.id}-{sent.number}-{next(self._numbers)}",
            workers=[sent.worker.address],
            allow_other_workers=False,
            retries=0,
            pure=False,
        )

    async def _take_result(self, sent: _Handover, step: Step) -> SliceResult:
        """The result of a slice so far, after it was recorded."""
        result = await self._result(sent)
        if sent.lease is not None:
            lease, sent.lease = sent.lease, None
            self._meter.take_back(lease, result.spent)
        await self._take(sent, step, result)
        if result.demand is None:
            self._tell_unfinished(sent, step)
        return result

    async def _result(self, sent: _Handover) -> SliceResult:
        """The value of the task, as long as its worker is there.

        Raises:
            UnavailableError: Dask has given the task up.
        """
        worker, task = sent.worker, sent.task
        assert task is not None
        with anyio.CancelScope() as scope:
            worker.waits.add(scope)
            try:
                packed = None if worker.lost else await _value(task)
            finally:
                worker.waits.discard(scope)
        if scope.cancelled_caught or packed is None:
            self._lose(worker)
            raise _LostError
        result: SliceResult = packed.value()
        for name, value in result.secrets:
            self.context.plan.secrets.add(name, value)
        return result

    async def _take(self, sent: _Handover, step: Step, result: SliceResult) -> None:
        for name, data in result.files:
            self._keep(name, data)
        for event in result.notices:
            self._emit(event)
        seconds = [came.record.seconds for came in result.items if came.record is not None]
        if seconds:
            mean, before = sum(seconds) / len(seconds), sent.remote.seconds
            sent.remote.seconds = mean if before is None else (mean + before) / 2
        for number, (item, came) in enumerate(zip(sent.items, result.items, strict=False)):
            for event in filter(self._is_new, came.events):
                self._emit(event)
                if not await self._is_put_down(event):
                    sent.not_staged.add(number)
            if came.record is None or item.ended:
                continue
            if number in sent.not_staged:
                _end(item, fail(step, item.context, _NOT_STAGED, ExitCode.FAILED))
            else:
                _end(item, came.record)
        self.errors = self.errors or list(result.errors)
        if result.broken is not None:
            raise InternalError(f"on a worker: {result.broken.strip().splitlines()[-1]}")

    def _is_new(self, event: Event) -> bool:
        """Return false for a once-a-run notice that another worker has given."""
        if not isinstance(event, Notice) or event.code not in ONCE_A_RUN:
            return True
        return self.context.tells_first(event.code)

    async def _is_put_down(self, event: Event) -> bool:
        """Return false if a staged call has not reached the review file."""
        if not isinstance(event, ToolDecided) or event.verdict != "staged":
            return True
        decision = Decision(event.verdict, event.rule, event.digest, None, by_person=False)
        return await self.context.agent.gate.is_put_down(decision)

    def _keep(self, name: str, data: bytes) -> None:
        """Store a file of a worker in the run's folder; a full disk loses the file, not the run."""
        try:
            self.folder.keep_as(name, data)
        except FileExistsError:
            # Named by its content: another item has sent the same.
            return
        except OSError as error:
            message = f"{name} could not be kept: {error.strerror or error}"
            self._emit(Notice(NOWHERE, "warning", "not_kept", message))

    def _tell_unfinished(self, sent: _Handover, step: Step) -> None:
        """Emit the end of requests and calls of items without an end, where that matters."""
        for item in sent.items if sent.remote.tools else ():
            if not item.ended:
                message = "it came back from its worker unfinished, and all of its calls are known"
                place = item.context.place(step)
                self._emit(Notice(place, "info", ITEM_UNFINISHED, message))

    def _emit(self, event: Event) -> None:
        self.context.emit(event)

    @property
    def _meter(self) -> RunMeter:
        meter = self.context.agent.meter
        assert isinstance(meter, RunMeter), "a run has a meter of its own"
        return meter


_NOT_STAGED = Failure(
    "not_staged",
    "a call was staged, but could not be stored for review; its model was told that it was",
)


async def _value(task: "Future[Any]") -> Packed | None:
    error = await task.exception()
    if error is None and task.status != "cancelled":
        value: Packed | None = await task.result()
        return value
    if isinstance(error, KilledWorker):
        return None
    raise unavailable(error or RuntimeError("the scheduler has dropped a task"))


def _unknown_calls_text(tools: tuple[str, ...]) -> str:
    """The message about a step whose calls on a lost worker are unknown."""
    named = backticked(tools, 3)
    return f"items run on workers: calls of {named} are recorded when an item ends"


def _end(item: RemoteItem, record: StepRecord) -> None:
    item.ended = True
    item.end(record)


def unavailable(error: BaseException) -> UnavailableError:
    text = str(error).strip() or type(error).__name__
    return UnavailableError(
        f"the cluster failed: {text.splitlines()[0]}",
        where="--cluster",
        hint="workers need the same aish, Python and distributed as this machine",
    )


@asynccontextmanager
async def open_carrier(
    context: StepContext, address: ClusterAddress, folder: RunFolder, rules: ToolRules
) -> AsyncGenerator[Carrier]:
    """Connect to the cluster, or start one; cleans up at the end.

    Raises:
        UnavailableError: the cluster is unreachable or unsuitable.
        LockDiffersError: tools on a worker differ from the lock.
    """
    quiet()
    async with AsyncExitStack() as stack:
        where, security, living = await _scheduler(address, folder, stack)
        options: Any = {"security": security, "asynchronous": True, "timeout": _CONNECTING}
        client = Client(where, set_as_default=False, **options)
        try:
            await stack.enter_async_context(close_in_order(client))
        except (OSError, TimeoutError) as error:
            message = f"the scheduler at {where} cannot be reached: {error}"
            raise UnavailableError(message, where="--cluster") from error
        dispatcher = Dispatcher(client, context, folder, rules, living)
        tasks = await stack.enter_async_context(task_group())
        tasks.start_soon(dispatcher.serve, tasks)
        try:
            yield dispatcher
        finally:
            tasks.cancel_scope.cancel()
            await dispatcher.close()
        for late in dispatcher.errors:
            raise late


async def _scheduler(
    address: ClusterAddress, folder: RunFolder, stack: AsyncExitStack
) -> tuple[str, Any, Callable[[], int]]:
    """The scheduler's address, its credentials, and the maximum number of workers."""
    if address.is_local:
        cluster = await stack.enter_async_context(local_cluster(address.workers, folder.logs))
        return cluster.address, cluster.security, lambda: cluster.living
    files = address.certificates
    security = None
    if files is not None:
        security = Security(
            require_encryption=True,
            tls_ca_file=str(files.ca),
            tls_client_cert=str(files.cert),
            tls_client_key=str(files.key),
        )
    return address.scheduler, security, lambda: 1
