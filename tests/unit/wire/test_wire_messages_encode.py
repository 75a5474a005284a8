"""Requests to `/v1/messages`: what is sent, and that the vendor's own types accept it."""

import json
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
from wire_bodies import CALL, PNG, READ, result

from aish.core.messages import AssistantTurn, History, SystemTurn, Turn, UserTurn
from aish.core.protocols import AnswerSchema, ModelRequest
from aish.core.tools import Media, Tool, ToolCall, ToolName
from aish.wire.dialect import Dialect
from aish.wire.messages.answer_schema import answer_format
from aish.wire.messages.encode import Encoder

ORIGIN = "claude messages https://api.anthropic.com"
HI = UserTurn("Hi")
PDF = Media("application/pdf", b"%PDF-")
THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
TEXT: dict[str, Any] = {"type": "text", "text": "Hello"}
USES: dict[str, Any] = {"type": "tool_use", "id": "i", "name": "repo__read", "input": {"x": 1}}
ASKED = AssistantTurn("", (CALL,), {}, ORIGIN)
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0}},
    "required": ["age"],
}


def dialect(**more: Any) -> Dialect:
    plain: dict[str, Any] = {
        "model": "claude-test",
        "params": {},
        "usage": True,
        "json_schema": True,
        "tool_role": True,
        "vision": True,
        "pdf": True,
        "origin": ORIGIN,
        "api": "messages",
    }
    return Dialect(**plain | more)


def body(*turns: Turn, dialect: Dialect | None = None, **request: Any) -> Any:
    """The parsed body of a request, which the vendor's own types accept."""
    encoder = Encoder(dialect or PLAIN)
    asked = json.loads(encoder.body(ModelRequest(History(list(turns)), **request)))
    check_by_sdk(asked)
    return asked


PLAIN = dialect()


def check_by_sdk(asked: Any) -> None:
    read_all(sdk_params().validate_python(asked, strict=True, extra="forbid"))


@cache
def sdk_params() -> Any:
    """The vendor's own type of a request."""
    pytest.importorskip("anthropic")
    pydantic: Any = pytest.importorskip("pydantic")
    params: Any = import_module("anthropic.types.message_create_params")
    return pydantic.TypeAdapter(params.MessageCreateParamsStreaming)


def read_all(value: Any) -> None:
    """Look at everything in a value: lists are checked only as they are read."""
    if isinstance(value, dict):
        for inner in value.values():
            read_all(inner)
    elif not isinstance(value, str) and hasattr(value, "__iter__"):
        for inner in value:
            read_all(inner)


def test_a_request_says_model_stream_limit_system_and_messages() -> None:
    assert body(SystemTurn("Be brief."), HI) == {
        "model": "claude-test",
        "stream": True,
        "max_tokens": 4096,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    }


def test_the_limit_of_an_answer_is_that_of_step_file_or_model() -> None:
    named = dialect(params={"max_tokens": 50}, answer_tokens=64_000)

    assert body(HI, dialect=dialect(answer_tokens=64_000))["max_tokens"] == 64_000
    assert body(HI, dialect=named)["max_tokens"] == 50
    assert body(HI, dialect=named, params={"max_tokens": 7})["max_tokens"] == 7
    assert Encoder(named).max_tokens(ModelRequest(History([HI]), params={"max_tokens": 7})) == 7


def test_the_results_of_a_round_are_one_turn_and_stand_first_in_it() -> None:
    two = AssistantTurn("", (CALL, ToolCall("j", "repo__read", "{}")))

    sent = body(
        HI, two, result(), result("j", "no such file", is_error=True), UserTurn("And?"),
        tools=(READ,),
    )["messages"]  # fmt: skip

    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "one"}]},
        {
            "type": "tool_result",
            "tool_use_id": "j",
            "content": [{"type": "text", "text": "no such file"}],
            "is_error": True,
        },
        {"type": "text", "text": "And?"},
    ]


def test_an_error_with_an_image_is_not_flagged_as_the_vendor_takes_text_alone() -> None:
    reply = result("i", "odd", "repo__read", PNG, is_error=True)
    sent = body(HI, ASKED, reply, tools=(READ,))["messages"]

    assert "is_error" not in sent[2]["content"][0]


def test_an_error_whose_image_is_not_sent_is_flagged() -> None:
    reply = result("i", "odd", "repo__read", PNG, is_error=True)
    unseen = dialect(vision=False, pdf=False)
    sent = body(HI, ASKED, reply, tools=(READ,), dialect=unseen)["messages"]

    assert sent[2]["content"][0]["is_error"] is True


def test_images_and_pdf_are_blocks_and_other_media_a_line() -> None:
    sent = body(UserTurn("See", (PNG, PDF, Media("audio/wav", b"x"))))["messages"]

    assert sent[0]["content"] == [
        {"type": "text", "text": "See"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="},
        },
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        },
        {"type": "text", "text": "[audio/wav not sent]"},
    ]


