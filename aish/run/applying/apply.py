"""A run that applies staged calls: in order, each once, until one does not succeed (B16).

It is a run like any other, with a journal of its own; what it does is written in the log beside
the file of staged calls, so that no other run does it again.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import field, replace
from typing import Literal

import anyio
import anyio.lowlevel

from aish.agent.dispatch import dispatch, propose
from aish.agent.runtime import UsedCall
from aish.core.deltas import Usage
from aish.core.errors import AishError, ExitCode, InternalError, StepFailedError
from aish.core.events import Event, Exit, Place, RunFinished, StepFinished, StepStarted
from aish.core.frozen import frozen, slotted
from aish.core.protocols import Emit
from aish.core.tools import Tool
from aish.engine.cancellation import Interrupt, interruptible
from aish.engine.environment import RunEnvironment
from aish.engine.execution.run import run_started
from aish.engine.final import FinalState, decide_exit, status_of
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord
from aish.engine.resources.resources import (
    Toolbox,
    lock_errors,
    open_toolbox,
    require_lock,
    require_servers,
)
from aish.engine.steps.tool_call import output_of, tool_record
from aish.run.applying.fitness import require_definition
from aish.run.applying.log import AppliedLog
from aish.run.applying.reviewed import place_of
from aish.run.staging.call import StagedCall
from aish.system.secrets.secrets import Secrets

GRACE = 10.0
"""Seconds that a call in flight has after the first Ctrl-C (B14)."""

_TURNS = 3

Outcome = Literal["applied", "failed", "denied", "unknown", "not_tried"]


@frozen
class Job:
    """What is to be applied: `calls` are those that are due, `run` is whose calls they are.

    `id` is the run that applies them. `plans` has one for each pipeline that calls are of, by
    `StagedCall.home`; the first is that of the file.
    """

    id: str
    plans: Mapping[str, Plan]
    options: RunOptions
    calls: Sequence[StagedCall]
    run: str
    log: AppliedLog

    @property
    def secrets(self) -> Secrets:
        """Those of all plans: they share them."""
        return self.plans[""].secrets


@frozen
class Attempt:
    """What became of a call; `used` is `None` where it was never decided on or never came back."""

    call: StagedCall
    outcome: Outcome
    used: UsedCall | None = None


@frozen
class Application:
    """How a job ended, call by call."""

    attempts: tuple[Attempt, ...]
    end: Exit


@slotted
class _Progress:
    """What is known so far; read at the end, however it comes."""

    records: list[StepRecord] = field(default_factory=list)
    used: dict[str, UsedCall] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    early: list[Event] = field(default_factory=list)
    started: bool = False
    stopping: bool = False
    error: AishError | None = None
    boxes: dict[str, Toolbox] = field(default_factory=dict)

    @property
    def in_flight(self) -> bool:
        """Whether a call was sent and has not come back."""
        return any(id not in self.used for id in self.begun)


async def apply_calls(job: Job, environment: RunEnvironment) -> Application:
    """Make the calls of a job; every failure becomes part of the answer."""
    begun = environment.clock.monotonic()
    progress = _Progress()

    def end(code: ExitCode) -> None:
        progress.stopping = True
        if code is ExitCode.INTERRUPTED and progress.in_flight:
            # What was sent may still say how it ended: else nobody would know.
            scope.deadline = anyio.current_time() + GRACE
        else:
            scope.cancel()

    with anyio.CancelScope() as scope, interruptible(end) as interrupt:
        try:
            await _open_and_apply(job, environment, progress)
        except AishError as error:
            progress.error = error
        except Exception as error:
            progress.error = InternalError(f"{type(error).__name__}: {error}")
            _end(job, environment, progress, interrupt, begun)
            raise
    return _end(job, environment, progress, interrupt, begun)


async def _open_and_apply(job: Job, environment: RunEnvironment, progress: _Progress) -> None:
    opening = environment.with_emit(_held_back(environment.emit, progress))
    async with AsyncExitStack() as stack:
        for home, plan in job.plans.items():
            box = await stack.enter_async_context(open_toolbox(plan, opening))
            progress.boxes[home] = box
        _start(job, environment, progress)
        for home, box in progress.boxes.items():
            require_servers(job.plans[home], box.servers)
            require_lock(box.tools)
        for call in job.calls:
            _fitting(call, progress.boxes[call.home], job)
        for call in job.calls:
            await _hear_signals()
            if progress.stopping or not await _one(call, job, progress):
                return


async def _hear_signals() -> None:
    """Let the loop call the handler of a signal that has come: that takes it some turns."""
    for _ in range(_TURNS):
        await anyio.lowlevel.checkpoint()


async def _one(call: StagedCall, job: Job, progress: _Progress) -> bool:
    """Make a call as a step of its own; whether the next one may follow."""
    place, box = place_of(call), progress.boxes[call.home]
    emit = box.runtime.emit
    emit(StepStarted(Place(step=place.step), "call"))
    used = await _sent(call, job, box, progress)
    progress.used[call.id] = used
    record = tool_record(str(place.step), "call", used, on_denied="fail", output=output_of(used))
    record = replace(record, seconds=used.seconds)
    progress.records.append(record)
    emit(
        StepFinished(
            place=Place(step=place.step),
            status=record.status,
            text=record.text,
            output=record.output,
            usage=Usage(),
            cost_usd=None,
            seconds=record.seconds,
            error=record.failure,
        )
    )
    return record.exit_code is ExitCode.OK


async def _sent(call: StagedCall, job: Job, box: Toolbox, progress: _Progress) -> UsedCall:
    # Once more: what its server says of the tool may have changed since the last call.
    tool = _fitting(call, box, job)
    ready = await propose(tool, call.arguments, box.runtime, place_of(call))
    if isinstance(ready, UsedCall):
        return ready
    try:
        job.log.begin(call, job.id)
        progress.begun.add(call.id)
        used = await dispatch(ready, box.runtime)
        job.log.end(call, job.id, used.kind)
    except OSError as error:
        raise StepFailedError(
            f"what becomes of the call `{call.id}` cannot be written: {error.strerror}",
            hint="nothing more is called",
        ) from error
    return used


def _fitting(call: StagedCall, box: Toolbox, job: Job) -> Tool:
    """The tool of a call, as it was when the call was staged."""
    tool = box.tools.by_name(call.name)
    if tool is None:
        box.tools.require(call.name)
    return require_definition(call, tool, job.secrets)


def _held_back(emit: Emit, progress: _Progress) -> Emit:
    """What servers say before `run.started`, which comes first, waits for it."""

    def listening(event: Event) -> None:
        if progress.started:
            emit(event)
        else:
            progress.early.append(event)

    return listening


def _start(job: Job, environment: RunEnvironment, progress: _Progress) -> None:
    progress.started = True
    servers = tuple(
        replace(server, alias=f"{home}/{server.alias}" if home else server.alias)
        for home, box in progress.boxes.items()
        for server in box.servers
    )
    started = run_started(job.plans[""], job.options, servers, environment)
    environment.emit(replace(started, applies=job.run))
    for event in progress.early:
        environment.emit(event)
    progress.early.clear()


def _end(
    job: Job, environment: RunEnvironment, progress: _Progress, interrupt: Interrupt, begun: float
) -> Application:
    if not progress.started:
        _start(job, environment, progress)
    others = tuple(error for box in progress.boxes.values() for error in lock_errors(box.tools))
    state = FinalState(tuple(progress.records), progress.error, interrupt.code, others)
    end = decide_exit(state)
    attempts = tuple(_attempt(call, progress) for call in job.calls)
    environment.emit(
        RunFinished(
            status=status_of(end.code),
            exit=end,
            outputs=None,
            usage=Usage(),
            cost_usd=None,
            seconds=environment.clock.monotonic() - begun,
            denials=tuple(str(one.call.name) for one in attempts if one.outcome == "denied"),
            folder=environment.folder.shown,
        )
    )
    return Application(attempts, end)


def _attempt(call: StagedCall, progress: _Progress) -> Attempt:
    used = progress.used.get(call.id)
    if used is None:
        return Attempt(call, "unknown" if call.id in progress.begun else "not_tried")
    if used.kind == "ok":
        return Attempt(call, "applied", used)
    if used.kind == "denied":
        return Attempt(call, "denied", used)
    uncertain = used.kind == "transport_error"
    return Attempt(call, "unknown" if uncertain else "failed", used)
