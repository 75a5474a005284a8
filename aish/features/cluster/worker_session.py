"""A worker's side of a run: opens its resources and runs slices of items.

Each slice has a meter of its own, within its lease. `run_slice` is the function of a task. The
other functions at the end are called by the run outside of its tasks, by `Client.run`.
"""

import asyncio
import os
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Any

import anyio
from anyio.abc import TaskGroup
from distributed import secede

from aish import __version__
from aish.config.model import Limits
from aish.core.errors import AishError, InternalError, UnavailableError
from aish.core.events import (
    Event,
    Notice,
    Place,
    ReasoningDelta,
    TextDelta,
    TextWithdrawn,
    ToolOutput,
)
from aish.core.frozen import slotted
from aish.core.messages import Spent
from aish.core.sources import NO_SOURCES, UNKNOWN
from aish.engine.cancellation import Cancellation, CutOffError
from aish.engine.environment import RunEnvironment
from aish.engine.execution.step import run_unit
from aish.engine.limits import (
    Amount,
    Budget,
    Demand,
    Lease,
    ModelsMeter,
    Over,
    Reserved,
    RunMeter,
    Spending,
    prices_of,
)
from aish.engine.plan.credentials import ResolvedKey, ResolvedServer
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord
from aish.engine.resources.resources import (
    Resources,
    lock_errors,
    open_resources,
    parts,
    require_lock,
    require_servers,
)
from aish.engine.run_folder import RunFolder
from aish.engine.run_values import Concurrency
from aish.engine.steps.context import ItemScope, RunInner, RunScope, StepContext
from aish.features.cluster.protocol import (
    ItemResult,
    LeaseRenewal,
    Opening,
    Packed,
    Scene,
    Slice,
    SliceResult,
)
from aish.system.clock import SystemClock
from aish.system.process.child import CHILD_ENV_NAMES
from aish.terminal.unattended import Unattended


@slotted
class _PendingDemand:
    demand: Demand
    answered: anyio.Event = field(default_factory=anyio.Event)
    refusal: AishError | None = None


class LeasedMeter(RunMeter):
    """A meter within a lease: what does not fit waits for another lease, or for a refusal.

    `changed` is called when a request waits or ends. `owns` says what it counts.
    """

    def __init__(
        self, lease: Lease, changed: Callable[[], None], owns: Callable[[Place], bool]
    ) -> None:
        super().__init__(_budget(lease.limits), {})
        self._lease = lease
        self._changed = changed
        self._requests = 0
        self._waiting: list[_PendingDemand] = []
        self.owns = owns

    @property
    def demand(self) -> Demand | None:
        """The amount missing from the lease, once no request in progress could release it."""
        return self._waiting[0].demand if self._waiting and not self._requests else None

    def give_back(self) -> Mapping[str | None, Amount]:
        """End the lease; returns its usage. Nothing more fits until it is renewed."""
        spent = self.budget.all_spent
        self.budget = _budget({step: _zero_limits(own) for step, own in self._lease.limits.items()})
        return spent

    def renew(self, lease: Lease, refusal: AishError | None) -> None:
        """Continue with another lease; `refusal` applies to the longest waiting request."""
        self.budget = _budget(lease.limits)
        answered, self._waiting = self._waiting, []
        for number, waiting in enumerate(answered):
            waiting.refusal = None if number else refusal
            waiting.answered.set()

    async def refuse(self, over: Over, demand: Demand) -> None:
        """Wait for another lease.

        Raises:
            BudgetError: the run has no more to lend.
        """
        del over
        waiting = _PendingDemand(demand)
        self._waiting.append(waiting)
        self._changed()
        try:
            await waiting.answered.wait()
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        if waiting.refusal is not None:
            raise waiting.refusal

    async def reserve_when_free(self, step: str | None, need: Amount) -> Reserved:
        result = await super().reserve_when_free(step, need)
        self._requests += 1
        return result

    def settle(self, reserved: Reserved, used: Amount) -> None:
        super().settle(reserved, used)
        self._requests -= 1
        self._changed()


