import base64

import anyio
import pytest
from agent_fakes import Box, Kit, Talker, Ticks, asked, asks, says, tool, wants
from samples import each_case

from aish.agent.converse import Ask, Outcome, converse
from aish.agent.sampling import MAX_REQUESTS, Sampling
from aish.core.errors import BudgetError, StepFailedError, UnavailableError
from aish.core.events import Event, Notice, Place, TextDelta, TurnFinished, TurnStarted
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import AssistantTurn, SystemTurn, Usage, UserTurn
from aish.core.tools import Media

PLACE = Place(step="one")
TEXT: JsonObject = {"type": "text", "text": "What is the capital of France?"}
PNG = base64.b64encode(b"\x89PNG").decode()


def params(*messages: JsonValue, **more: JsonValue) -> JsonObject:
    return {"messages": messages, "maxTokens": 100, **more}


def user(content: JsonValue = TEXT) -> JsonObject:
    return {"role": "user", "content": content}


def sampled(model: Talker, request: JsonObject) -> tuple[JsonObject, list[Event]]:
    events: list[Event] = []
    sampling = Sampling(model, events.append, Ticks(), PLACE)
    return anyio.run(sampling.sample, request), events


def test_the_steps_model_answers_a_server() -> None:
    model = Talker([says("Paris.")])
    result, _ = sampled(
        model,
        params(user(), systemPrompt="Be brief", temperature=0.5, stopSequences=["END"]),
    )
    assert result == {
        "role": "assistant",
        "content": {"type": "text", "text": "Paris."},
        "model": "twin",
        "stopReason": "endTurn",
        "_meta": {"aish/usage": {"input": 1, "output": 1}},
    }
    assert model.seen == [
        (SystemTurn("Be brief"), UserTurn("What is the capital of France?")),
    ]
    request = model.requests[0]
    assert request.params == {"max_tokens": 100, "temperature": 0.5, "stop": ["END"]}
    assert request.tools == ()


def test_params_that_make_no_sense_are_not_passed_on() -> None:
    odd: JsonObject = {
        "maxTokens": 10**30,
        "temperature": float("inf"),
        "stopSequences": ["\ud800", 7, ""],
    }
    model = Talker([says("Paris."), says("Paris.")])
    sampled(model, {"messages": [user()], **odd})
    sampled(model, {"messages": [user()], "maxTokens": "x", "stopSequences": "END"})
    assert [request.params for request in model.requests] == [{"stop": ["\ufffd"]}, {}]


def test_a_cut_off_answer_says_so() -> None:
    result, _ = sampled(Talker([says("Pa", "length")]), params(user()))
    assert result["stopReason"] == "maxTokens"


def test_neighbours_of_one_role_become_one_turn() -> None:
    model = Talker([])
    said: JsonObject = {"role": "assistant", "content": [TEXT, TEXT]}
    sampled(model, params(user(), user(), said, user()))
    text = "What is the capital of France?"
    assert model.seen[0] == (
        UserTurn(f"{text}\n{text}"),
        AssistantTurn(f"{text}\n{text}"),
        UserTurn(text),
    )


def test_images_go_to_a_model_that_sees_and_a_line_stands_for_them_elsewhere() -> None:
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    seeing = Talker([], media_kinds=frozenset({"image"}))
    sampled(seeing, params(user(image)))
    turn = seeing.seen[0][0]
    assert isinstance(turn, UserTurn)
    assert turn.media == (Media("image/png", b"\x89PNG"),)
    blind = Talker([])
    sampled(blind, params(user(image)))
    assert blind.seen[0] == (UserTurn("[aish] not shown to this model: image/png, 4 bytes"),)


@each_case(
    "request_params",
    [
        {},
        {"messages": "hello"},
        {"messages": []},
        {"messages": [3]},
        params({"role": "system", "content": TEXT}),
        params({"role": "user"}),
        params({"role": ["user"], "content": TEXT}),
        params(user({"type": ["text"], "text": "x"})),
        params(user({"type": "tool_result", "toolUseId": "a"})),
        params(user({"type": "image", "data": "?", "mimeType": "image/png"})),
        params({"role": "assistant", "content": TEXT}),
        params(user(), {"role": "assistant", "content": TEXT}),
        params(user(), {"role": "assistant", "content": []}, user()),
        params(user(), tools=[{"name": "rm"}]),
    ],
)
def test_a_request_that_cannot_be_answered_costs_no_model_request(
    request_params: JsonObject,
) -> None:
    model = Talker([])
    with pytest.raises(StepFailedError, match="a sampling request cannot be answered: "):
        sampled(model, request_params)
    assert model.requests == []


def test_what_a_server_is_told_is_not_what_the_step_says() -> None:
    _, events = sampled(Talker([says("Paris.")]), params(user()))
    assert [type(event) for event in events] == [Notice, TurnStarted, TurnFinished]
    asked, answered = events[1:]
    assert isinstance(asked, TurnStarted)
    assert isinstance(answered, TurnFinished)
    assert asked.purpose == answered.purpose == "sampling"


def test_a_server_cannot_ask_without_end() -> None:
    events: list[Event] = []
    sampling = Sampling(Talker([]), events.append, Ticks(), PLACE)

    async def many() -> None:
        for _ in range(MAX_REQUESTS):
            await sampling.sample(params(user()))
        with pytest.raises(BudgetError, match="32 times"):
            await sampling.sample(params(user()))

    anyio.run(many)
    assert sampling.usage == Usage(MAX_REQUESTS, MAX_REQUESTS)


def test_a_tool_may_ask_the_steps_model_and_the_step_pays() -> None:
    look = tool("look")
    kit = Kit(Box((look,), asks_model=params(user())))
    model = Talker([asks(wants("box__look")), says("Paris."), says("Seen.")])
    got: Outcome = anyio.run(converse, Ask(asked(), model, (look,), place=PLACE), kit.runtime())
    assert (got.status, got.text) == ("ok", "Seen.")
    assert got.usage == Usage(3, 3)
    # It is given nothing of the conversation that the call is in: just what the server says.
    assert model.seen[1] == (UserTurn("What is the capital of France?"),)
    assert kit.box.samples[0]["content"] == {"type": "text", "text": "Paris."}
    assert [event.text for event in kit.events_of(TextDelta) if isinstance(event, TextDelta)] == [
        "Seen."
    ]
    started = [event for event in kit.events_of(TurnStarted) if isinstance(event, TurnStarted)]
    assert [(event.purpose, event.place.turn) for event in started] == [
        ("answer", 1),
        ("sampling", 1),
        ("answer", 2),
    ]


@pytest.mark.parametrize("named", ["", "other"])
def test_a_model_that_is_not_there_is_named(named: str) -> None:
    events: list[Event] = []
    sampling = Sampling(None, events.append, Ticks(), PLACE, models={"twin": Talker([])})
    hints: JsonObject = {"modelPreferences": {"hints": [{"name": named}]}}

    with pytest.raises(UnavailableError, match=f"`{named or 'twin'}`"):
        anyio.run(sampling.sample, params(user(), **hints))
