"""Structured answers: requested, validated, and requested again until valid.

One conversation throughout: problems are reported in a user turn, and the limits of the tool loop
apply to all of it.
"""

from dataclasses import replace

from aish.agent.conversation import add_user
from aish.agent.converse import Ask, Outcome, SuspendedError, converse
from aish.agent.runtime import AgentRuntime
from aish.core.events import Failure, Notice
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.messages import add_usage
from aish.core.phrases import counted
from aish.core.protocols import AnswerSchema
from aish.engine.answer_schema import Judged, correction_request, judge, last_turn

_LONGEST = 400
_NOW_ALONE = "the answer is requested with its schema, in a turn without tools"


@frozen
class Answered:
    """`outcome` covers the whole conversation; `failure` is about the last answer."""

    outcome: Outcome
    output: JsonValue = None
    failure: Failure | None = None


async def answer(ask: Ask, schema: AnswerSchema, attempts: int, runtime: AgentRuntime) -> Answered:
    """Request an answer that matches `schema`, at most `attempts` times.

    If the endpoint does not support a schema beside tools, the answer of a turn with tools is not
    an attempt: the model receives the schema in a turn without tools.

    Raises:
        UnavailableError: the model's endpoint is unreachable, or refused the credentials.
        StepFailedError: the endpoint refused the request, or its answer is unusable.
        SuspendedError: the answer comes after hours, and the conversation `suspends`.
    """
    first = ask.place.turn or 0
    outcome: Outcome | None = None
    attempt = 1 if ask.earlier is None else ask.earlier.corrections + 1
    while True:
        try:
            now = await converse(ask, runtime)
        except SuspendedError as error:
            error.earlier = replace(
                error.earlier,
                turns=error.earlier.turns + (ask.place.turn or 0) - first,
                calls=(*(outcome.calls if outcome is not None else ()), *error.earlier.calls),
                corrections=attempt - 1,
            )
            raise
        outcome = now if outcome is None else _together(outcome, now)
        if outcome.status != "ok":
            return Answered(outcome)
        judged = await judge(
            now.text,
            schema.schema,
            runtime.check_arguments,
            runtime.mask,
            nulls_for_absent=ask.model.nulls_for_absent,
        )
        if not judged.why:
            return Answered(outcome, judged.value)
        here = replace(ask.place, turn=first + outcome.turns)
        # Every turn but the last had tool calls.
        over = 0 if ask.earlier is None else ask.earlier.corrections
        ask = replace(ask, place=here, rounds=ask.rounds + now.turns - 1 - over, earlier=None)
        if _is_apart(ask):
            runtime.emit(Notice(here, "info", "schema_asked", _NOW_ALONE))
            # A conversation that is gone on with has its tools again.
            ask = replace(ask, tools=(), suspends=False)
            ask = _ask_again(ask, last_turn(schema.schema))
        elif judged.mendable and attempt < attempts:
            text = f"answer {attempt} of {attempts}: {judged.why[:_LONGEST]}; retrying"
            runtime.emit(Notice(here, "warning", "answer_rejected", text))
            ask = _ask_again(ask, correction_request(judged))
            attempt += 1
        else:
            # A rejected answer is not output: it is only in the text.
            return Answered(outcome, None, _failure(judged, attempt))


def _is_apart(ask: Ask) -> bool:
    """Return true if the schema was left out because of tools; known after the first request."""
    model = ask.model
    return bool(ask.tools) and model.enforces_schema and not model.schema_with_tools


def _ask_again(ask: Ask, text: str) -> Ask:
    """Ask again with one more user turn; a required tool applied only to the start."""
    add_user(ask.history, text, heard=ask.heard)
    return replace(ask, tool_choice="none" if ask.tool_choice == "none" else "auto")


def _failure(judged: Judged, attempt: int) -> Failure:
    tried = f" (after {counted(attempt, 'attempt')})" if attempt > 1 else ""
    return Failure("schema", judged.why + tried)


def _together(before: Outcome, now: Outcome) -> Outcome:
    return replace(
        now,
        text=now.text or before.text,
        calls=before.calls + now.calls,
        usage=add_usage(before.usage, now.usage),
        turns=before.turns + now.turns,
    )
