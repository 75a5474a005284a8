"""A unit of work, a plain step or an item: retries, time limit, expectations."""

import random
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio

from aish.agent.converse import SuspendedError
from aish.agent.dispatch import CALLS
from aish.agent.restore import TAKEN_OVER
from aish.agent.runtime import PausedError, UsedCall
from aish.config.model import CallStep, PipelineStep, PromptStep, RetryOn, RunStep, Step, StepRetry
from aish.core.errors import AishError, ExitCode
from aish.core.events import Failure, Notice, Place, Retry, StepKind
from aish.core.frozen import replace
from aish.core.messages import Spent, Usage
from aish.core.phrases import counted
from aish.core.sources import union
from aish.engine.cancellation import CutOffError, until_cancelled
from aish.engine.final import failure_of
from aish.engine.records import StepRecord
from aish.engine.resources.resources import require_live_servers
from aish.engine.steps.context import StepContext
from aish.engine.steps.prompt import run_prompt
from aish.engine.steps.sources import base_sources
from aish.engine.steps.tool_call import run_call, run_command_step
from aish.policy.questions import OpenQuestion
from aish.system.computation import ComputationStoppedError

if TYPE_CHECKING:
    from aish.engine.resume_state import Unfinished

KINDS: Mapping[type[Step], StepKind] = {
    PromptStep: "prompt",
    CallStep: "call",
    RunStep: "run",
    PipelineStep: "pipeline",
}
# Errors that neither a retry nor another item could fix: the run ends with these.
FATAL = frozenset(
    {ExitCode.CASSETTE, ExitCode.LOCK, ExitCode.INTERNAL, ExitCode.USAGE, ExitCode.BUDGET}
)
TIMEOUT = "timeout"
CALL_UNKNOWN: RetryOn = "call_unknown"
"""The code of a step that is not tried again because of a call that it has made."""
PAUSED = "the run is paused"
CUT_OFF = "interrupted"
"""The code of a step that something else has ended."""
# A limit of one conversation, which does not affect the next one.
_OF_ONE_CONVERSATION = frozenset({"tool_depth"})

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 60.0
_WITHIN = Place()
"""The place, among the calls of an attempt, of one that was made within its sub-pipeline."""
_OWN_WORDS: Mapping[str, RetryOn] = {
    TIMEOUT: "timeout",
    "schema": "schema",
    "expectation": "expectation",
}


async def run_unit(step: Step, context: StepContext) -> StepRecord:
    """The end of a step or an item, after as many attempts as its `retry` allows.

    Raises:
        CutOffError: the run was stopped between two attempts at an item, which stays open.
        SuspendedError: the item waits for a batch, and is to go on later.
    """
    retry = step.flow.retry
    attempt, earlier = 0, context.earlier_turns(step)
    if earlier is not None:
        attempt = earlier.earlier.attempt - 1
        if context.suspended is None:
            _take_over(step, context, earlier)
        context = replace(context, turn=earlier.turn)
    first = attempt + 1
    while True:
        attempt += 1
        begun = context.run.spending.of(context.place(step))
        here = context
        if attempt != first:
            here = replace(context, turn=begun.turns, anew=True, suspended=None)
        try:
            record, call = await _attempt(step, here)
        except SuspendedError as error:
            error.turn = here.turn
            error.earlier = replace(error.earlier, attempt=attempt)
            raise
        record = _with_usage(record, context.run.spending.of(context.place(step)))
        if attempt >= retry.attempts or not _should_retry(retry, record, call):
            return record
        if call is not None and CALL_UNKNOWN not in retry.on:
            return _not_repeated(record, call)
        if context.course.stopped:
            if context.item is not None:
                raise CutOffError
            return record
        await _wait(step, context, attempt + 1, record)


def _not_repeated(record: StepRecord, call: UsedCall) -> StepRecord:
    """The end of a step whose `retry` would make a call again."""
    why = record.failure
    assert why is not None, "it failed"
    message = (
        f"{why.message}; it is not tried again, as its call of `{call.tool}` may have taken effect"
    )
    hint = (
        "`retry.on: [call_unknown]` allows the call to be made again; so does a rule for the tool "
        "under `mcp.idempotent`"
    )
    return replace(record, failure=Failure(CALL_UNKNOWN, message, hint))


