from dataclasses import replace

import anyio
import pytest
from agent_fakes import (
    Answer,
    Box,
    Kit,
    Person,
    Talker,
    asked,
    asks,
    assert_legal,
    says,
    tool,
    wants,
)

from aish.agent.converse import Ask
from aish.config.model import LoopLimits
from aish.core.errors import StepFailedError
from aish.core.events import Failure, Notice, Place, TurnStarted
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import FinishReason, Usage, UserTurn
from aish.core.protocols import AnswerSchema
from aish.core.tools import Tool
from aish.engine.steps.structured_output import Answered, answer
from aish.system.schema.check import TOO_LONG, SchemaProblem

KIND = AnswerSchema(
    "sort_answer",
    {"type": "object", "properties": {"kind": {"enum": ["bug", "wish"]}}, "required": ["kind"]},
)
LOOK = tool("look")
GOOD = '{"kind": "bug"}'
WRONG = '{"kind": "query"}'
NOT_ONE_OF = "the answer does not fit its schema: kind: 'query' is not one of 'bug', 'wish'"


def ask_of(model: Talker, tools: tuple[Tool, ...] = (LOOK,), tool_choice: str = "auto") -> Ask:
    place = Place(step="sort")
    return Ask(asked(), model, tools, tool_choice=tool_choice, schema=KIND, place=place)


def answered(ask: Ask, kit: Kit | None = None, attempts: int = 3) -> Answered:
    kit = kit or Kit(Box((LOOK,)))
    got = anyio.run(answer, ask, KIND, attempts, kit.runtime())
    assert_legal(ask.history.turns)
    return got


def users(ask: Ask) -> list[str]:
    """What was said after the prompt."""
    return [turn.text for turn in ask.history.turns if isinstance(turn, UserTurn)][1:]


def test_an_answer_that_fits_is_asked_for_once() -> None:
    kit, model = Kit(Box((LOOK,))), Talker([says(GOOD)])

    got = answered(ask_of(model), kit)

    assert (got.output, got.failure, got.outcome.turns) == ({"kind": "bug"}, None, 1)
    assert kit.events_of(Notice) == []


def test_a_wrong_answer_goes_back_with_its_problems_until_one_fits() -> None:
    kit = Kit(Box((LOOK,)))
    model = Talker([says("A bug, I think"), says(WRONG), says(f"So: {GOOD}")])
    ask = ask_of(model)

    got = answered(ask, kit)

    assert (got.output, got.failure) == ({"kind": "bug"}, None)
    assert got.outcome.text == f"So: {GOOD}"
    assert got.outcome.usage == Usage(3, 3)
    assert [len(turns) for turns in model.seen] == [1, 3, 5]
    assert ["it is not JSON" in text for text in users(ask)] == [True, False]
    assert kit.events_of(TurnStarted)[2] == TurnStarted(Place("sort", turn=3), "twin", 5)
    first, second = kit.events_of(Notice)
    assert first == Notice(
        Place("sort", turn=1),
        "warning",
        "answer_rejected",
        'answer 1 of 3: the answer is not JSON; it begins: "A bug, I think"; retrying',
    )
    assert second == Notice(
        Place("sort", turn=2),
        "warning",
        "answer_rejected",
        f"answer 2 of 3: {NOT_ONE_OF}; retrying",
    )


@pytest.mark.parametrize(("attempts", "tried"), [(1, ""), (2, " (after 2 attempts)")])
def test_the_last_attempt_fails_with_its_problems_and_keeps_the_text(
    attempts: int, tried: str
) -> None:
    model = Talker([says(WRONG)] * 4)

    got = answered(ask_of(model), attempts=attempts)

    assert len(model.requests) == attempts
    assert got.failure == Failure("schema", NOT_ONE_OF + tried)
    assert (got.output, got.outcome.text) == (None, WRONG)


def test_tools_stay_there_and_their_rounds_count_for_all_attempts_together() -> None:
    kit = Kit(Box((LOOK,)), limits=LoopLimits(max_tool_depth=2))
    look = wants("box__look")
    model = Talker([asks(look), says(WRONG), asks(look), says(WRONG), asks(look), says(GOOD)])

    got = answered(ask_of(model), kit, attempts=9)

    assert all(request.tools == (LOOK,) for request in model.requests)
    assert len(kit.box.called) == 2
    assert (got.outcome.status, got.outcome.turns) == ("budget", 5)
    assert got.outcome.failure is not None
    assert "`max_tool_depth: 2`" in got.outcome.failure.message
    assert len(got.outcome.calls) == 3


def test_to_insist_on_a_tool_is_for_the_first_request_only() -> None:
    model = Talker([asks(wants("box__look")), says(WRONG), says(GOOD)])
    answered(ask_of(model, tool_choice="required"))
    assert [one.tool_choice for one in model.requests] == ["required", "auto", "auto"]

    model = Talker([says(WRONG), says(GOOD)])
    answered(ask_of(model, tool_choice="none"))
    assert [one.tool_choice for one in model.requests] == ["none", "none"]


