"""Requests of `/responses`, which the types of the vendor's SDK accept."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from responses_streams import call, decoded, message, reasoning, stream
from wire_bodies import CALL, PNG, READ, URL, result
from wire_streams import PLACE

from aish.core.json import JsonValue
from aish.core.messages import (
    AssistantTurn,
    Delta,
    Extras,
    History,
    SystemTurn,
    TextPiece,
    Turn,
    UserTurn,
)
from aish.core.protocols import AnswerSchema, ModelRequest
from aish.core.tools import Media, ToolCall
from aish.wire.dialect import Dialect
from aish.wire.errors import StreamError
from aish.wire.responses.encode import Encoder
from aish.wire.responses.strict_schema import to_strict

ORIGIN = "a responses https://here.example"
HELLO = UserTurn("Hello")
PDF = Media("application/pdf", b"%PDF-")


def dialect(**more: Any) -> Dialect:
    plain: dict[str, Any] = {
        "model": "gpt-4.1",
        "params": {},
        "usage": True,
        "json_schema": True,
        "tool_role": True,
        "vision": True,
        "pdf": True,
        "origin": ORIGIN,
        "api": "responses",
        "cache": "auto",
    }
    return Dialect(**plain | more)


def body(*turns: Turn, dialect: Dialect | None = None, **request: Any) -> Any:
    """The parsed body of a request, which the SDK's type has accepted."""
    encoder = Encoder(dialect or plain)
    encoded = encoder.body(ModelRequest(History(list(turns)), **request))
    parsed = json.loads(encoded)
    check_by_sdk(parsed)
    return parsed


plain = dialect()


@cache
def sdk_types() -> tuple[Any, Any]:
    pytest.importorskip("openai")
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
    from openai.types.responses.response_input_item_param import ResponseInputItemParam

    pydantic = pytest.importorskip("pydantic")
    return (
        pydantic.TypeAdapter(ResponseCreateParamsStreaming),
        pydantic.TypeAdapter(ResponseInputItemParam),
    )


def check_by_sdk(parsed: Any) -> None:
    """Check a body with the vendor's own types."""
    whole, item = sdk_types()
    whole.validate_python(parsed)
    for one in parsed["input"]:
        item.validate_python(one)


def answered(*output: dict[str, Any], origin: str = ORIGIN) -> AssistantTurn:
    """The turn that an answer with these items makes."""
    deltas = decoded([stream(*output)])
    assert not isinstance(deltas, StreamError)
    return turn_of(deltas, origin)


def turn_of(deltas: list[Delta], origin: str) -> AssistantTurn:
    text = "".join(one.text for one in deltas if isinstance(one, TextPiece))
    calls = tuple(one for one in deltas if isinstance(one, ToolCall))
    extras: Mapping[str, JsonValue] = {}
    for one in deltas:
        if isinstance(one, Extras):
            extras = one.fields
    return AssistantTurn(text, calls, extras, origin)


def said(text: str, at: int) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    whole = {"type": "message", "role": "assistant", "status": "completed", "id": f"msg_{at}"}
    return {**whole, "content": [part]}


