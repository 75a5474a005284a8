"""An answer in a JSON Schema: asked for, judged, and asked for again until it fits (B9).

One conversation throughout: what is wrong is said in a user turn, and the bounds of the tool loop
hold for all of it.
"""

from dataclasses import replace

from aish.agent.conversation import add_user
from aish.agent.converse import Ask, Outcome, converse
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
    """`outcome` is of everything that was asked and said; `failure` is about the last answer."""

    outcome: Outcome
    output: JsonValue = None
    failure: Failure | None = None


async def answer(ask: Ask, schema: AnswerSchema, attempts: int, runtime: AgentRuntime) -> Answered:
    """Ask for an answer that fits `schema`, at most `attempts` times.

    Where the endpoint takes no schema beside tools, the answer of a turn with tools is no attempt:
    the model was not told of the schema yet, which a turn without tools then does.

    Raises:
        UnavailableError: the model's endpoint stayed out of reach, or refused the credentials.
        StepFailedError: the endpoint refused the request, or its answer is unusable.
    """
    first = ask.place.turn or 0
    said: Outcome | None = None
    attempt = 1
    while True:
        now = await converse(ask, runtime)
        said = now if said is None else _together(said, now)
        if said.status != "ok":
            return Answered(said)
        judged = await judge(now.text, schema.schema, runtime.check_arguments, runtime.mask)
        if not judged.why:
            return Answered(said, judged.value)
        here = replace(ask.place, turn=first + said.turns)
        # Every turn but the last was one with calls.
        ask = replace(ask, place=here, rounds=ask.rounds + now.turns - 1)
        if _is_apart(ask):
            runtime.emit(Notice(here, "info", "schema_asked", _NOW_ALONE))
            ask = _asked_again(replace(ask, tools=()), last_turn(schema.schema))
        elif judged.mendable and attempt < attempts:
            text = f"answer {attempt} of {attempts}: {judged.why[:_LONGEST]}; retrying"
            runtime.emit(Notice(here, "warning", "answer_rejected", text))
            ask = _asked_again(ask, correction_request(judged))
            attempt += 1
        else:
            # What was rejected is no output: only the text tells of it.
            return Answered(said, None, _failure(judged, attempt))


def _is_apart(ask: Ask) -> bool:
    """Whether the schema did not go out because tools did; known only once it was tried."""
    model = ask.model
    return bool(ask.tools) and model.enforces_schema and not model.schema_with_tools


def _asked_again(ask: Ask, text: str) -> Ask:
    """The same conversation with one more user turn; to insist on a tool was for its beginning."""
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