@pytest.mark.parametrize("on_denied", ["continue", "fail"])
def test_a_call_that_is_denied_while_an_answer_is_mended(on_denied: str) -> None:
    kit = Kit(Box((LOOK,)), auto=(), person=Person(answer=False))
    kit.on_denied = "fail" if on_denied == "fail" else "continue"
    script: list[Answer] = [says(WRONG), asks(wants("box__look")), says(GOOD)]

    got = answered(ask_of(Talker(script)), kit)

    assert got.outcome.status == ("denied" if on_denied == "fail" else "ok")
    assert [call.kind for call in got.outcome.calls] == ["denied"]
    assert got.output == (None if on_denied == "fail" else {"kind": "bug"})


@pytest.mark.parametrize(("reason", "code"), [("refusal", "refusal"), ("length", "truncated")])
def test_a_refusal_and_a_cut_off_answer_are_not_asked_for_again(
    reason: FinishReason, code: str
) -> None:
    model = Talker([says(WRONG), says('{"kind": "b', reason=reason)])

    got = answered(ask_of(model))

    assert len(model.requests) == 2
    assert got.outcome.failure is not None
    assert (got.outcome.status, got.outcome.failure.code) == ("failed", code)
    assert got.outcome.text == '{"kind": "b'


def test_an_empty_answer_is_asked_for_again() -> None:
    kit, model = Kit(Box((LOOK,))), Talker([says(WRONG), says(""), says(GOOD)])

    got = answered(ask_of(model), kit)

    assert got.output == {"kind": "bug"}
    told = [one for one in kit.events_of(Notice) if isinstance(one, Notice)]
    assert [one.code for one in told] == ["answer_rejected", "empty_answer", "answer_rejected"]
    assert told[2].text == "answer 2 of 3: the answer is empty; retrying"


def test_the_last_text_is_kept_where_the_last_answer_is_empty() -> None:
    got = answered(ask_of(Talker([says(WRONG), says("")])), attempts=2)

    assert got.outcome.text == WRONG
    assert got.output is None
    assert got.failure == Failure("schema", "the answer is empty (after 2 attempts)")


def test_what_another_answer_would_not_mend_is_not_asked_for_again() -> None:
    async def never(schema: JsonObject, value: JsonValue) -> tuple[SchemaProblem, ...]:
        await anyio.lowlevel.checkpoint()
        return (TOO_LONG,)

    model, kit = Talker([says(GOOD)] * 3), Kit(Box((LOOK,)))
    ask = ask_of(model)
    got = anyio.run(answer, ask, KIND, 3, replace(kit.runtime(), check_arguments=never))

    assert len(model.requests) == 1
    assert got.failure is not None
    assert got.failure.message.endswith("schema took too long")


def test_where_tools_and_schema_do_not_go_together_a_turn_without_tools_asks() -> None:
    kit = Kit(Box((LOOK,)))
    model = Talker(
        [asks(wants("box__look")), says("It is a bug."), says(WRONG), says(GOOD)],
        enforces_schema=True,
        schema_with_tools=False,
    )
    ask = ask_of(model, tool_choice="required")

    got = answered(ask, kit, attempts=2)

    assert got.output == {"kind": "bug"}
    assert [len(one.tools) for one in model.requests] == [1, 1, 0, 0]
    assert all(one.schema == KIND for one in model.requests)
    first, second = users(ask)
    assert first.startswith("Now give your answer in this form. Answer with one JSON value")
    assert '"enum": ["bug", "wish"]' in first
    assert second.startswith("That answer cannot be used:\n- kind: 'query' is not one of")
    told = [(one.code, one.text[:13]) for one in kit.events_of(Notice) if isinstance(one, Notice)]
    assert told == [("schema_asked", "the answer is"), ("answer_rejected", "answer 1 of 2")]


def test_a_turn_with_tools_that_fits_already_needs_no_other() -> None:
    model = Talker([says(GOOD)], enforces_schema=True, schema_with_tools=False)
    assert answered(ask_of(model), attempts=1).output == {"kind": "bug"}


def test_without_tools_there_is_nothing_to_keep_apart() -> None:
    model = Talker([says(WRONG), says(GOOD)], enforces_schema=True, schema_with_tools=False)
    ask = ask_of(model, tools=())

    got = answered(ask, attempts=1)

    assert got.failure is not None
    assert len(model.requests) == 1


def test_calls_in_the_turn_without_tools_are_answered_and_not_made() -> None:
    kit = Kit(Box((LOOK,)))
    look = wants("box__look")
    model = Talker(
        [says("A bug."), asks(look), says(GOOD)], enforces_schema=True, schema_with_tools=False
    )

    got = answered(ask_of(model), kit)

    assert got.output == {"kind": "bug"}
    assert kit.box.called == []
    assert [call.kind for call in got.outcome.calls] == ["bad_arguments"]


def test_an_endpoint_that_fails_in_the_middle_leaves_a_legal_conversation() -> None:
    ask = ask_of(Talker([says(WRONG), [StepFailedError("gone")]]))

    with pytest.raises(StepFailedError, match="gone"):
        anyio.run(answer, ask, KIND, 3, Kit(Box((LOOK,))).runtime())

    assert_legal(ask.history.turns)
