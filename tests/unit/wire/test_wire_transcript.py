"""Turns on the wire: pairing, echoes, the form without a tool role, and what they cost."""

import gc
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_bodies import CALL, ORIGIN, PNG, READ, URL, dialect, messages, result
from work import work_of

from aish.core.messages import AssistantTurn, History, SystemTurn, Turn, UserTurn
from aish.core.protocols import ModelRequest
from aish.core.tools import Media, ToolCall
from aish.wire.chat.encode import Encoder


def test_calls_without_text_have_null_content_and_text_is_kept() -> None:
    called = {
        "id": "i",
        "type": "function",
        "function": {"name": "repo__read", "arguments": '{"x": 1}'},
    }
    reply = {"role": "tool", "tool_call_id": "i", "content": "one"}
    assert messages(AssistantTurn("", (CALL,)), result()) == [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        reply,
    ]
    assert messages(AssistantTurn("Look:", (CALL,)), result()) == [
        {"role": "assistant", "content": "Look:", "tool_calls": [called]},
        reply,
    ]
    assert messages(AssistantTurn("")) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"x": 1}', '{"x": 1}'),
        ("", "{}"),
        ('{"x":', "{}"),
        ('{"x": NaN}', "{}"),
        ("[1]", "{}"),
        ('"{\\"x\\": 1}"', '{"x": 1}'),
    ],
)
def test_arguments_in_the_history_are_the_text_of_an_object(arguments: str, sent: str) -> None:
    said = messages(AssistantTurn("", (ToolCall("i", "t", arguments),)), result())
    assert said[0]["tool_calls"][0]["function"]["arguments"] == sent


@pytest.mark.requirement("Q39")
def test_an_id_of_an_earlier_turn_is_numbered_on_the_wire_only() -> None:
    turn = AssistantTurn("", (CALL,))
    history = (turn, result(), turn, result(content="two"), turn, result(content="three"))
    said = messages(*history)
    assert [message["tool_calls"][0]["id"] for message in said[::2]] == ["i", "i_2", "i_3"]
    assert [message["tool_call_id"] for message in said[1::2]] == ["i", "i_2", "i_3"]
    assert turn.calls[0].id == "i"


def test_an_id_twice_in_one_turn_keeps_its_replies_apart() -> None:
    said = messages(AssistantTurn("", (CALL, CALL)), result(), result(content="two"))
    assert [call["id"] for call in said[0]["tool_calls"]] == ["i", "i_2"]
    assert [(m["tool_call_id"], m["content"]) for m in said[1:]] == [("i", "one"), ("i_2", "two")]


@pytest.mark.requirement("Q42")
def test_ids_are_nine_letters_and_digits_where_the_endpoint_takes_no_other() -> None:
    calls = tuple(ToolCall(id, "t", "{}") for id in ("call_0123456789", "abc123XYZ"))
    turns: list[Turn] = [AssistantTurn("", calls), *(result(call.id) for call in calls)]
    said = messages(*turns, *turns, short_ids=True)
    ids = [
        call["id"] for message in said if "tool_calls" in message for call in message["tool_calls"]
    ]
    assert ids[1] == "abc123XYZ"
    assert len(set(ids)) == 4
    assert all(len(id) == 9 and id.isalnum() for id in ids)
    assert [message["tool_call_id"] for message in said if message["role"] == "tool"] == ids


def test_unknown_fields_go_back_to_their_own_endpoint_only() -> None:
    signed = ToolCall("i", "t", "{}", {"extra_content": {"s": "c2ln"}, "function": {"f": 1}})
    turn = AssistantTurn("", (signed,), {"reasoning_details": [{"a": 1}], "role": "x"}, ORIGIN)
    message = messages(turn, result())[0]
    assert message["reasoning_details"] == [{"a": 1}]
    assert message["role"] == "assistant"
    assert message["tool_calls"][0]["extra_content"] == {"s": "c2ln"}
    assert message["tool_calls"][0]["function"] == {"f": 1, "name": "t", "arguments": "{}"}
    elsewhere = messages(turn, result(), origin="https://there.example")[0]
    assert set(elsewhere) == {"role", "content", "tool_calls"}
    assert set(elsewhere["tool_calls"][0]) == {"id", "type", "function"}
    nowhere = AssistantTurn("", (signed,), {"x": 1})
    assert "x" not in messages(nowhere, result(), origin="")[0]


def test_thinking_is_echoed_of_answers_with_calls_and_those_after_them_and_stays() -> None:
    encoder = Encoder(dialect())
    history = History([UserTurn("u")])
    first = AssistantTurn("", (CALL,), {"reasoning_content": "Hm.", "x": 1}, ORIGIN)
    second = AssistantTurn("", (ToolCall("j", "t", "{}"),), {"reasoning_content": "So."}, ORIGIN)
    last = AssistantTurn("Done.", (), {"reasoning_content": "Ah."}, ORIGIN)

    def thoughts() -> list[str | None]:
        said = json.loads(encoder.body(ModelRequest(history)))["messages"]
        return [
            message.get("reasoning_content") for message in said if message["role"] == "assistant"
        ]

    history.turns += [first, result()]
    assert thoughts() == ["Hm."]
    history.turns += [second, result("j")]
    assert thoughts() == ["Hm.", "So."]
    history.turns += [last]
    assert thoughts() == ["Hm.", "So.", "Ah."]
    history.turns += [UserTurn("more"), last, UserTurn("and more")]
    assert thoughts() == ["Hm.", "So.", "Ah.", None]
    again = json.loads(encoder.body(ModelRequest(history)))["messages"]
    assert again[1]["x"] == 1


