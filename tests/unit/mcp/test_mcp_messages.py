import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import each_case

from aish.mcp.protocol import messages
from aish.mcp.protocol.messages import NotAMessageError, Noted, RpcResponse, ServerRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ENVELOPES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": st.integers() | st.text() | JSON,
        "method": st.text() | JSON,
        "params": JSON,
        "result": JSON,
        "error": JSON,
    },
)


def one(raw: str) -> Any:
    (message,) = messages.decode(raw)
    return message


@pytest.mark.parametrize("echoed", ["7", '"7"', "7.0"])
def test_an_id_is_recognised_whatever_type_it_is_echoed_as(echoed: str) -> None:
    found = messages.decode(f'{{"jsonrpc":"2.0","id":{echoed},"result":{{}}}}')
    assert messages.find_answer(found, 7) == RpcResponse("7", {})


@pytest.mark.parametrize("empty", ["[]", "null", "{}"])
def test_an_empty_result_may_be_an_empty_list(empty: str) -> None:
    assert one(f'{{"jsonrpc":"2.0","id":1,"result":{empty}}}') == RpcResponse("1", {})


def test_a_null_error_beside_a_result_is_no_error() -> None:
    assert one('{"jsonrpc":"2.0","id":1,"error":null,"result":{"a":1}}').error is None


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ('{"code":-32000,"message":"no"}', -32000, "no"),
        ('"no"', -32603, "no"),
        ('{"code":5}', 5, "error 5"),
        ("[1]", -32603, "[1]"),
    ],
)
def test_an_error_is_read_however_it_is_spelled(error: str, code: int, message: str) -> None:
    found = one(f'{{"jsonrpc":"2.0","id":1,"error":{error}}}').error
    assert (found.code, found.message) == (code, message)


@pytest.mark.parametrize(
    "raw",
    [
        '{"error":"unauthorized"}',
        "unauthorized",
        "",
        "[]",
        "3",
        '{"jsonrpc":"2.0","id":1}',
        "[" * 100_000,
    ],
)
def test_what_is_not_json_rpc_is_not_taken_for_it(raw: str) -> None:
    with pytest.raises(NotAMessageError):
        messages.decode(raw)


def test_requests_and_notifications_are_told_apart() -> None:
    assert one('{"jsonrpc":"2.0","id":"a","method":"ping"}') == ServerRequest("a", "ping", {})
    assert one('{"jsonrpc":"2.0","method":"x","params":[]}') == Noted("x", {})


def test_a_batch_holds_several_messages() -> None:
    raw = '[{"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":2,"result":{}}]'
    assert messages.decode(raw) == (Noted("n", {}), RpcResponse("2", {}))


def test_an_error_without_id_is_ours_and_a_result_without_id_is_not() -> None:
    refused = messages.decode('{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}')
    answered = messages.decode('{"jsonrpc":"2.0","id":null,"result":{}}')
    assert messages.find_answer(refused, 3) is not None
    assert messages.find_answer(answered, 3) is None


def test_lone_surrogates_and_line_separators_survive_on_one_line() -> None:
    raw = messages.request(1, "tools/call", {"text": "\ud800\u2028\n"})
    assert raw.isascii()
    assert b"\n" not in raw
    assert json.loads(raw)["params"]["text"] == "\ud800\u2028\n"


LARGE = " " * (1 << 20)


def outcome(raw: str) -> Any:
    """What a text comes to, whatever that is."""
    try:
        return repr(messages.decode(raw))
    except NotAMessageError:
        return "no message"


@settings(deadline=None)
@given(
    ENVELOPES.map(json.dumps) | st.text(st.sampled_from('{}[]",: \\\n0aresultools'), max_size=30)
)
def test_a_large_message_is_read_as_a_small_one(raw: str) -> None:
    assert outcome(raw + LARGE) == outcome(raw)


@each_case(
    "raw",
    [
        '{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}',
        '{"jsonrpc" : "2.0" , "id":1, "result" : { "tools" : [ {"name":"a"} , 1 ] , "x":2 } }',
        '{"jsonrpc":"2.0","id":1,"result":{"tools":[1,]}}',
        '{"jsonrpc":"2.0","id":1,"result":{"tools":[1}}',
        '{"jsonrpc":"2.0","id":1,"result":{"tools":[1',
        '{"jsonrpc":"2.0","id":1,"result":{"tools":1}}',
        '{"jsonrpc":"2.0","id":1,"result":{"tools":[1]},}',
        '{"jsonrpc":"2.0","id":1,"result":{"tools":[1]}} x',
        '{"jsonrpc":"2.0","id":1,"result":{tools:[1]}}',
        '{"jsonrpc":"2.0","id":1,"result":{"\\u0074ools":[NaN]}}',
        '{"jsonrpc":"2.0","id":1,"result":{"prompts":[' + "[" * 100_000,
    ],
)
def test_a_large_listing_is_read_as_a_small_one(raw: str) -> None:
    assert outcome(raw + LARGE) == outcome(raw)


@pytest.mark.slow(reason="lists for three seconds")
def test_a_listing_without_end_keeps_no_memory() -> None:
    row = '{"name":"t","inputSchema":{"type":"object","properties":{"a":{"type":"string"}}}}'
    raw = f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{",".join([row] * 100_000)}]}}}}'

    tracemalloc.start()
    (message,) = messages.decode(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert isinstance(message, RpcResponse)
    rows = message.result["tools"]
    assert isinstance(rows, list)
    assert len(rows) == 2001
    assert peak < 8 << 20


@given(st.binary(max_size=200))
def test_no_bytes_break_the_decoder(raw: bytes) -> None:
    with suppress(NotAMessageError):
        messages.decode(raw)


@given(ENVELOPES)
def test_no_envelope_breaks_the_decoder(value: Any) -> None:
    with suppress(NotAMessageError):
        messages.decode(json.dumps(value))