def _take_over(step: Step, context: StepContext, earlier: "Unfinished") -> None:
    """Emit that a unit continues its conversation, and count the usage of that conversation."""
    place, emit = context.place(step), context.emit
    context.run.spending.carry(place, earlier.spent)
    if earlier.turns:
        message = f"goes on after turn {earlier.turn + earlier.earlier.turns} of its conversation"
        emit(Notice(place, "info", TAKEN_OVER, message))


def _with_usage(record: StepRecord, used: Spent) -> StepRecord:
    """Add the usage of all attempts, including judges and summaries."""
    if record.kind == "pipeline":
        return record
    return replace(record, usage=used.usage or record.usage, cost_usd=used.cost_usd)


async def _attempt(step: Step, context: StepContext) -> tuple[StepRecord, UsedCall | None]:
    """Make an attempt; return also its first call that may not be repeated unasked.

    That may be one of an earlier part of the run. Every failure becomes a record.
    """
    limit, clock = step.flow.timeout, context.clock
    began = clock.monotonic() if context.suspended is None else context.suspended.began
    calls: dict[Place, UsedCall | None] = {}
    outer = CALLS.get()
    token = CALLS.set(calls)
    try:
        with context.activity.within(limit) as scope:
            record = await _run_attempt(step, context, began)
    except SuspendedError as error:
        error.began = began
        error.made = _first_unrepeatable(context.earlier_call(step), *calls.values())
        raise
    finally:
        CALLS.reset(token)
    if scope.cancelled_caught:
        withdraw_questions(step, context)
        late = Failure(TIMEOUT, f"it took longer than {limit:g} s", "raise its `timeout`")
        record = fail(step, context, late, ExitCode.FAILED)
    # An attempt without a result has made its calls anyway.
    used_calls = [call for place, call in calls.items() if call is not None and place != _WITHIN]
    step_calls = record.calls or tuple(used_calls)
    first = _first_unrepeatable(context.earlier_call(step), *step_calls, calls.get(_WITHIN))
    if outer is not None and first is not None:
        outer.setdefault(_WITHIN, first)
    if scope.cancelled_caught and isinstance(step, RunStep) and step_calls:
        printed = step_calls[-1].structured
        if isinstance(printed, dict):
            record = replace(record, text=str(printed["stdout"]), output=printed)
    if context.agent.flow is not None:
        of_calls = (call.sources for call in step_calls)
        sources = union((record.sources, base_sources(step, context), *of_calls))
        record = replace(record, sources=sources)
    return replace(record, calls=step_calls, seconds=clock.monotonic() - began), first


def _first_unrepeatable(*calls: UsedCall | None) -> UsedCall | None:
    return next((call for call in calls if call is not None and not call.repeatable), None)


async def _run_attempt(step: Step, context: StepContext, began: float) -> StepRecord:
    record: StepRecord | None = None
    try:
        record = await _run_once(step, context)
        if step.expect and record.status == "ok":
            return await _check_expectations(step, record, context, began)
    except AishError as error:
        end = fail(step, context, failure_of(error), error.exit_code, retryable=error.retryable)
        if record is None:
            return end
        # It has answered; whether the answer is as expected is unknown.
        return replace(
            end,
            text=record.text,
            output=record.output,
            calls=record.calls,
            sources=record.sources,
            output_sources=record.output_sources,
        )
    except PausedError:
        return _pause_record(step, context)
    except ComputationStoppedError:
        await until_cancelled()
    return record


async def _run_once(step: Step, context: StepContext) -> StepRecord:
    if isinstance(step, PromptStep | CallStep):
        require_live_servers(context.plan, context.resources)
    match step:
        case PromptStep():
            return await run_prompt(step, context)
        case CallStep():
            return await run_call(step, context)
        case RunStep():
            return await run_command_step(step, context)
        case PipelineStep():
            assert context.run.run_inner is not None, "a run with sub-pipelines has what runs them"
            return await context.run.run_inner(step, context)


