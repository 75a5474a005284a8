"""Applies staged calls: in order, each once, until one does not succeed.

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
from aish.core.events import CallCounts, Exit, Place, StepStarted
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, canonical
from aish.core.messages import Spent
from aish.core.phrases import counted, first_of
from aish.core.tools import Tool
from aish.engine.cancellation import Interrupt, interruptible
from aish.engine.environment import RunEnvironment
from aish.engine.execution.graph import end_event
from aish.engine.execution.run import HeldEvents, finish_run, run_started
from aish.engine.final import FinalState, decide_exit
from aish.engine.limits import Spending
from aish.engine.plan.lock import find_locked_tool, known_tool, lock_of, pin_now, summary
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
from aish.policy.gate import Proposal
from aish.policy.lock import address_difference
from aish.policy.rules import Policy
from aish.system.secrets.secrets import Secrets

_AGAIN = "run the pipeline again to stage and review new calls"


@frozen
class Objection:
    """An objection to a call, and the exit code of `aish apply` for it."""

    text: str
    code: ExitCode


def address_problem(call: StagedCall, pipeline: Pipeline | None, secrets: Secrets) -> str | None:
    """Describe how a call's server differs from the one it was staged for."""
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


def find_objections(
    call: StagedCall, pipeline: Pipeline | None, policy: Policy, secrets: Secrets
) -> Iterator[Objection]:
    """Objections to a call that are known without asking a server."""
    problem = address_problem(call, pipeline, secrets)
    if pipeline is None or problem:
        yield Objection(problem or "", ExitCode.LOCK)
        return
    lock = lock_of(pipeline)
    tool = known_tool(call.name, pipeline, lock)
    locked = None if lock is None else find_locked_tool(call.name, pipeline, lock)
    if locked is not None and pin_now(locked, secrets).sha256 != call.definition:
        message = f"the lock has `{call.name}` otherwise than the call was staged with"
        yield Objection(message, ExitCode.LOCK)
    unknown = Tool(name=call.name, wire=str(call.name), description="", input_schema={})
    if ruling := forbidden(policy, tool or unknown, call.arguments):
        yield Objection(f"denied: {ruling.reason}", ExitCode.DENIED)


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
"""Seconds that a call in flight has after the first Ctrl-C."""

_TURNS = 3

Outcome = Literal["applied", "failed", "denied", "unknown", "not_tried"]


@frozen
class ApplyJob:
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


async def apply_calls(job: ApplyJob, environment: RunEnvironment) -> Application:
    """Make the calls of a job; every failure becomes part of the result."""
    held = HeldEvents(environment.emit)
    return await _ApplyRun(job, environment, held, environment.clock.monotonic()).to_its_end()