def asked(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def test_a_request_is_stateless_and_has_typed_items() -> None:
    sent = body(
        SystemTurn("Be kind."),
        HELLO,
        AssistantTurn("Let me look.", (CALL,), {}, "another"),
        result(),
        AssistantTurn("Done.", (), {}, "another"),
        SystemTurn("Be brief."),
        UserTurn("Bye"),
        tools=(READ,),
    )
    assert (sent["stream"], sent["store"]) == (True, False)
    assert sent["instructions"] == "Be kind."
    assert sent["input"] == [
        asked("Hello"),
        said("Let me look.", 1),
        {"type": "function_call", "call_id": "i", "name": "repo__read", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "i", "output": "one"},
        said("Done.", 4),
        asked("Be brief.", "system"),
        asked("Bye"),
    ]
    assert sent["tools"] == [
        {
            "type": "function",
            "name": "repo__read",
            "description": "Reads",
            "parameters": READ.input_schema,
            "strict": False,
        }
    ]
    assert "include" not in sent
    assert "previous_response_id" not in sent


def test_without_tools_nothing_is_said_of_them() -> None:
    params = {"tool_choice": "auto", "parallel_tool_calls": False, "top_logprobs": 3}
    sent = body(HELLO, dialect=dialect(params=params))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(sent)
    assert sent["top_logprobs"] == 3


@pytest.mark.parametrize(
    ("choice", "spelled"),
    [
        ("required", "required"),
        ("none", "none"),
        ("repo__read", {"type": "function", "name": "repo__read"}),
    ],
)
def test_a_tool_may_be_required(choice: str, spelled: Any) -> None:
    assert body(HELLO, tools=(READ,), tool_choice=choice)["tool_choice"] == spelled


def test_an_answer_goes_back_as_it_came_and_to_its_endpoint_only() -> None:
    output = (
        reasoning("Hm."),
        message("Let me look.", phase="commentary"),
        call("i", "repo__read", '{"x": 1}', namespace="repo", caller={"type": "direct"}),
    )
    sent = body(HELLO, answered(*output), result())
    assert sent["input"][1:4] == list(output)
    assert sent["input"][4]["call_id"] == "i"
    for elsewhere in ("a responses https://other.example", "a", ""):
        other = body(HELLO, answered(*output, origin=elsewhere), result())
        assert "secret" not in json.dumps(other)
        assert other["input"][1:3] == [said("Let me look.", 1), {
            "type": "function_call", "call_id": "i", "name": "repo__read",
            "arguments": '{"x": 1}'}]  # fmt: skip


def test_calls_are_those_of_the_turn_in_the_places_of_the_answer() -> None:
    turn = answered(
        reasoning(id="rs_1"), call("c1", "a", "{}"), reasoning(id="rs_2"), call("c2", "b", "[]")
    )
    calls = (ToolCall("new", "a", "{}"), ToolCall("c2", "b", "[]"))
    sent = body(HELLO, AssistantTurn("", calls, turn.extras, ORIGIN), result("new"), result("c2"))
    kinds = [(item["type"], item.get("call_id")) for item in sent["input"][1:]]
    assert kinds == [
        ("reasoning", None),
        ("function_call", "new"),
        ("reasoning", None),
        ("function_call", "c2"),
        ("function_call_output", "new"),
        ("function_call_output", "c2"),
    ]
    assert sent["input"][4]["arguments"] == "{}"


def test_ids_are_unique_over_turns_and_short_enough() -> None:
    long = ToolCall("x" * 80, "repo__read", "{}")
    sent = body(
        HELLO,
        AssistantTurn("", (CALL,)), result(),
        AssistantTurn("", (CALL,)), result(),
        AssistantTurn("", (long,)), result("x" * 80),
    )  # fmt: skip
    ids = [item["call_id"] for item in sent["input"][1:]]
    assert ids[::2] == ids[1::2]
    assert len(set(ids[::2])) == 3
    assert max(map(len, ids)) <= 64


def test_images_and_files_are_parts_of_messages_and_of_results() -> None:
    sent = body(
        UserTurn("See", (PNG, PDF, Media("audio/wav", b"x"))),
        AssistantTurn("", (CALL,)),
        result("i", "one", "repo__read", PNG),
    )
    image = {"type": "input_image", "image_url": URL, "detail": "auto"}
    assert sent["input"][0]["content"] == [
        {"type": "input_text", "text": "See"},
        image,
        {
            "type": "input_file",
            "filename": "document.pdf",
            "file_data": "data:application/pdf;base64,JVBERi0=",
        },
        {"type": "input_text", "text": "[audio/wav not sent]"},
    ]
    assert sent["input"][2]["output"] == [{"type": "input_text", "text": "one"}, image]
    unseen = body(UserTurn("See", (PNG,)), dialect=dialect(vision=False, pdf=False))
    assert unseen["input"] == [asked("See")]


@pytest.mark.parametrize(
    ("model", "params", "asks"),
    [
        ("gpt-6", {}, True),
        ("gpt-5.2-codex", {}, True),
        ("openai/o4-mini", {}, True),
        ("gpt-4.1", {}, False),
        ("gpt-41-mini", {}, False),
        ("gpt-5-chat-latest", {}, False),
        ("mine", {"reasoning": {"effort": "low"}}, True),
        ("mine", {"reasoning": {"effort": "none"}}, False),
    ],
)
def test_reasoning_models_are_asked_for_what_later_requests_need(
    model: str, params: Any, *, asks: bool
) -> None:
    sent = body(HELLO, dialect=dialect(model=model, params=params))
    assert sent.get("include") == (["reasoning.encrypted_content"] if asks else None)


@pytest.mark.requirement("W4")
def test_effort_is_that_of_the_entry_unless_params_say_otherwise() -> None:
    assert body(HELLO, dialect=dialect(effort="high"))["reasoning"] == {"effort": "high"}
    params: Any = {"reasoning": {"effort": "low", "summary": "auto"}}
    sent = body(HELLO, dialect=dialect(effort="high", params=params))
    assert sent["reasoning"] == {"effort": "low", "summary": "auto"}
    assert "include" in sent
    assert body(HELLO, dialect=dialect(model="gpt-6", params={"include": []}))["include"] == []


def test_the_error_of_a_tool_is_a_json_object() -> None:
    failed = "no such file"
    sent = body(
        HELLO,
        AssistantTurn("", (CALL, replace(CALL, id="j"))),
        result("i", failed, is_error=True),
        result("j", "[aish] (no output)"),
    )
    outputs = [item["output"] for item in sent["input"][-2:]]
    assert outputs == [f'{{"error":"{failed}"}}', "[aish] (no output)"]


def test_what_the_file_includes_is_kept() -> None:
    params = {"include": ["message.output_text.logprobs"], "text": {"verbosity": "low"}}
    sent = body(HELLO, dialect=dialect(model="gpt-6", params=params), schema=PERSON)
    assert sent["include"] == ["message.output_text.logprobs", "reasoning.encrypted_content"]
    assert sent["text"]["verbosity"] == "low"
    assert sent["text"]["format"]["type"] == "json_schema"


def test_tools_of_the_vendor_are_sent_if_the_file_names_them_and_functions_never() -> None:
    params: Any = {"tools": [{"type": "web_search"}, {"type": "function", "name": "evil"}]}
    sent = body(HELLO, tools=(READ,), dialect=dialect(params=params))
    assert [tool.get("name", tool["type"]) for tool in sent["tools"]] == [
        "repo__read",
        "web_search",
    ]


PERSON = AnswerSchema(
    "person",
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "description": "Full name"},
            "age": {"type": "integer", "minimum": 0},
            "boss": {"$ref": "#/$defs/Boss", "description": "The head"},
            "team": {"$ref": "#/$defs/Team"},
        },
        "required": ["name", "boss", "team"],
        "$defs": {
            "Boss": {"type": "object", "properties": {"name": {"type": "string"}},
                     "required": ["name"]},
            "Team": {"type": "object", "properties": {
                "parts": {"type": "array", "items": {"$ref": "#/$defs/Team"}}},
                "required": ["parts"]},
        },
    },
)  # fmt: skip


