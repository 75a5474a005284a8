"""Applies staged calls: in order, each once, until one does not succeed (B16).

Selects the calls that are due, checks that they still mean what was reviewed (same servers, same
tools), and runs them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import field, replace
from typing import Literal

import anyio
import anyio.lowlevel

from aish.agent.dispatch import dispatch, propose
from aish.agent.runtime import UsedCall
from aish.config.model import Pipeline, PipelineStep
from aish.core.errors import (
    AishError,
    ExitCode,
    InternalError,
    LockDiffersError,
    StepFailedError,
    UsageError,
    did_you_mean,
)
from aish.core.events import (
    CallCounts,
    Event,
    Exit,
    Place,
    RunFinished,
    StepFinished,
    StepStarted,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, canonical
from aish.core.messages import Usage
from aish.core.phrases import counted, first_of
from aish.core.protocols import Emit
from aish.core.tools import Tool
from aish.engine.cancellation import Interrupt, interruptible
from aish.engine.environment import RunEnvironment
from aish.engine.execution.run import run_started
from aish.engine.final import FinalState, decide_exit, status_of
from aish.engine.plan.lock import known_tool, lock_of, locked_tool_named, pin_now, summary
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, load_checked
from aish.engine.records import StepRecord
from aish.engine.resources.resources import (
    Toolbox,
    lock_errors,
    open_toolbox,
    require_lock,
    require_servers,
)
from aish.engine.steps.tool_call import output_of, tool_record
from aish.features.staging.file import StagedCall, pins_of
from aish.features.staging.log import AppliedLog, State
from aish.policy.decide import forbidden
from aish.policy.lock import address_difference
from aish.policy.rules import Policy
from aish.system.secrets.secrets import Secrets

_AGAIN = "run the pipeline again to stage and review new calls"


@frozen
class Against:
    """An objection to a call, and the exit code of `aish apply` for it."""

    text: str
    code: ExitCode


def address_problem(call: StagedCall, pipeline: Pipeline | None, secrets: Secrets) -> str | None:
    """How a call's server differs from the one it was staged for."""
    if pipeline is None:
        return f"the step `{call.home}` does not run a sub-pipeline any more"
    now = pins_of(pipeline, secrets)
    alias = call.name.server
    if alias not in now:
        return f"unknown server `{alias}` in {pipeline.file}"
    there = now[alias]
    if call.server is None or there is None:
        return None if call.server is there else f"`{alias}` has changed"
    if call.server.is_at(there):
        return None
    return summary(address_difference(alias, call.server, there)).replace(
        "as it was locked", "the one that the call was staged for"
    )


def require_addresses(
    calls: Iterable[StagedCall], homes: Mapping[str, Pipeline], secrets: Secrets
) -> None:
    """Refuse calls whose server has changed, before any is started.

    Raises:
        LockDiffersError: names the call and the difference.
    """
    for call in calls:
        if problem := address_problem(call, homes.get(call.home), secrets):
            raise _differs(call, problem)


def require_definition(call: StagedCall, tool: Tool | None, secrets: Secrets) -> Tool:
    """The tool of a call, if its definition is unchanged since the call was staged.

    Raises:
        LockDiffersError: it does not, or has no such tool.
    """
    if tool is None:
        raise _differs(call, f"no server offers the tool `{call.name}`")
    if pin_now(tool, secrets).sha256 != call.definition:
        said = f"the tool `{call.name}` is not described as it was when the call was staged"
        raise _differs(call, said)
    return tool


