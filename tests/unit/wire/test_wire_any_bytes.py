"""Whatever an endpoint sends, each decoder tells deltas that make sense, or a `StreamError`."""

import json
from itertools import product
from typing import Any

import messages_streams
import pytest
import responses_streams
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import each_case
from wire_scenes import WIRES, Wire
from wire_streams import DONE, decoded, event

from aish.core.json import JsonValue
from aish.core.messages import Delta, Extras, Finish
from aish.core.tools import ToolCall
from aish.wire.calls import legal_arguments
from aish.wire.errors import StreamError
from aish.wire.json_text import is_cut

scalars = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=5)
KEYS = (
    "choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "id",
    "index", "finish_reason", "usage", "error", "type", "text", "reasoning", "refusal", "code",
    "prompt_tokens", "x", "item", "response", "output", "item_id", "output_index", "call_id",
    "status", "summary", "input_tokens", "output_tokens", "incomplete_details", "reason", "phase",
    "encrypted_content", "content_block", "partial_json", "thinking", "signature", "citation",
    "stop_reason", "stop_details", "input",
)  # fmt: skip
KINDS = (
    "message", "function_call", "reasoning", "web_search_call", "output_text", "refusal", "text",
    "response.created", "response.output_item.added", "response.output_item.done",
    "response.output_text.delta", "response.output_text.done", "response.refusal.delta",
    "response.reasoning_summary_text.delta", "response.function_call_arguments.delta",
    "response.function_call_arguments.done", "response.completed", "response.incomplete", "error",
    "message_start", "content_block_start", "content_block_delta", "content_block_stop",
    "message_delta", "message_stop", "text_delta", "input_json_delta", "signature_delta",
    "citations_delta", "tool_use", "thinking",
)  # fmt: skip
values: st.SearchStrategy[Any] = st.recursive(
    scalars | st.sampled_from(KINDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
items = st.fixed_dictionaries(
    {},
    optional={
        "index": values,
        "id": values,
        "extra": values,
        "function": st.fixed_dictionaries({}, optional={"name": values, "arguments": values}),
    },
)
deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": values,
        "tool_calls": st.lists(items, max_size=3) | values,
        "reasoning": values,
        "refusal": values,
        "x": values,
    },
)
chunks = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"delta": deltas, "finish_reason": values}))},
    optional={"usage": values},
)
typed = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)}, optional={key: values for key in KEYS if key != "type"}
)
ENDS = {
    "chat": DONE,
    "messages": messages_streams.ends(),
    "responses": responses_streams.event("response.completed", response={"output": []}),
}
streams = st.lists(
    chunks.map(event)
    | typed.map(event)
    | values.map(event)
    | st.binary(max_size=20)
    | st.sampled_from([b"data: [DONE]\n\n", b"\n", b"\r", b": c\n\n"]),
    max_size=6,
)
bodies = streams.map(b"".join) | values.map(json.dumps).map(str.encode)


def orderly(told: list[Delta] | StreamError) -> bool:
    """Calls whole and with ids of their own, then extras, then the finish, as JSON and UTF-8."""
    if isinstance(told, StreamError):
        return bool(told.message)
    calls = [delta for delta in told if isinstance(delta, ToolCall)]
    kinds = [type(delta) for delta in told]
    tail = [ToolCall] * len(calls) + [Extras] * kinds.count(Extras) + [Finish]
    json.dumps([call.arguments + call.name + call.id for call in calls]).encode()
    return (
        kinds[-len(tail) :] == tail
        and kinds.count(Finish) == 1
        and len({call.id for call in calls}) == len(calls)
        and all(call.id and call.name for call in calls)
    )


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@settings(deadline=None)
@given(bodies, st.integers(0, 200))
def test_any_body_comes_to_deltas_or_to_an_error(wire: Wire, body: bytes, at: int) -> None:
    for raw in (body, body + ENDS[wire.name]):
        told = wire.decode([raw])
        assert orderly(told)
        assert str(wire.decode([raw[:at], raw[at:]])) == str(told)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_come_to_deltas_or_to_an_error(body: bytes) -> None:
    for wire in WIRES.values():
        assert orderly(wire.decode([body]))
        assert orderly(wire.decode([b"data: " + body]))


LEVELS = ("[" * 100_000, '{"choices":' * 100_000)


@each_case("wire, before, deep", product(WIRES.values(), (b"data: ", b"", b"x\n"), LEVELS))
def test_any_number_of_levels_comes_to_an_error(wire: Wire, before: bytes, deep: str) -> None:
    assert isinstance(wire.decode([before + deep.encode() + b"\n\n"]), StreamError)


@pytest.mark.parametrize("levels", [400, 800, 900, 950, 980, 990, 995])
def test_levels_that_just_parse_come_to_deltas_or_to_an_error(levels: int) -> None:
    value: JsonValue = {"a": "b"}
    for _ in range(levels):
        value = {"x": value}
    text = '{"x":' * levels + "1" + "}" * levels
    for field in (f'"x": {text}', f'"tool_calls": [{{"function": {{"arguments": {text}}}}}]'):
        stream = f'data: {{"choices": [{{"delta": {{{field}}}}}]}}\n\n'.encode()
        assert orderly(decoded([stream * 2 + b"data: [DONE]\n\n"]))


@settings(deadline=None)
@given(st.text(max_size=30) | values.map(json.dumps))
def test_legal_arguments_are_an_object_whatever_the_text(text: str) -> None:
    legal = legal_arguments(text)
    assert isinstance(json.loads(legal), dict)
    assert legal_arguments(legal) == legal


@settings(deadline=None)
@given(values.map(json.dumps), st.data())
def test_an_object_is_cut_wherever_it_breaks_off(text: str, data: st.DataObject) -> None:
    whole = f'{{"k": {text}}}'
    assert not is_cut(whole)
    end = data.draw(st.integers(1, len(whole) - 1))
    assert is_cut(whole[:end])