def test_the_image_of_a_tool_stands_in_its_result() -> None:
    sent = body(HI, ASKED, result("i", "one", "repo__read", PNG), tools=(READ,))["messages"]

    assert [part["type"] for part in sent[2]["content"][0]["content"]] == ["text", "image"]


def test_thinking_goes_back_unchanged_in_its_place() -> None:
    redacted = {"type": "redacted_thinking", "data": "AbC="}
    kept: dict[str, Any] = {
        "content": [THOUGHT, redacted, TEXT, {**USES, "caller": {"type": "direct"}}]
    }
    turn = AssistantTurn("Hello", (CALL,), kept, ORIGIN)

    sent = body(HI, turn, result(), tools=(READ,))["messages"]

    assert sent[1]["content"] == kept["content"]


def test_a_call_goes_back_as_the_loop_has_it() -> None:
    """Its id and its arguments may have been made legal."""
    kept: dict[str, Any] = {"content": [THOUGHT, {**USES, "id": "", "input": {}}]}
    turn = AssistantTurn("", (ToolCall("abc", "repo__read", '{"x": 2}'),), kept, ORIGIN)

    sent = body(HI, turn, result("abc"), tools=(READ,))["messages"]

    assert sent[1]["content"] == [THOUGHT, {**USES, "id": "abc", "input": {"x": 2}}]
    assert sent[2]["content"][0]["tool_use_id"] == "abc"


def test_thinking_without_a_signature_and_empty_text_are_left_out() -> None:
    kept: dict[str, Any] = {
        "content": [{**THOUGHT, "signature": ""}, {"type": "text", "text": ""}, USES]
    }

    sent = body(HI, AssistantTurn("", (CALL,), kept, ORIGIN), result(), tools=(READ,))["messages"]

    assert sent[1]["content"] == [USES]


@pytest.mark.parametrize("origin", ["", "claude", "claude messages http://127.0.0.1:80", "other"])
def test_what_one_endpoint_said_for_itself_goes_to_no_other(origin: str) -> None:
    kept: dict[str, Any] = {
        "content": [THOUGHT, TEXT],
        "reasoning_content": "hm",
        "thinking_blocks": [THOUGHT],
    }
    asked = body(HI, AssistantTurn("Hello", (), kept, origin), UserTurn("And?"))

    assert "c2ln" not in json.dumps(asked)
    assert "hm" not in json.dumps(asked)
    assert asked["messages"][1]["content"] == [TEXT]


def test_ids_of_another_wire_are_made_legal_and_pair() -> None:
    asked = AssistantTurn("", (ToolCall("functions.read:0", "repo__read", '{"x": 1}'),))

    sent = body(HI, asked, result("functions.read:0"), tools=(READ,))["messages"]

    id = sent[1]["content"][0]["id"]
    assert id.isalnum()
    assert sent[2]["content"][0]["tool_use_id"] == id


@pytest.mark.parametrize("text", ["", " \n"])
def test_no_turn_is_empty(text: str) -> None:
    sent = body(UserTurn(text), AssistantTurn(text), UserTurn("Hi"))["messages"]

    assert [message["content"] for message in sent[:2]] == [
        [{"type": "text", "text": "(no text)"}]
    ] * 2


@pytest.mark.requirement("W6")
def test_a_tool_goes_without_what_the_vendor_refuses() -> None:
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 2**53 - 1, "minimum": 1}},
        "anyOf": [{"required": ["n"]}],
    }
    tool = Tool(ToolName("a", "b"), "a__b", "Counts.", schema)

    assert body(HI, tools=(tool,))["tools"] == [
        {
            "name": "a__b",
            "description": 'Counts.\n\n{"anyOf":[{"required":["n"]}]}',
            "input_schema": {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 1}},
            },
        }
    ]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", None),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ("repo__read", {"type": "tool", "name": "repo__read"}),
    ],
)
def test_the_choice_of_a_tool(choice: str, sent: Any) -> None:
    assert body(HI, tools=(READ,), tool_choice=choice).get("tool_choice") == sent
    assert "tool_choice" not in body(HI, tool_choice=choice)


@pytest.mark.parametrize(
    ("effort", "sent"),
    [
        (None, {}),
        ("none", {"thinking": {"type": "disabled"}}),
        ("minimal", {"output_config": {"effort": "low"}}),
        ("low", {"output_config": {"effort": "low"}}),
        ("max", {"output_config": {"effort": "max"}}),
    ],
)
@pytest.mark.requirement("W4")
def test_effort(effort: str | None, sent: Any) -> None:
    asked = body(HI, dialect=dialect(effort=effort))

    assert {key: asked[key] for key in ("thinking", "output_config") if key in asked} == sent