def _budget(limits: Mapping[str | None, Limits]) -> Budget:
    steps = {step: own for step, own in limits.items() if step is not None}
    return Budget(limits.get(None, Limits()), steps)


def _zero_limits(limits: Limits) -> Limits:
    bounded = (one.name for one in fields(Limits) if getattr(limits, one.name) is not None)
    return replace(limits, **dict.fromkeys(bounded, 0))


SILENCE = 30.0
"""Seconds without a word of the run after which it is gone."""
_CLOSING = 5.0
_LATE = 1.0
"""The run itself ends what is out of time, if it is still there."""
_REMEMBERED = 1000
# Workers send whole answers: deltas are for interactive display only.
_PIECES = (TextDelta, ReasoningDelta, TextWithdrawn, ToolOutput)


class WorkerSession(threading.Thread):
    """A run on one worker, in a thread and an event loop of its own.

    `ready` has the error if it could not be opened. It ends when the run says so, or after a time
    without heartbeats.
    """

    def __init__(self, token: str, opening: Packed) -> None:
        super().__init__(name="aish run", daemon=True)
        self.token = token
        self.ready: Future[AishError | None] = Future()
        self.closed: Future[None] = Future()
        self.scenes: dict[int, Scene] = {}
        self.course = Cancellation()
        self.slices: dict[int, RunningSlice] = {}
        self.cancelled: set[int] = set()
        self.long_texts: dict[str, None] = {}
        self.plan: Plan
        self.resources: Resources
        self.opening: Opening
        self._packed = opening
        self._notices: list[Event] = []
        self._known_secrets = 0
        self._seen: dict[int, None] = {}
        self._broken: str | None = None
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._tasks: TaskGroup
        self._heard: anyio.Event
        self._over: anyio.Event

    def run(self) -> None:
        try:
            anyio.run(self._live)
        except Exception as error:  # ruff: ignore[blind-except] - a bug: the run reports it and ends
            self._broken = traceback.format_exc()
            if not self.ready.done():
                self.ready.set_exception(error)
        finally:
            self.closed.set_result(None)
            if self._broken is None:
                forget(self)

    def work(self, order: Packed) -> Packed | None:
        """The result of a slice so far, for another thread; `None` if the session is over."""
        if self.closed.done():
            return self._loss_result()
        working = self._result(order)
        try:
            future = asyncio.run_coroutine_threadsafe(working, self._loop.result())
        except RuntimeError:
            working.close()
            return self._loss_result()
        ends: tuple[Future[Any], ...] = (future, self.closed)
        wait(ends, return_when=FIRST_COMPLETED)
        return future.result() if future.done() and not future.cancelled() else self._loss_result()

    def tell(self, function: Callable[[], object]) -> None:
        def call(loop: Future[asyncio.AbstractEventLoop]) -> None:
            # Closed meanwhile: there is no receiver.
            with suppress(RuntimeError):
                loop.result().call_soon_threadsafe(function)

        self._loop.add_done_callback(call)

    def hear(self, *, stopped: bool) -> None:
        """Heartbeat of the run; a `stopped` run begins nothing new."""
        if stopped:
            self.course.stop("the run begins nothing new")
        self._heard.set()

    def cancel(self, number: int) -> None:
        """End a slice now, with partial results; also one that has not arrived yet."""
        self.cancelled.add(number)
        if number in self.slices:
            self.slices[number].cancel()

    def close(self) -> None:
        self._over.set()
        self._heard.set()

    def notices(self) -> tuple[Event, ...]:
        notices, self._notices = tuple(self._notices), []
        return notices

    async def _live(self) -> None:
        self._heard, self._over = anyio.Event(), anyio.Event()
        self._loop.set_result(asyncio.get_running_loop())
        opening: Opening = self._packed.value()
        self.opening, self.plan = opening, on_this_machine(opening.plan)
        self._known_secrets = len(self.plan.secrets.named())
        staging = None if opening.staging is None else opening.staging(self.plan, opening.run)
        around = RunEnvironment(
            self._notice,
            Unattended(),
            SystemClock(),
            RunFolder(opening.run, None),
            os.environ,
            staging=staging,
            tag=opening.tag,
        )
        try:
            await self._open(around, ModelsMeter(prices_of(self.plan), self._meter_of))
        except AishError as error:
            if self.ready.done():
                raise
            self.ready.set_result(error)

    def _meter_of(self, place: Place) -> LeasedMeter:
        """The meter of the slice with a request or a call."""
        meters = [running.meter for running in self.slices.values()]
        if not meters:
            raise InternalError(f"nothing is under way that could be {place}")
        # Requests of no item are counted anyway.
        return next((meter for meter in meters if meter.owns(place)), meters[0])

    async def _open(self, around: RunEnvironment, meter: ModelsMeter) -> None:
        """Keep the run's resources open until it is over."""
        async with open_resources(self.plan, around, meter) as self.resources:
            for part, opened in parts(self.plan, self.resources):
                require_servers(part, opened.servers)
                require_lock(opened.tools)
            # The run itself already reported what servers say when they are opened.
            self._notices.clear()
            async with anyio.create_task_group() as self._tasks:
                self.ready.set_result(None)
                await self._until_over()
                self._tasks.cancel_scope.cancel()

    async def _until_over(self) -> None:
        while not self._over.is_set():
            with anyio.move_on_after(SILENCE) as scope:
                await self._heard.wait()
            if scope.cancelled_caught:
                return
            self._heard = anyio.Event()

    def _notice(self, event: Event) -> None:
        if isinstance(event, Notice):
            self._notices.append(event)

    def made_secrets(self) -> tuple[tuple[str, str], ...]:
        """All of them each time: results of other slices may arrive in another order."""
        return self.plan.secrets.named()[self._known_secrets :]

    def _loss_result(self) -> Packed | None:
        """The result of a slice that is lost; includes a traceback if that is caused by a bug."""
        if self._broken is None:
            return None
        return Packed(SliceResult((), {}, None, (), (), (), self._broken))

    async def _result(self, packed: Packed) -> Packed | None:
        order: Slice | LeaseRenewal = packed.value()
        if self._over.is_set():
            return None
        if isinstance(order, Slice):
            if order.number in self._seen:
                # Dask does not repeat a task bound to a worker; a repeated task would be detected
                # here.
                return None
            self._seen[order.number] = None
            if len(self._seen) > _REMEMBERED:
                del self._seen[next(iter(self._seen))]
            running = self.slices[order.number] = RunningSlice(self, order)
            self._tasks.start_soon(running.run)
        else:
            known = self.slices.get(order.number)
            if known is None:
                return None
            running = known
            if order.lease is not None:
                running.meter.renew(order.lease, order.refusal)
        await running.until_back()
        result = running.result()
        if running.ended:
            del self.slices[order.number]
            self.long_texts |= dict.fromkeys(running.long_texts)
            while len(self.long_texts) > _REMEMBERED:
                del self.long_texts[next(iter(self.long_texts))]
        return Packed(result)


