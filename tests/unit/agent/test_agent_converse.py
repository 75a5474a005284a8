import json
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
    gives,
    replies,
    says,
    tool,
    wants,
)
from work import work_of

from aish.agent.converse import Ask, Outcome, converse
from aish.config.model import LoopLimits
from aish.core.errors import StepFailedError, UnavailableError
from aish.core.events import (
    Asked,
    Event,
    Failure,
    Notice,
    Place,
    TextDelta,
    TextWithdrawn,
    ToolDecided,
    ToolFinished,
    TurnFinished,
    TurnStarted,
)
from aish.core.json import JsonObject
from aish.core.messages import (
    AssistantTurn,
    Delta,
    Extras,
    Finish,
    History,
    TextPiece,
    ToolTurn,
    Usage,
    UserTurn,
)
from aish.core.protocols import AnswerSchema
from aish.core.tools import Media, ToolCall, ToolResult

PLACE = Place(step="one")
LOOK = tool("look")
RM = tool("rm")


def kit_of(**handlers: ToolResult) -> Kit:
    return Kit(Box((LOOK, RM), {name: gives(result) for name, result in handlers.items()}))


def ask_of(model: Talker, history: History | None = None) -> Ask:
    return Ask(history or asked(), model, (LOOK, RM), place=PLACE)


def outcome(kit: Kit, ask: Ask) -> Outcome:
    got = anyio.run(converse, ask, kit.runtime())
    assert_legal(ask.history.turns)
    return got


def talk(kit: Kit, *script: Answer) -> tuple[Outcome, Talker, History]:
    model = Talker(list(script))
    ask = ask_of(model)
    return outcome(kit, ask), model, ask.history


def test_an_answer_without_calls_ends_the_loop() -> None:
    kit = kit_of()
    got, model, history = talk(kit, says("Hello"))
    assert got == Outcome("ok", "Hello", (), Usage(1, 1), "stop", None, 1)
    assert history.turns == [UserTurn("go"), AssistantTurn("Hello", origin="twin")]
    place = Place(step="one", turn=1)
    assert kit.events == [
        TurnStarted(place, "twin", 1),
        TextDelta(place, "Hello"),
        TurnFinished(place, "twin", "stop", "Hello", (), Usage(1, 1), 1.0, 2.0),
    ]
    assert model.requests[0].place == place


def test_calls_are_replied_to_until_an_answer_has_none() -> None:
    kit = kit_of(look=ToolResult("ok", "a file"))
    got, model, history = talk(
        kit,
        asks(wants("box__look", '{"path": "a"}', "c1"), text="Let me look."),
        asks(wants("box__look", '{"path": "b"}', "c2")),
        says("Two files."),
    )
    assert (got.status, got.text, got.turns) == ("ok", "Two files.", 3)
    assert [used.arguments for used in got.calls] == [{"path": "a"}, {"path": "b"}]
    assert history.turns[1:3] == [
        AssistantTurn(
            "Let me look.", (ToolCall("c1", "box__look", '{"path": "a"}'),), origin="twin"
        ),
        ToolTurn("c1", "box__look", "a file"),
    ]
    assert [len(turns) for turns in model.seen] == [1, 3, 5]
    for turns in model.seen:
        assert_legal(turns)
    assert kit.events_of(TurnStarted)[2] == TurnStarted(Place("one", None, 3), "twin", 5)


def test_a_turn_tells_what_was_asked_for() -> None:
    kit = kit_of()
    talk(kit, asks(wants("box__look", "{", "c1"), wants("nope", "{}", "c1")))
    finished = kit.events_of(TurnFinished)[0]
    assert isinstance(finished, TurnFinished)
    first, second = finished.calls
    assert first == Asked("c1", "box__look", "{")
    assert (second.name, second.id != "c1") == ("nope", True)


@pytest.mark.requirement("L15")
def test_at_the_depth_limit_one_more_request_is_made_and_its_calls_are_not() -> None:
    kit = kit_of()
    kit.limits = LoopLimits(max_tool_depth=2)
    look = wants("box__look")
    got, model, history = talk(
        kit, asks(look), asks(look), asks(look, look, text="Still at it."), says("never asked")
    )
    assert (got.status, got.text, got.turns) == ("budget", "Still at it.", 3)
    assert got.failure is not None
    assert got.failure.code == "tool_depth"
    assert len(model.requests) == 3
    assert len(kit.box.called) == 2
    assert replies(history)[-2:] == ["[aish] tool-call depth limit reached"] * 2
    assert len(kit.events_of(ToolDecided)) == 2


def test_the_last_text_is_kept_where_the_last_turn_has_none() -> None:
    kit = kit_of()
    kit.limits = LoopLimits(max_tool_depth=1)
    look = wants("box__look")
    got, _, _ = talk(kit, asks(look, text="First."), asks(look))
    assert (got.status, got.text) == ("budget", "First.")


