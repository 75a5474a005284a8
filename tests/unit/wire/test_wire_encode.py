"""Request bodies: what is said, what is left out, and what goes to whom."""

import json
from types import MappingProxyType
from typing import Any

import pytest
from wire_bodies import READ, SCHEMA, body, dialect

from aish.core.json import JsonValue
from aish.core.messages import History, SystemTurn, UserTurn
from aish.core.protocols import AnswerSchema, ModelRequest
from aish.core.tools import Tool, ToolName
from aish.wire.chat.encode import Encoder


def test_a_plain_body_says_no_more_than_is_needed() -> None:
    assert body(SystemTurn("s"), UserTurn("u")) == {
        "model": "m",
        "stream": True,
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    }


def test_no_tools_means_no_field_about_tools() -> None:
    spoken = dialect(params={"parallel_tool_calls": False, "tool_choice": "none"})
    said = body(UserTurn("u"), dialect=spoken, tool_choice="required")
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(said)


def test_tools_are_spelled_with_their_schema_unchanged() -> None:
    spoken = dialect(params={"parallel_tool_calls": False})
    said = body(UserTurn("u"), dialect=spoken, tools=(READ,))
    assert said["tools"] == [
        {
            "type": "function",
            "function": {"name": "repo__read", "description": "Reads", "parameters": SCHEMA},
        }
    ]
    assert said["parallel_tool_calls"] is False
    assert "tool_choice" not in said


@pytest.mark.parametrize(
    ("choice", "spelled"),
    [
        ("required", "required"),
        ("none", "none"),
        ("repo__read", {"type": "function", "function": {"name": "repo__read"}}),
    ],
)
def test_a_tool_choice_is_spelled(choice: str, spelled: JsonValue) -> None:
    assert body(UserTurn("u"), tools=(READ,), tool_choice=choice)["tool_choice"] == spelled


def test_parameters_are_merged_the_request_over_the_entry() -> None:
    spoken = dialect(params={"temperature": 1, "max_tokens": 5, "stream": False}, usage=True)
    said = body(
        UserTurn("u"), dialect=spoken, params={"temperature": 0, "messages": [], "tools": []}
    )
    assert said["temperature"] == 0
    assert said["max_tokens"] == 5
    assert said["stream"] is True
    assert said["stream_options"] == {"include_usage": True}
    assert len(said["messages"]) == 1
    assert "tools" not in said


def test_an_answer_schema_goes_out_where_the_endpoint_enforces_it() -> None:
    schema = AnswerSchema("person", SCHEMA)
    said = body(UserTurn("u"), dialect=dialect(json_schema=True), schema=schema)
    assert said["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "person", "strict": False, "schema": SCHEMA},
    }
    assert "response_format" not in body(UserTurn("u"), schema=schema)


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({**SCHEMA, "required": ["x"], "additionalProperties": False}, True),
        ({**SCHEMA, "additionalProperties": False}, False),
        ({"type": "array", "items": SCHEMA}, False),
        ({"type": "string"}, True),
        ({"type": ["object", "null"]}, False),
    ],
)
def test_a_schema_is_strict_where_every_object_is_closed(schema: Any, *, strict: bool) -> None:
    said = body(UserTurn("u"), dialect=dialect(json_schema=True), schema=AnswerSchema("a", schema))
    assert said["response_format"]["json_schema"]["strict"] is strict


def test_any_text_and_any_mapping_can_be_sent() -> None:
    params = MappingProxyType({"stop": ("a", "\ud800"), "more": MappingProxyType({"é": 1})})
    said = body(UserTurn("half \ud83d é"), params=params)
    assert said["stop"] == ["a", "?"]
    assert said["more"] == {"é": 1}
    assert said["messages"][0]["content"] == "half ? é"


def test_many_lists_of_tools_are_spelled_right() -> None:
    encoder, history = Encoder(dialect()), History([UserTurn("a")])
    for number in range(100):
        tool = Tool(ToolName("s", f"t{number}"), f"s__t{number}", "", {})
        said = json.loads(encoder.body(ModelRequest(history, (tool,))))
        assert said["tools"][0]["function"]["name"] == f"s__t{number}"