@dataclass(slots=True)
class _ItemEvents:
    """The events of an item that the run does not have yet, and its end."""

    events: list[Event] = field(default_factory=list)
    record: StepRecord | None = None

    def result(self) -> ItemResult:
        events, self.events = tuple(self.events), []
        return ItemResult(events, self.record)


class RunningSlice:
    """The items of a slice, run sequentially by the regular engine."""

    def __init__(self, session: WorkerSession, order: Slice) -> None:
        self.meter = LeasedMeter(order.lease, self._stir, self._has)
        # Equal texts share a file; each slice sends it, because another one may be lost.
        self.long_texts = dict.fromkeys(session.long_texts, "")
        self.ended = False
        self._session = session
        self._order = order
        self._scope = anyio.CancelScope()
        self._logs: list[_ItemEvents] = []
        self._files: list[tuple[str, bytes]] = []
        self._broken: str | None = None
        self._place: Place | None = None
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Run the items that are begun before the run is stopped."""
        if self._order.seconds is not None:
            self._scope.deadline = anyio.current_time() + self._order.seconds + _LATE
        session = self._session
        try:
            with self._scope:
                for item, used in zip(self._order.items, self._order.used, strict=True):
                    if session.course.stopped or self._order.number in session.cancelled:
                        break
                    await self._run(item, used)
        except Exception:  # ruff: ignore[blind-except] - a bug: the run reports it and ends
            self._broken = traceback.format_exc()
        finally:
            self.ended = True
            self._stir()

    def cancel(self) -> None:
        self._scope.cancel()

    async def until_back(self) -> None:
        """Wait until it is complete, or waits for another lease."""
        while not self.ended and self.meter.demand is None:
            self._changed = anyio.Event()
            await self._changed.wait()

    def result(self) -> SliceResult:
        demand = None if self.ended else self.meter.demand
        files, self._files = tuple(self._files), []
        opened = parts(self._session.plan, self._session.resources)
        return SliceResult(
            items=tuple(log.result() for log in self._logs),
            spent=self.meter.give_back(),
            demand=demand,
            files=files,
            notices=self._session.notices(),
            errors=tuple(error for _, part in opened for error in lock_errors(part.tools)),
            broken=self._broken,
            secrets=self._session.made_secrets(),
        )

    def _stir(self) -> None:
        self._changed.set()

    def _has(self, place: Place) -> bool:
        """Return true if a request or a call belongs to the current item."""
        own = self._place
        if own is None:
            return False
        step, item = f"{place.step}/", f"{place.item}/"
        return step.startswith(f"{own.step}/") and item.startswith(f"{own.item}/")

    async def _run(self, item: ItemScope, used: Spent) -> None:
        scene = self._session.scenes[self._order.scene]
        log = _ItemEvents()
        self._logs.append(log)
        context = self._context(scene, item, used, log)
        step = next(step for step in context.plan.steps if step.id == scene.step)
        self._place = context.place(step)
        context.run.spending.items[self._place.step, self._place.item or ""] = used
        with suppress(CutOffError):
            record = await run_unit(step, context)
            # Calls are for templates of later steps.
            needed = context.name(step) in scene.needed
            log.record = record if needed else replace(record, calls=())

    def _context(self, scene: Scene, item: ItemScope, used: Spent, log: _ItemEvents) -> StepContext:
        session, spending = self._session, Spending()

        def emit(event: Event) -> None:
            spending.take(event)
            if not isinstance(event, _PIECES):
                log.events.append(event)

        plan, resources = session.plan, self._of_item(session.resources, emit)
        for step in scene.prefix.split("/")[:-1]:
            plan, resources = plan.inner[step], resources.inner[step]
        run_inner: RunInner | None = None
        if plan.inner:
            from aish.engine.execution.sub_pipeline import run_inner
        # The item has its place in the run; nested units need none.
        run = RunScope(Concurrency(float("inf")), spending=spending, run_inner=run_inner)
        unknown = NO_SOURCES
        if resources.runtime.flow is not None:
            resources.runtime.flow.scatter()
            # What a sub-pipeline is given is not told to workers.
            unknown = frozenset({UNKNOWN}) if scene.prefix else NO_SOURCES
        return StepContext(
            run,
            plan,
            scene.options,
            resources,
            dict(scene.records),
            session.course,
            needed=scene.needed,
            prefix=scene.prefix,
            within=scene.within,
            item=item,
            turn=used.turns,
            base=unknown,
        )

    def _of_item(self, resources: Resources, emit: Callable[[Event], None]) -> Resources:
        """The open resources for one item: its events and files are returned with the slice."""
        runtime = replace(resources.runtime, emit=emit, keep=self._keep, long_texts=self.long_texts)
        inner = {id: self._of_item(opened, emit) for id, opened in resources.inner.items()}
        return replace(resources, runtime=runtime, inner=inner)

    def _keep(self, name: str, content: bytes) -> str | None:
        if not self._session.opening.keeps:
            return None
        # Unique over all workers.
        tame = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:60] or "file"
        chosen = f"{sha256(content).hexdigest()[:16]}-{tame}"
        self._files.append((chosen, content))
        return f"files/{chosen}"


def on_this_machine(plan: Plan) -> Plan:
    """The plan with `PATH` and `HOME` of this machine for child processes."""
    here = {name: os.environ[name] for name in CHILD_ENV_NAMES if name in os.environ}
    models = {
        alias: model if model.made is None else replace(model, made=_key(model.made, here))
        for alias, model in plan.models.items()
    }
    return replace(
        plan,
        models=models,
        servers=tuple(_server(server, here) for server in plan.servers),
        inner={step: on_this_machine(inner) for step, inner in plan.inner.items()},
    )


def _key(key: ResolvedKey, here: Mapping[str, str]) -> ResolvedKey:
    return replace(key, env={**key.env, **here}) if key.env else key


def _server(server: ResolvedServer, here: Mapping[str, str]) -> ResolvedServer:
    server = replace(server, made={name: _key(key, here) for name, key in server.made.items()})
    if not server.child_env:
        return server
    ours = {name: value for name, value in here.items() if name not in server.entry.env}
    return replace(server, child_env={**server.child_env, **ours})


_sessions: dict[str, WorkerSession] = {}


def forget(session: WorkerSession) -> None:
    for run, other in tuple(_sessions.items()):
        if other is session:
            del _sessions[run]


def _session(run: str, token: str) -> WorkerSession | None:
    found = _sessions.get(run)
    return found if found is not None and found.token == token and found.is_alive() else None


async def open_session(run: str, token: str, opening: Packed, version: str) -> AishError | None:
    """Open the session that `token` names; returns the error, if any."""
    if version != __version__:
        message = f"a worker has aish {__version__}, and this is {version}"
        return UnavailableError(message, hint="install the same on both")
    before = _sessions.get(run)
    if before is not None:
        await _close(before)
    session = _sessions[run] = WorkerSession(token, opening)
    session.start()
    try:
        return await asyncio.wrap_future(session.ready)
    except Exception as error:  # ruff: ignore[blind-except] - a bug: the run reports it and ends
        return InternalError(f"{type(error).__name__}: {error}")


def attend(run: str, token: str, stopped: bool) -> bool:  # ruff: ignore[boolean-type-hint-positional-argument] - what `Client.run` sends
    """Receive a heartbeat of the run, and whether it begins nothing new."""
    session = _session(run, token)
    if session is not None:
        session.tell(lambda: session.hear(stopped=stopped))
    return session is not None


def add_scene(run: str, token: str, scene: Packed) -> bool:
    session = _session(run, token)
    if session is not None:
        opened: Scene = scene.value()
        session.scenes[opened.number] = opened
    return session is not None


def cancel_slice(run: str, token: str, number: int) -> None:
    session = _session(run, token)
    if session is not None:
        session.tell(lambda: session.cancel(number))


async def close_session(run: str, token: str) -> None:
    session = _session(run, token)
    if session is not None:
        await _close(session)


async def _close(session: WorkerSession) -> None:
    session.tell(session.close)
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(session.closed)), _CLOSING)


def run_slice(run: str, token: str, order: Packed) -> Packed | None:
    """Run a slice until it is complete or waits for a lease; `None` without a session.

    It releases its thread to Dask, since it only waits.
    """
    secede()
    session = _sessions.get(run)
    return None if session is None or session.token != token else session.work(order)
