"""Whatever an endpoint sends, the decoder tells deltas that make sense, or a `StreamError`."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_streams import decoded, event

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
    "prompt_tokens", "x",
)  # fmt: skip
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
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
streams = st.lists(
    chunks.map(event)
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


@settings(deadline=None)
@given(bodies, st.integers(0, 200))
def test_any_body_comes_to_deltas_or_to_an_error(body: bytes, at: int) -> None:
    told = decoded([body])
    assert orderly(told)
    again = decoded([body[:at], body[at:]])
    assert str(again) == str(told)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_come_to_deltas_or_to_an_error(body: bytes) -> None:
    assert orderly(decoded([body]))
    assert orderly(decoded([b"data: " + body]))


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"choices":' * 100_000])
@pytest.mark.parametrize("before", [b"data: ", b"", b"junk\n"])
def test_any_number_of_levels_comes_to_an_error(deep: str, before: bytes) -> None:
    assert isinstance(decoded([before + deep.encode() + b"\n\n"]), StreamError)


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