def expected_problems(
    call: StagedCall, pipeline: Pipeline | None, policy: Policy, secrets: Secrets
) -> Iterator[Against]:
    """Objections to a call that are known without asking a server."""
    problem = address_problem(call, pipeline, secrets)
    if pipeline is None or problem:
        yield Against(problem or "", ExitCode.LOCK)
        return
    lock = lock_of(pipeline)
    tool = known_tool(call.name, pipeline, lock)
    locked = None if lock is None else locked_tool_named(call.name, pipeline, lock)
    if locked is not None and pin_now(locked, secrets).sha256 != call.definition:
        said = f"the lock has `{call.name}` otherwise than the call was staged with"
        yield Against(said, ExitCode.LOCK)
    unknown = Tool(name=call.name, wire=str(call.name), description="", input_schema={})
    if ruling := forbidden(policy, tool or unknown, call.arguments):
        yield Against(f"denied: {ruling.reason}", ExitCode.DENIED)


def _differs(call: StagedCall, problem: str) -> LockDiffersError:
    return LockDiffersError(problem, where=f"staged call `{call.id}`", hint=_AGAIN)


class ReviewedCalls:
    """A `policy.gate.Reviewed`: approves exactly these calls, and no others."""

    def __init__(self, calls: Iterable[StagedCall], source: str) -> None:
        self._calls: Mapping[str, StagedCall] = {call.id: call for call in calls}
        self._source = source

    def rule(self, tool: Tool, arguments: JsonObject, place: Place) -> str | None:
        """The rule that approves a call if it is one of them; `None` for any other call."""
        call = self._calls.get(place.call or "")
        if call is None or call.name != tool.name:
            return None
        if canonical(call.arguments) != canonical(arguments):
            return None
        return f"apply {self._source}#{call.id}"


def place_of(call: StagedCall) -> Place:
    """The place of a call in the run that applies it: a step of its own."""
    return Place(step=f"call-{call.id}", call=call.id)


GRACE = 10.0
"""Seconds that a call in flight has after the first Ctrl-C (B14)."""

_TURNS = 3

Outcome = Literal["applied", "failed", "denied", "unknown", "not_tried"]


@frozen
class Job:
    """The calls to apply: `calls` are those that are due, `run` is the run that staged them.

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
        """The secrets shared by all plans."""
        return self.plans[""].secrets


@frozen
class Attempt:
    """The result of a call; `used` is `None` if it was not decided on or did not return."""

    call: StagedCall
    outcome: Outcome
    used: UsedCall | None = None


@frozen
class Application:
    """The result of a job, call by call."""

    attempts: tuple[Attempt, ...]
    end: Exit


@slotted
class _Progress:
    """The state so far; read at the end, also after an error."""

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
        """Whether a call was sent and has not returned."""
        return any(id not in self.used for id in self.begun)


async def apply_calls(job: Job, environment: RunEnvironment) -> Application:
    """Make the calls of a job; every failure becomes part of the result."""
    begun = environment.clock.monotonic()
    progress = _Progress()

    def end(code: ExitCode) -> None:
        progress.stopping = True
        if code is ExitCode.INTERRUPTED and progress.in_flight:
            # A sent call may still report its end: otherwise its outcome would be unknown.
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
            below = replace(opening, prefix=f"{home}/" if home else "")
            box = await stack.enter_async_context(open_toolbox(plan, below))
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
    """Make a call as a step of its own; returns whether the next one may follow."""
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
            exit_code=int(record.exit_code),
        )
    )
    return record.exit_code is ExitCode.OK


async def _sent(call: StagedCall, job: Job, box: Toolbox, progress: _Progress) -> UsedCall:
    # Again: its server may have changed the tool since the last call.
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
            f"the result of the call `{call.id}` cannot be written: {error.strerror}",
            hint="nothing more is called",
        ) from error
    return used


def _fitting(call: StagedCall, box: Toolbox, job: Job) -> Tool:
    """The tool of a call, if unchanged since the call was staged."""
    tool = box.tools.by_name(call.name)
    if tool is None:
        box.tools.require(call.name)
    return require_definition(call, tool, job.secrets)


def _held_back(emit: Emit, progress: _Progress) -> Emit:
    """Buffers server messages until `run.started`, which has to come first."""

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
    calls = CallCounts()
    for used in progress.used.values():
        calls = calls.plus(used.kind, used.exit_code)
    environment.emit(
        RunFinished(
            status=status_of(end.code),
            exit=end,
            outputs=None,
            usage=Usage(),
            cost_usd=None,
            seconds=environment.clock.monotonic() - begun,
            denials=Counter(str(one.call.name) for one in attempts if one.outcome == "denied"),
            folder=environment.folder.shown,
            calls=calls,
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


_SHOWN = 5
_UNSETTLED: tuple[tuple[State, str, str], ...] = (
    ("unknown", "started before, with unknown outcome", "--retry-unknown"),
    ("failed", "failed before", "--retry-failed"),
)


@frozen
class Wish:
    """The selection of calls: ids, or unique prefixes of them."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    retry_unknown: bool = False
    retry_failed: bool = False