def test_parameters_are_merged_and_win() -> None:
    params = {
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "speed": "fast",
    }
    asked = body(HI, dialect=dialect(effort="low", params={**params, "speed": "fast"}))

    assert asked["thinking"] == {"type": "adaptive"}
    assert asked["output_config"] == {"effort": "high"}
    assert asked["speed"] == "fast"


@pytest.mark.requirement("W5")
def test_a_schema_goes_in_the_vendors_format_closed_and_without_bounds() -> None:
    asked = body(HI, schema=AnswerSchema("person", PERSON))

    assert asked["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"age": {"type": "integer", "description": '{"minimum":0}'}},
            "required": ["age"],
            "additionalProperties": False,
        },
    }
    assert "system" not in asked


def test_a_schema_that_cannot_be_closed_is_told_in_words() -> None:
    open_map: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}

    asked = body(SystemTurn("Be brief."), HI, schema=AnswerSchema("map", open_map))

    assert "output_config" not in asked
    assert asked["system"][1]["text"].endswith(json.dumps(open_map, separators=(",", ":")))


def test_a_refused_schema_is_told_in_words() -> None:
    refused = dialect(json_schema=False, schema_in_words=True)
    unsupported = dialect(json_schema=False)
    schema = AnswerSchema("person", PERSON)

    assert "minimum" in body(HI, dialect=refused, schema=schema)["system"][0]["text"]
    assert "system" not in body(HI, dialect=unsupported, schema=schema)


NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"next": {"$ref": "#/definitions/node"}},
}


def test_references_with_siblings_are_written_out_and_recursive_ones_stay() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "first": {"$ref": "#/definitions/node", "description": "The first."},
            "other": {"$ref": "#/definitions/node"},
        },
        "definitions": {"node": NODE},
    }
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/node"}},
        "additionalProperties": False,
    }

    assert answer_format(schema) == {
        "type": "object",
        "properties": {
            "first": {**node, "description": "The first."},
            "other": {"$ref": "#/$defs/node"},
        },
        "$defs": {"node": node},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": {}}}},
        {"type": "object", "patternProperties": {"^x": {"type": "string"}}},
        {"type": "array", "items": {"$ref": "#/definitions/missing"}},
        {"$ref": "https://elsewhere.example/schema"},
    ],
)
def test_a_schema_that_would_lose_a_field_is_not_closed(schema: Any) -> None:
    assert answer_format(schema) is None


def test_what_was_sent_is_sent_again_byte_for_byte() -> None:
    encoder, history = Encoder(PLAIN), History([SystemTurn("Be brief."), HI])
    sent = [encoder.body(ModelRequest(history, tools=(READ,)))]
    turns: list[Turn] = [
        AssistantTurn("", (CALL,), {"content": [THOUGHT, USES]}, ORIGIN),
        result(),
        AssistantTurn("Done"),
        UserTurn("And?"),
    ]
    for turn in turns:
        history.turns.append(turn)
        sent.append(encoder.body(ModelRequest(history, tools=(READ,))))

    for before, after in pairwise(sent):
        assert after.startswith(before.removesuffix(b"]}"))
    again = Encoder(PLAIN).body(ModelRequest(History(list(history.turns)), tools=(READ,)))
    assert again == sent[-1]


MARK = {"type": "ephemeral"}


def marks(asked: Any) -> list[str]:
    """Where a request is marked for the cache."""
    places = [
        f"tool {at}" for at, tool in enumerate(asked.get("tools", ())) if "cache_control" in tool
    ]
    places += ["system" for block in asked.get("system", ()) if "cache_control" in block]
    return places + [
        f"{at}: {block['type']}"
        for at, message in enumerate(asked["messages"])
        for block in message["content"]
        if "cache_control" in block
    ]


def test_tools_system_prompt_and_the_last_two_user_turns_are_marked() -> None:
    auto = dialect(cache="auto")
    asked = AssistantTurn("", (CALL,))
    again = AssistantTurn("", (ToolCall("j", "repo__read", "{}"),))
    turns = (SystemTurn("Be brief."), HI, asked, result(), again, result("j"))

    sent = body(*turns, dialect=auto, tools=(READ, READ))

    assert marks(sent) == ["tool 1", "system", "2: tool_result", "4: tool_result"]
    assert sent["tools"][1]["cache_control"] == MARK
    assert marks(body(*turns, tools=(READ, READ))) == []
    own = body(*turns, dialect=dialect(cache="5m", params={"cache_control": MARK}), tools=(READ,))
    assert marks(own) == ["tool 0", "system", "4: tool_result"]


def test_auto_marks_no_turn_that_nothing_can_follow() -> None:
    turns = (SystemTurn("Be brief."), HI)

    assert marks(body(*turns, dialect=dialect(cache="auto"))) == ["system"]
    hour = body(*turns, dialect=dialect(cache="1h"))
    assert marks(hour) == ["system", "0: text"]
    assert hour["system"][0]["cache_control"] == {**MARK, "ttl": "1h"}