def test_the_request_after_the_last_round_may_still_answer() -> None:
    kit = kit_of()
    kit.limits = LoopLimits(max_tool_depth=1)
    got, _, _ = talk(kit, asks(wants("box__look")), says("Seen."))
    assert (got.status, got.text) == ("ok", "Seen.")


def test_too_many_calls_in_one_turn_end_it_as_an_error() -> None:
    kit = kit_of()
    kit.limits = LoopLimits(max_calls_per_turn=2)
    got, model, history = talk(kit, asks(*[wants("box__look")] * 3))
    assert (got.status, got.turns) == ("failed", 1)
    assert got.failure is not None
    assert got.failure.code == "too_many_calls"
    assert kit.box.called == []
    reply = "[aish] 3 tool calls in one turn, and at most 2 are allowed: none was run"
    assert replies(history) == [reply] * 3
    assert len(model.requests) == 1


@pytest.mark.slow(reason="a flood of calls")
def test_a_flood_of_calls_is_answered_in_no_time() -> None:
    kit = Kit(Box(tuple(tool(f"tool_number_{n}") for n in range(200))))
    model = Talker([asks(*[wants("tool_nmuber", "", "same")] * 2_000)])
    ask = Ask(asked(), model, kit.box.tools, place=PLACE)
    got: list[Outcome] = []
    work = work_of(lambda: got.append(outcome(kit, ask)))
    assert work.steps < 1_000 * 2_000  # to look for the nearest name costs a hundred times that
    assert got[0].status == "failed"
    assert len(replies(ask.history)) == 2_000


def test_missing_and_repeated_ids_are_made_the_same_in_every_run() -> None:
    def ids() -> list[str]:
        look = wants("box__look", id="call_0")
        _, _, history = talk(kit_of(), asks(look, look, wants("box__look")), asks(look))
        return [turn.call_id for turn in history.turns if isinstance(turn, ToolTurn)]

    first = ids()
    assert first[0] == "call_0"
    assert len(set(first)) == 4
    assert ids() == first


def test_a_denial_ends_the_step_after_every_call_has_its_reply() -> None:
    kit = kit_of()
    kit.deny, kit.on_denied = ("box__rm",), "fail"
    got, model, history = talk(
        kit, asks(wants("box__look"), wants("box__rm"), wants("box__look"), text="Tidying up.")
    )
    assert (got.status, got.text) == ("denied", "Tidying up.")
    assert got.failure is not None
    assert got.failure.code == "denied"
    assert got.failure.message == "tool call denied by rule box__rm; its arguments: {}"
    assert "box__rm" in (got.failure.hint or "")
    assert len(replies(history)) == 3
    assert len(model.requests) == 1


def test_with_continue_the_model_hears_of_the_denial_and_goes_on() -> None:
    kit = kit_of()
    kit.auto = ()
    got, model, _ = talk(kit, asks(wants("box__rm")), says("Then not."))
    assert (got.status, got.text) == ("ok", "Then not.")
    last = model.seen[1][-1]
    assert isinstance(last, ToolTurn)
    assert last.content == "[aish] tool call denied: no rule approves box__rm"


@pytest.mark.parametrize(
    "result",
    [
        ToolResult("handler_error", "ERROR: no such file"),
        ToolResult("rpc_error", "[aish] tool dispatch failed: boom"),
        ToolResult("transport_error", "[aish] tool transport error: 401 unauthorized"),
        ToolResult("ok", ""),
    ],
)
def test_no_failure_of_one_call_ends_the_conversation(result: ToolResult) -> None:
    got, _, history = talk(kit_of(look=result), asks(wants("box__look")), says("Oh."))
    assert (got.status, got.text) == ("ok", "Oh.")
    assert replies(history) == [result.content or "[aish] (no output)"]


def test_broken_arguments_never_stand_in_the_history() -> None:
    broken = '{"path": "a'
    _, model, _ = talk(kit_of(), asks(wants("box__look", broken)), says("Sorry."))
    assistant, reply = model.seen[1][-2:]
    assert isinstance(assistant, AssistantTurn)
    assert isinstance(reply, ToolTurn)
    assert json.loads(assistant.calls[0].arguments) == {}
    assert reply.content.startswith("[aish] tool arguments not parseable as JSON: ")


def test_a_wrong_name_stands_in_the_history_so_that_it_can_be_sent() -> None:
    _, _, history = talk(kit_of(), asks(wants("functions.look<|x|>" + "y" * 90), wants("")))
    turn = history.turns[1]
    assert isinstance(turn, AssistantTurn)
    assert [call.name for call in turn.calls] == [
        ("functions_look__x__" + "y" * 90)[:64],
        "unknown",
    ]