class UnsettledError(AishError):
    """Calls whose earlier attempt failed or has an unknown outcome."""

    code = "unsettled_calls"


def chosen(calls: Sequence[StagedCall], wish: Wish) -> tuple[StagedCall, ...]:
    """The selected calls, in file order.

    Raises:
        UsageError: an id is that of no call, or of several.
    """
    only = {_named(id, calls, "--only") for id in wish.only}
    skip = {_named(id, calls, "--skip") for id in wish.skip}
    if both := only & skip:
        raise UsageError(f"`--only` and `--skip` both name `{min(both)}`")
    return tuple(c for c in calls if c.id not in skip and (not only or c.id in only))


def is_unsettled(state: State, wish: Wish, *, idempotent: bool) -> bool:
    """Whether a call in this state needs the user's consent to be made again."""
    if state == "unknown":
        return not wish.retry_unknown and not idempotent
    return state == "failed" and not wish.retry_failed


def require_settled(
    calls: Sequence[StagedCall],
    states: Mapping[str, State],
    wish: Wish,
    idempotent: frozenset[str] = frozenset(),
) -> None:
    """Refuse to continue past failed calls, or calls with unknown outcome.

    Raises:
        UnsettledError: names them.
    """
    for state, said, flag in _UNSETTLED:
        found = [
            call
            for call in calls
            if states.get(call.digest, "open") == state
            and is_unsettled(state, wish, idempotent=call.digest in idempotent)
        ]
        if found:
            names = first_of([f"`{call.id}` ({call.name})" for call in found], _SHOWN)
            raise UnsettledError(
                f"{counted(len(found), 'staged call')} {said}: {names}",
                hint=f"check the effects; then `{flag}` repeats it, `--skip ID` leaves it out",
            )


def _named(id: str, calls: Sequence[StagedCall], option: str) -> str:
    found = [call.id for call in calls if id and call.digest.startswith(id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"`{id}` fits {len(found)} calls", where=option)
    hint = did_you_mean(id, (call.id for call in calls))
    raise UsageError(f"no staged call has the id `{id}`", where=option, hint=hint)


def homes_of(pipeline: Pipeline, calls: Iterable[StagedCall]) -> Mapping[str, Pipeline]:
    """The pipeline of each call, by the steps that lead to it; removed ones are omitted.

    The pipeline determines its file, and not the file of staged calls. What a pipeline denies is
    denied in its sub-pipelines too.

    Raises:
        PipelineError: all problems of a sub-pipeline.
    """
    homes = {"": pipeline}
    for call in calls:
        path = ""
        for id in call.home.split("/") if call.home else ():
            outer, path = homes.get(path), f"{path}/{id}" if path else id
            if outer is not None and path not in homes and (inner := _inner(outer, id)):
                homes[path] = inner
    return homes


def _inner(outer: Pipeline, id: str) -> Pipeline | None:
    for step in outer.steps:
        if step.id == id and isinstance(step, PipelineStep):
            inner = load_checked(step.file, ())
            rules = replace(inner.rules, deny=inner.rules.deny + outer.rules.deny)
            return replace(inner, rules=rules)
    return None