def _pause_record(step: Step, context: StepContext) -> StepRecord:
    """The record of a unit that waits for answers."""
    place = context.place(step)
    asked = [
        question
        for question in context.questions.still_open()
        if (question.question.place.step, question.question.place.item) == (place.step, place.item)
    ]
    if not asked:
        hint = how_to_go_on(context, ())
        failure = Failure("paused", "a batch of the provider has the request to the model", hint)
        return replace(fail(step, context, failure, ExitCode.PAUSED), status="paused")
    names = ", ".join(f"`{question.question.tool.name}`" for question in asked)
    count = f"{counted(len(asked), 'call')} {'waits' if len(asked) == 1 else 'wait'} for an answer"
    failure = Failure("paused", f"{count}: {names}", how_to_go_on(context, asked))
    return replace(fail(step, context, failure, ExitCode.PAUSED), status="paused")


def how_to_go_on(context: StepContext, asked: Sequence[OpenQuestion]) -> str | None:
    """The commands that answer one question or more, and that go on after it."""
    if not context.run.resume:
        return None
    run = context.agent.gate.run
    answer = f"approve {run} {asked[0].id[:8]}" if len(asked) == 1 else f"runs pending {run}"
    place = context.run.resume.index("--resume") + 1
    elsewhere = context.run.resume[place:]
    first = shlex.join(("aish", *answer.split(), *elsewhere))
    go_on = shlex.join((*context.run.resume[:place], run, *elsewhere))
    return f"`{first}`, then `{go_on}`"


def withdraw_questions(step: Step, context: StepContext) -> None:
    """End the questions of a step or item that has ended before the answers."""
    here = context.place(step)

    def concerns(place: Place) -> bool:
        inner = (place.step or "").startswith(f"{here.step}/")
        if place.step != here.step and not inner:
            return False
        return (
            here.item is None
            or place.item == here.item
            or (inner and (place.item or "").startswith(f"{here.item}/"))
        )

    context.questions.withdraw(concerns)


async def _check_expectations(
    step: Step, record: StepRecord, context: StepContext, began: float
) -> StepRecord:
    """Check the step's expectations, which may refer to its usage."""
    from aish.engine.steps.expect import check_expectations

    record = _with_usage(record, context.run.spending.of(context.place(step)))
    seconds = context.clock.monotonic() - began
    return await check_expectations(step, replace(record, seconds=seconds), context)


def fail(
    step: Step, context: StepContext, failure: Failure, code: ExitCode, *, retryable: bool = True
) -> StepRecord:
    """Return the record of a unit that ended without a result."""
    used = context.run.spending.of(context.place(step))
    return StepRecord(
        id=step.id,
        kind=KINDS[type(step)],
        status="budget" if code is ExitCode.BUDGET else "failed",
        usage=used.usage or Usage(),
        cost_usd=used.cost_usd,
        failure=failure,
        exit_code=code,
        retryable=retryable,
    )


def cut_off(step: Step, context: StepContext) -> StepRecord:
    """The record of a step that was interrupted by the end of the run, not by its own failure."""
    return fail(step, context, Failure(CUT_OFF, "the run ended during this step"), ExitCode.OK)


def ends_the_run(record: StepRecord) -> bool:
    """Return true if no unit of work is to be begun after this one, regardless of the file."""
    of_one = record.failure is not None and record.failure.code in _OF_ONE_CONVERSATION
    return record.exit_code in FATAL and not of_one


def _should_retry(retry: StepRetry, record: StepRecord, call: UsedCall | None) -> bool:
    """Return true if the step is to be retried after this; `call` may not be repeated unasked."""
    if record.status != "failed" or ends_the_run(record) or record.failure is None:
        return False
    plain: RetryOn = "unavailable" if record.exit_code is ExitCode.UNAVAILABLE else "failed"
    if call is not None and CALL_UNKNOWN in retry.on:
        return True
    return not retry.on or _OWN_WORDS.get(record.failure.code, plain) in retry.on


async def _wait(step: Step, context: StepContext, attempt: int, record: StepRecord) -> None:
    """Full jitter, as between requests; no wait in a replay."""
    bound = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (attempt - 2))
    delay = 0.0 if context.run.replayed else random.random() * bound  # ruff: ignore[suspicious-non-cryptographic-random-usage] - not a secret
    reason = record.failure.message if record.failure else record.status
    place = context.place(step)
    context.emit(Retry(place, f"step {place.step}", attempt, delay, reason))
    await anyio.sleep(delay)