def test_a_tool_that_this_step_is_not_shown_is_not_called() -> None:
    kit = kit_of()
    model = Talker([asks(wants("box__rm"))])
    outcome(kit, replace(ask_of(model), tools=(LOOK,)))
    assert kit.box.called == []


@pytest.mark.requirement("L12")
def test_unknown_fields_go_onto_the_turn_with_the_name_of_who_sent_them() -> None:
    call = ToolCall("c1", "box__look", "{}", {"extra_content": {"signature": "x"}})
    batch: list[Delta] = [
        Extras({"reasoning_details": [1]}),
        call,
        Finish("tool_calls", Usage(), model="b"),
    ]
    _, _, history = talk(kit_of(), [batch])
    turn = history.turns[1]
    assert isinstance(turn, AssistantTurn)
    assert (turn.extras, turn.origin) == ({"reasoning_details": [1]}, "b")
    assert turn.calls[0].extras == {"extra_content": {"signature": "x"}}


def test_the_turn_says_which_model_answered() -> None:
    kit = kit_of()
    talk(kit, [[TextPiece("Hi"), Finish("stop", Usage(), model="spare")]])
    finished = kit.events_of(TurnFinished)[0]
    assert isinstance(finished, TurnFinished)
    assert finished.model == "spare"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ["auto", "auto"]),
        ("none", ["none", "none"]),
        ("required", ["required", "auto"]),
        ("box__rm", ["short_rm", "auto"]),
    ],
)
def test_to_insist_on_a_tool_holds_for_the_first_request(choice: str, expected: list[str]) -> None:
    model = Talker([asks(wants("box__look")), says("Seen.")])
    short = replace(RM, wire="short_rm")
    outcome(kit_of(), replace(ask_of(model), tools=(LOOK, short), tool_choice=choice))
    assert [request.tool_choice for request in model.requests] == expected


def test_text_is_an_answer_even_if_a_tool_was_insisted_on() -> None:
    """Servers that know no `tool_choice` ignore it."""
    model = Talker([says("No need to.")])
    found = outcome(kit_of(), replace(ask_of(model), tools=(LOOK,), tool_choice="required"))
    assert found.text == "No need to."
    assert len(model.requests) == 1


def test_without_tools_there_is_nothing_to_insist_on() -> None:
    model = Talker([says("Hi")])
    outcome(kit_of(), replace(ask_of(model), tools=(), tool_choice="required"))
    assert model.requests[0].tool_choice == "auto"


def test_schema_and_params_go_with_every_request() -> None:
    model = Talker([asks(wants("box__look")), says("{}")])
    schema = AnswerSchema("answer", {"type": "object"})
    outcome(kit_of(), replace(ask_of(model), schema=schema, params={"temperature": 0}))
    assert [request.schema for request in model.requests] == [schema, schema]
    assert [request.params for request in model.requests] == [{"temperature": 0}] * 2


def test_a_refusal_fails_the_step_and_its_calls_are_not_made() -> None:
    kit = kit_of()
    batch: list[Delta] = [
        wants("box__rm", id="c1"),
        Finish("refusal", Usage(1, 1), refusal="I will not"),
    ]
    got, _, history = talk(kit, [batch])
    assert (got.status, got.text) == ("failed", "I will not")
    assert got.failure == Failure("refusal", "the model refused: I will not")
    assert history.turns[-1] == AssistantTurn("I will not", origin="twin")
    assert kit.box.called == []


def test_a_refusal_without_a_word_leaves_a_legal_history() -> None:
    got, _, history = talk(kit_of(), says("", "refusal"))
    assert got.failure == Failure("refusal", "the model refused to answer")
    assert history.turns[-1] == AssistantTurn("[aish] (empty answer)", origin="twin")


def test_an_answer_cut_off_is_good_text_with_a_notice() -> None:
    kit = kit_of()
    got, _, _ = talk(kit, says("Once upon a", "length"))
    assert (got.status, got.text, got.finish) == ("ok", "Once upon a", "length")
    (notice,) = kit.events_of(Notice)
    assert isinstance(notice, Notice)
    assert notice.code == "truncated"


def test_an_answer_cut_off_is_no_answer_where_a_schema_is_wanted() -> None:
    model = Talker([says('{"a": ', "length")])
    schema = AnswerSchema("answer", {})
    got = outcome(kit_of(), replace(ask_of(model), schema=schema))
    assert got.status == "failed"
    assert got.failure is not None
    assert got.failure.code == "truncated"


@pytest.mark.parametrize(
    ("text", "status"),
    [('{"a": 1}\n\n  ', "ok"), ('"yes"', "ok"), ("[1]", "ok"), ("12", "failed"), ("[1", "failed")],
)
def test_an_answer_cut_off_after_its_end_is_one(text: str, status: str) -> None:
    model = Talker([says(text, "length")])
    schema = AnswerSchema("answer", {})
    got = outcome(kit_of(), replace(ask_of(model), schema=schema))
    assert got.status == status