def test_without_a_tool_role_a_round_is_one_user_turn() -> None:
    calls = (CALL, ToolCall("j", "repo__list", "{}"))
    turn = AssistantTurn("Look:", calls, {"reasoning": "Hm.", "x": 1}, ORIGIN)
    replies = (result(), result("j", "two", "repo__list"))
    told = {"role": "user", "content": "[tool: repo__read]\none\n\n[tool: repo__list]\ntwo"}
    said = messages(UserTurn("u"), turn, *replies, tool_role=False)
    assert said == [
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": 'Look:\n\n[call: repo__read]\n{"x": 1}\n\n[call: repo__list]\n{}',
            "x": 1,
        },
        told,
    ]
    said = messages(UserTurn("u"), turn, *replies, AssistantTurn("Done."), tool_role=False)
    assert said[2:] == [told, {"role": "assistant", "content": "Done."}]
    broken = (CALL, ToolCall("j", "t", " "), ToolCall("k", "t", '{"x": '))
    silent = messages(AssistantTurn("", broken), result(), tool_role=False)
    content = '[call: repo__read]\n{"x": 1}\n\n[call: t]\n{}\n\n[call: t]\n{"x":'
    assert silent[0] == {"role": "assistant", "content": content}


def test_without_a_tool_role_no_two_user_messages_are_neighbours() -> None:
    turns = (AssistantTurn("", (CALL,)), result(), UserTurn("And?"))
    said = messages(*turns, AssistantTurn("Done."), tool_role=False)
    assert [message["role"] for message in said] == ["assistant", "user", "assistant"]
    assert said[1]["content"] == "[tool: repo__read]\none\n\nAnd?"


@pytest.mark.parametrize("tool_role", [True, False])
def test_images_go_out_as_data_where_the_model_sees(*, tool_role: bool) -> None:
    image = {"type": "image_url", "image_url": {"url": URL}}
    turns = (
        UserTurn("u", (PNG,)),
        AssistantTurn("", (CALL,)),
        result("i", "one", "repo__read", PNG),
    )
    said = messages(*turns, vision=True, tool_role=tool_role)
    assert said[0]["content"] == [{"type": "text", "text": "u"}, image]
    assert said[-1]["role"] == "user"
    label = "[media from repo__read]" if tool_role else "[tool: repo__read]\none"
    assert said[-1]["content"] == [{"type": "text", "text": label}, image]
    blind = messages(*turns, tool_role=tool_role)
    assert "image" not in json.dumps(blind)


def test_images_of_tools_wait_for_the_end_of_their_round() -> None:
    calls = (CALL, ToolCall("j", "t", "{}"))
    turns = (AssistantTurn("", calls), result("i", "one", "a", PNG), result("j", "two", "b"))
    said = messages(*turns, AssistantTurn("Nice."), vision=True)
    assert [message["role"] for message in said] == [
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]


def test_a_sound_is_a_line_that_says_it_is_missing() -> None:
    said = messages(UserTurn("", (Media("audio/wav", b"RIFF"),)), vision=True)
    assert said[0]["content"] == [{"type": "text", "text": "[audio/wav not sent]"}]


turns = st.lists(
    st.builds(UserTurn, st.text(max_size=3))
    | st.just(SystemTurn("s"))
    | st.builds(
        AssistantTurn,
        st.text(max_size=3),
        st.sampled_from([(), (CALL,), (CALL, CALL)]),
        st.sampled_from([{}, {"reasoning": "r"}, {"x": 1}]),
        st.just(ORIGIN),
    )
    | st.builds(result, st.sampled_from(["i", "k"]), st.text(max_size=3))
    | st.just(result("i", "m", "t", PNG)),
    max_size=12,
)


@settings(deadline=None)
@given(
    added=turns,
    stops=st.lists(st.integers(0, 12), max_size=4),
    tool_role=st.booleans(),
    vision=st.booleans(),
)
def test_bodies_of_a_growing_history_are_those_of_one_encoded_at_once(
    added: list[Turn], stops: list[int], *, tool_role: bool, vision: bool
) -> None:
    spoken = dialect(tool_role=tool_role, vision=vision)
    encoder, history = Encoder(spoken), History()
    for start, end in zip([0, *sorted(stops)], [*sorted(stops), len(added)], strict=True):
        history.turns += added[start:end]
        fresh = Encoder(spoken).body(ModelRequest(History(list(history.turns))))
        assert encoder.body(ModelRequest(history)) == fresh


def test_a_history_that_was_rewritten_is_encoded_anew() -> None:
    encoder, history = Encoder(dialect()), History([UserTurn("a"), AssistantTurn("b")])
    encoder.body(ModelRequest(history))
    history.turns[:] = [UserTurn("c")]
    assert json.loads(encoder.body(ModelRequest(history)))["messages"] == [
        {"role": "user", "content": "c"}
    ]


def test_a_turn_costs_no_more_in_a_long_conversation() -> None:
    def converse(length: int) -> None:
        encoder, history = Encoder(dialect()), History()
        for number in range(length):
            history.turns += [UserTurn(f"{number}"), AssistantTurn("x" * 100)]
            encoder.body(ModelRequest(history, (READ,)))

    short, long = work_of(lambda: converse(100)), work_of(lambda: converse(1000))
    assert long.steps < 15 * short.steps
    assert long.text < 15 * short.text


def test_what_was_encoded_goes_with_its_history() -> None:
    encoder, history = Encoder(dialect()), History([UserTurn("a")])
    encoder.body(ModelRequest(history))
    assert len(encoder._transcripts) == 1
    del history
    gc.collect()
    assert len(encoder._transcripts) == 0