@slotted
class _ApplyRun:
    """The run that applies calls, and its state so far, which is read also after an error."""

    job: ApplyJob
    environment: RunEnvironment
    held: HeldEvents
    began: float
    records: list[StepRecord] = field(default_factory=list)
    used: dict[str, UsedCall] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    stopping: bool = False
    error: AishError | None = None
    boxes: dict[str, Toolbox] = field(default_factory=dict)

    async def to_its_end(self) -> Application:

        def end(code: ExitCode) -> None:
            self.stopping = True
            if code is ExitCode.INTERRUPTED and any(id not in self.used for id in self.begun):
                # A sent call may still report its end: otherwise its outcome would be unknown.
                scope.deadline = anyio.current_time() + GRACE
            else:
                scope.cancel()

        with anyio.CancelScope() as scope, interruptible(end) as interrupt:
            try:
                await self._open_and_apply()
            except AishError as error:
                self.error = error
            except Exception as error:
                self.error = InternalError(f"{type(error).__name__}: {error}")
                self._end(interrupt)
                raise
        return self._end(interrupt)

    async def _open_and_apply(self) -> None:
        job, opening = self.job, self.environment.with_emit(self.held)
        async with AsyncExitStack() as stack:
            for home, plan in job.plans.items():
                below = replace(opening, prefix=f"{home}/" if home else "")
                self.boxes[home] = await stack.enter_async_context(open_toolbox(plan, below))
            self._start()
            for home, box in self.boxes.items():
                require_servers(job.plans[home], box.servers)
                require_lock(box.tools)
            for call in job.calls:
                self._require_tool(call)
            for call in job.calls:
                # Let the loop call the handler of a signal that has come: that takes some turns.
                for _ in range(_TURNS):
                    await anyio.lowlevel.checkpoint()
                if self.stopping or not await self._make(call):
                    return

    async def _make(self, call: StagedCall) -> bool:
        """Make a call as a step of its own; returns whether the next one may follow."""
        place, emit = Place(step=place_of(call).step), self.boxes[call.home].runtime.emit
        emit(StepStarted(place, "call"))
        used = self.used[call.id] = await self._send(call)
        output = output_of(used)
        record = tool_record(str(place.step), "call", used, on_denied="fail", output=output)
        record = replace(record, seconds=used.seconds)
        self.records.append(record)
        emit(end_event(record, place))
        return record.exit_code is ExitCode.OK

    async def _send(self, call: StagedCall) -> UsedCall:
        job, runtime = self.job, self.boxes[call.home].runtime
        # Again: its server may have changed the tool since the last call.
        proposal = Proposal(self._require_tool(call), call.arguments, place_of(call))
        ready = await propose(proposal, runtime)
        if isinstance(ready, UsedCall):
            return ready
        try:
            job.log.begin(call, job.id)
            self.begun.add(call.id)
            used = await dispatch(ready, runtime)
            job.log.end(call, job.id, used.kind)
        except OSError as error:
            raise StepFailedError(
                f"the result of the call `{call.id}` cannot be written: {error.strerror}",
                hint="nothing more is called",
            ) from error
        return used

    def _require_tool(self, call: StagedCall) -> Tool:
        """The tool of a call, if unchanged since the call was staged."""
        tools = self.boxes[call.home].tools
        tool = tools.by_name(call.name)
        if tool is None:
            tools.require(call.name)
            raise _differs(call, f"no server offers the tool `{call.name}`")
        if pin_now(tool, self.job.secrets).sha256 != call.definition:
            message = f"the tool `{call.name}` is not described as it was when the call was staged"
            raise _differs(call, message)
        return tool

    def _start(self) -> None:
        servers = tuple(
            replace(server, alias=f"{home}/{server.alias}" if home else server.alias)
            for home, box in self.boxes.items()
            for server in box.servers
        )
        job, environment = self.job, self.environment
        started = run_started(job.plans[""], job.options, servers, environment)
        environment.emit(replace(started, applies=job.run))
        self.held.release()

    def _end(self, interrupt: Interrupt) -> Application:
        if not self.held.started:
            self._start()
        others = tuple(error for box in self.boxes.values() for error in lock_errors(box.tools))
        end = decide_exit(FinalState(tuple(self.records), self.error, interrupt.code, others))
        attempts = tuple(map(self._attempt, self.job.calls))
        calls = CallCounts()
        for used in self.used.values():
            calls = calls.plus(used.kind, used.exit_code)
        denials = Counter(str(one.call.name) for one in attempts if one.outcome == "denied")
        spending = Spending(whole=Spent(cost_usd=None), calls=calls, denials=denials)
        return Application(attempts, finish_run(self.environment, end, self.began, spending))

    def _attempt(self, call: StagedCall) -> Attempt:
        used = self.used.get(call.id)
        if used is None:
            return Attempt(call, "unknown" if call.id in self.begun else "not_tried")
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
class CallSelection:
    """The selection of calls: ids, or unique prefixes of them."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    retry_unknown: bool = False
    retry_failed: bool = False


class UnsettledError(AishError):
    """Calls whose earlier attempt failed or has an unknown outcome."""

    code = "unsettled_calls"


def select_calls(calls: Sequence[StagedCall], selection: CallSelection) -> tuple[StagedCall, ...]:
    """The selected calls, in file order.

    Raises:
        UsageError: an id is that of no call, or of several.
    """
    only = {_find_id(id, calls, "--only") for id in selection.only}
    skip = {_find_id(id, calls, "--skip") for id in selection.skip}
    if both := only & skip:
        raise UsageError(f"`--only` and `--skip` both name `{min(both)}`")
    return tuple(c for c in calls if c.id not in skip and (not only or c.id in only))


def is_unsettled(state: State, selection: CallSelection, *, idempotent: bool) -> bool:
    """Return true if repeating a call in this state needs the user's consent."""
    if state == "unknown":
        return not selection.retry_unknown and not idempotent
    return state == "failed" and not selection.retry_failed


def require_settled(
    calls: Sequence[StagedCall],
    states: Mapping[str, State],
    selection: CallSelection,
    idempotent: frozenset[str] = frozenset(),
) -> None:
    """Refuse to continue past failed calls, or calls with unknown outcome.

    Raises:
        UnsettledError: names them.
    """
    for state, words, flag in _UNSETTLED:
        matches = [
            call
            for call in calls
            if states.get(call.digest, "open") == state
            and is_unsettled(state, selection, idempotent=call.digest in idempotent)
        ]
        if matches:
            names = first_of([f"`{call.id}` ({call.name})" for call in matches], _SHOWN)
            raise UnsettledError(
                f"{counted(len(matches), 'staged call')} {words}: {names}",
                hint=f"check the effects; then `{flag}` repeats it, `--skip ID` leaves it out",
            )


def _find_id(id: str, calls: Sequence[StagedCall], option: str) -> str:
    ids = [call.id for call in calls if id and call.digest.startswith(id)]
    if len(ids) == 1:
        return ids[0]
    if ids:
        raise UsageError(f"`{id}` fits {len(ids)} calls", where=option)
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