def test_an_answer_cut_off_before_it_began_is_no_answer() -> None:
    got, _, _ = talk(kit_of(), says("", "length"))
    assert got.failure is not None
    assert got.failure.code == "truncated"


def test_an_empty_answer_is_told_and_leaves_a_legal_history() -> None:
    kit = kit_of()
    got, _, history = talk(kit, asks(wants("box__look"), text="Looking."), says(""))
    assert (got.status, got.text) == ("ok", "")
    assert isinstance(history.turns[-1], AssistantTurn)
    assert [notice.code for notice in kit.events_of(Notice) if isinstance(notice, Notice)] == [
        "empty_answer"
    ]


@pytest.mark.parametrize(("text", "status"), [("Fine", "ok"), ("", "failed")])
def test_an_odd_reason_is_judged_by_what_was_said(text: str, status: str) -> None:
    pieces = [TextPiece(text)] if text else []
    got, _, _ = talk(kit_of(), [[*pieces, Finish("other", Usage(), raw="weird")]])
    assert got.status == status


def test_tokens_are_added_up_and_unknown_stays_unknown() -> None:
    look: list[Delta] = [wants("box__look"), Finish("tool_calls", Usage(10, 5, cached=2))]
    got, _, _ = talk(kit_of(), [look], says("Seen.", usage=Usage(20, None)))
    assert got.usage == Usage(30, None, 2, None)


def test_turns_are_numbered_on_from_where_the_caller_is() -> None:
    kit = kit_of()
    outcome(kit, replace(ask_of(Talker([])), place=Place("one", "row 1", 4)))
    assert [event.place for event in kit.events_of(TurnStarted)] == [Place("one", "row 1", 5)]


@pytest.mark.parametrize("error", [UnavailableError("gone"), StepFailedError("400")])
def test_a_model_that_fails_leaves_a_legal_history(error: Exception) -> None:
    kit = kit_of()
    ask = ask_of(Talker([asks(wants("box__look")), [[TextPiece("It is")], error]]))
    with pytest.raises(type(error)):
        anyio.run(converse, ask, kit.runtime())
    assert_legal(ask.history.turns)
    assert len(ask.history.turns) == 3
    assert isinstance(kit.events[-1], TextWithdrawn)
    assert len(kit.events_of(TurnFinished)) == 1


def test_an_interrupted_stream_stops_at_once_and_tells_no_end() -> None:
    kit = kit_of()
    model = Talker([])
    ask = ask_of(model)

    async def main() -> None:
        runtime = kit.runtime()
        scope = anyio.CancelScope()

        def emit(event: Event) -> None:
            kit.events.append(event)
            if isinstance(event, TextDelta):
                scope.cancel()

        with scope:
            await converse(ask, replace(runtime, emit=emit))
        assert scope.cancelled_caught

    model.script = [[[TextPiece("a")], [TextPiece("b")], [Finish("stop", Usage())]]]
    anyio.run(main)
    assert [type(event) for event in kit.events] == [TurnStarted, TextDelta]
    assert ask.history.turns == [UserTurn("go")]
    assert model.closed == 1


def test_an_interrupted_round_leaves_a_legal_history() -> None:
    kit = kit_of()
    ask = ask_of(Talker([asks(wants("box__look"), wants("box__rm"))]))

    async def main() -> None:
        scope = anyio.CancelScope()

        async def hangs(arguments: JsonObject) -> ToolResult:
            scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError

        kit.box.handlers["look"] = hangs
        with scope:
            await converse(ask, kit.runtime())

    anyio.run(main)
    assert_legal(ask.history.turns)
    assert len(replies(ask.history)) == 2
    assert kit.events_of(ToolFinished) == []


def test_media_go_into_the_turn_of_a_model_that_sees() -> None:
    media = (Media("image/png", b"\x89PNG"),)
    kit = kit_of(look=ToolResult("ok", "a cat", media=media))
    model = Talker([asks(wants("box__look"))], media_kinds=frozenset({"image"}))
    ask = ask_of(model)
    outcome(kit, ask)
    turn = ask.history.turns[2]
    assert isinstance(turn, ToolTurn)
    assert turn.media == media
    assert list(kit.kept.values()) == [b"\x89PNG"]


def test_a_person_decides_where_the_rules_say_so() -> None:
    kit = kit_of()
    kit.auto, kit.person = (), Person(answer=True, attended=True)
    got, _, _ = talk(kit, asks(wants("box__rm", '{"path": "a"}')), says("Gone."))
    assert got.calls[0].verdict == "ask-yes"
    assert kit.person.questions[0].arguments == {"path": "a"}