def test_an_answer_schema_is_brought_into_the_subset() -> None:
    schema = body(HELLO, schema=PERSON)["text"]["format"]
    assert (schema["name"], schema["strict"]) == ("person", True)
    properties = schema["schema"]["properties"]
    assert schema["schema"]["required"] == ["name", "age", "boss", "team"]
    assert schema["schema"]["additionalProperties"] is False
    assert properties["name"] == {"type": "string", "description": "Full name (minLength: 1)"}
    assert properties["age"] == {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}
    assert properties["boss"]["description"] == "The head"
    assert properties["boss"]["required"] == ["name"]
    assert properties["team"] == {"$ref": "#/$defs/Team"}
    team = schema["schema"]["$defs"]["Team"]
    assert team["properties"]["parts"]["items"] == {"$ref": "#/$defs/Team"}
    assert team["additionalProperties"] is False


def test_the_sdk_finds_nothing_to_change_in_such_a_schema() -> None:
    pytest.importorskip("openai")
    from openai.lib._pydantic import _ensure_strict_json_schema

    strict = to_strict(PERSON.schema)
    copy = json.loads(json.dumps(strict))
    assert _ensure_strict_json_schema(copy, path=(), root=copy) == strict


@pytest.mark.parametrize(
    "part",
    [
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object"},
        {"type": "object", "patternProperties": {"^a": {}}},
        {"type": "array"},
        {},
        True,
        {"$ref": "https://elsewhere.example/schema"},
        {"allOf": [{"type": "object", "properties": {}}]},
    ],
)
def test_a_schema_outside_the_subset_is_told_in_words(part: Any) -> None:
    schema = AnswerSchema("x", {"type": "object", "properties": {"a": part}, "required": ["a"]})
    sent = body(SystemTurn("Be kind."), HELLO, schema=schema)
    refused = dialect(json_schema=False, schema_in_words=True)
    assert body(SystemTurn("Be kind."), HELLO, schema=schema, dialect=refused) == sent
    assert "text" not in sent
    assert sent["instructions"].startswith("Be kind.\n\nAnswer with JSON alone")
    assert json.dumps(part, separators=(",", ":")) in sent["instructions"]


def test_schemas_of_tools_lose_what_generators_add() -> None:
    schema: Any = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": -(2**63), "maximum": 9}},
    }
    sent = body(HELLO, tools=(replace(READ, input_schema=schema),))
    assert sent["tools"][0]["parameters"] == {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9}},
    }


def test_only_new_turns_are_encoded_and_a_prefix_never_changes() -> None:
    encoder = Encoder(plain)
    history = History([SystemTurn("Be kind."), HELLO])
    request = ModelRequest(history, place=PLACE)
    first = encoder.body(request)
    history.turns += [answered(reasoning(), message("Hi.")), UserTurn("Bye")]
    second = encoder.body(request)
    assert second.startswith(first[:-2])
    assert json.loads(second)["input"][1] == reasoning()


def test_the_limit_of_an_answer_is_that_of_this_wire() -> None:
    limited = Encoder(dialect(params={"max_output_tokens": 9, "max_tokens": 5}))
    assert limited.max_tokens(ModelRequest(History([HELLO]))) == 9
