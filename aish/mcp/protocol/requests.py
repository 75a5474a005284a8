"""JSON-RPC as a server reads it, exact where `messages` is lenient. Pure.

A request has an id that is text or a whole number, `jsonrpc` is `2.0`, and `params` an object. What
is not so is an error with its code, and with the id of the request where that could be read.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, writable
from aish.mcp.protocol.messages import MAX_BATCH, RpcError, read_error

PARSE_ERROR = -32700
INVALID_REQUEST = -32600

RequestId = str | int


@frozen
class ClientRequest:
    """A request of a client; its `id` is sent back unchanged."""

    id: RequestId
    method: str
    params: JsonObject


@frozen
class Notification:
    """Message of a client that gets no answer."""

    method: str
    params: JsonObject


@frozen
class ClientResponse:
    """A client's answer to a request of the server: its `result`, or the `error` in its place."""

    id: RequestId | None
    result: JsonValue = None
    error: RpcError | None = None


@frozen
class Invalid:
    """Invalid message; `id` is that of the request, if it could be read."""

    error: RpcError
    id: RequestId | None = None


Received = ClientRequest | Notification | ClientResponse | Invalid


def read(raw: bytes) -> Received | Sequence[Received]:
    """The message of a line or a body, or the messages of an array."""
    try:
        value = _DECODER.decode(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return Invalid(RpcError(PARSE_ERROR, "the message is not valid JSON"))
    if not isinstance(value, list):
        return _message(value)
    if not 0 < len(value) <= MAX_BATCH:
        return _invalid("an array has to hold at least one message, and not more than 1,000")
    return [_message(item) for item in value]


def _message(value: Any) -> Received:  # ruff: ignore[too-many-return-statements] - one for each thing that can be wrong
    if not isinstance(value, dict):
        return _invalid("a message is an object")
    number = value.get("id")
    id = number if isinstance(number, str | int) and not isinstance(number, bool) else None
    if value.get("jsonrpc") != "2.0":
        return _invalid("`jsonrpc` has to be `2.0`", id)
    method, params = value.get("method"), value.get("params")
    if params is None:
        params = {}  # some clients write `null` for none
    if method is None and ("result" in value or "error" in value):
        error = value.get("error")
        return ClientResponse(id, value.get("result"), None if error is None else read_error(error))
    if not isinstance(method, str):
        return _invalid("`method` has to be a text", id)
    if not isinstance(params, dict):
        return _invalid("`params` has to be an object", id)
    if "id" not in value:
        return Notification(method, params)
    if id is None:
        return _invalid("`id` has to be a text or a whole number")
    return ClientRequest(id, method, params)


def _invalid(message: str, id: RequestId | None = None) -> Invalid:
    return Invalid(RpcError(INVALID_REQUEST, message), id)


def dump(value: JsonValue) -> bytes:
    """JSON on one line; ASCII, so that lone surrogates and U+2028 cannot harm.

    Raises:
        ValueError: it holds a number that JSON does not have.
    """
    return _ENCODER.encode(value).encode("ascii")


def answer(id: RequestId, result: bytes) -> bytes:
    """The answer to a request, with a result that is encoded already."""
    encoded = dump(id) if isinstance(id, str) else b"%d" % id
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (encoded, result)


def failure(id: RequestId | None, error: RpcError) -> bytes:
    """An error as the answer to a request, or to what was none."""
    detail: dict[str, JsonValue] = {"code": error.code, "message": error.message}
    if error.data is not None:
        detail["data"] = error.data
    return dump({"jsonrpc": "2.0", "id": id, "error": detail})


def request(number: int, method: str, params: JsonObject) -> bytes:
    """A request of the server to the client."""
    return dump({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notice(method: str, params: JsonObject | None = None) -> bytes:
    message: dict[str, JsonValue] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return dump(message)


def _no_number(word: str) -> float:
    raise ValueError(f"`{word}` is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError("too large a number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=writable)
