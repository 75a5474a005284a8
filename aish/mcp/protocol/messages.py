"""JSON-RPC: bytes in, messages out, lenient in what it takes; failures of a server.

No I/O. Tolerated: an id echoed as a string or a float, `error: null` beside a result, an empty
result as `[]` or `null`, an error that is text, a missing `jsonrpc`, NaN, batches of 2025-03-26.
Lines end at LF, and none is longer than a cap. `Server` turns failures into results, and
into the reason why a server failed to start.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REFUSED_BY_USER = -1
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
PAGES_REQUIRED = -32042
"""The person has to open pages first, which are in the data of the error (2025-11-25)."""

BODY_SHOWN = 400


class McpError(Exception):
    """A failed exchange; `message` is one sentence without a full stop."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RpcError(McpError):
    """The server answered with a JSON-RPC error to `method`, where that is known."""

    def __init__(self, code: int, message: str, data: JsonValue = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data
        self.method = ""

    def about(self, method: str) -> "RpcError":
        """The same, as the answer to a request."""
        self.method = method
        return self


class TransportError(McpError):
    """No JSON-RPC answer came: the network, the process, or something that is not MCP.

    `sent` is false if the server cannot have received the request.
    """

    sent = True


class UnreachableError(TransportError):
    """Nobody answers at the address of the server; `is_down` if it may only not be up yet."""

    sent = False

    def __init__(self, message: str, *, is_down: bool = False) -> None:
        super().__init__(message)
        self.is_down = is_down


class CredentialsError(TransportError):
    """The server refuses us, and a login did not help: it has not begun what was asked of it."""

    sent = False


class ConnectionBrokenError(TransportError):
    """The connection broke before the whole answer came."""


class ServerEndedError(TransportError):
    """The server process has ended; it may be started again."""


class NotSentError(ServerEndedError):
    """The server ended before it received the whole message: sending it again is safe."""

    sent = False


class ToolChangedError(McpError):
    """A tool changed after its call was approved: nothing was sent."""

    def __init__(self, server: str, name: str) -> None:
        super().__init__(f"{server}__{name} changed before it could be called")


class LeftError(TransportError):
    """In replay: the caller stopped waiting for this answer, as in the recording."""

    def __init__(self) -> None:
        super().__init__("nobody waited for the answer")


BAD_REQUEST = 400
_DOWN = frozenset({502, 503, 504})
_PASSING = _DOWN | {408, 409, 425, 429, 500}
_CREDENTIALS = "`auth_env` names the variable that has its token, and `oauth` gets one"
_WANTS_LOGIN = "it may want a login: `auth_env` or `oauth`"
_GUARD = "it guards its `Host`: allow the name in the `url` there, or use one it accepts"
_GUARDED = re.compile(r"(?i)invalid host|\bhost\b.{0,80}\bnot (?:allowed|permitted)")
_HTML = re.compile(r"(?i)\s*<(?:!doctype html|html|head|body)\b")
_TITLE = re.compile(r"(?is)<title[^>]*>\s*(.{1,80}?)\s*<")


class HttpStatusError(TransportError):
    """An HTTP status of 400 or more; `rpc` is the JSON-RPC error in its body, if it is one."""

    def __init__(self, status: int, body: str, rpc: RpcError | None = None) -> None:
        shown = body_excerpt(body, BODY_SHOWN)
        advice = {
            401: _CREDENTIALS,
            421: _GUARD,
            403: _GUARD if _GUARDED.search(shown) else _WANTS_LOGIN,
        }
        said = [shown, advice.get(status, "")]
        # An error from a cassette has it in its body.
        text = "; ".join(one for one in said if one and (one is shown or one not in shown))
        super().__init__(f"HTTP {status}: {text}" if text else f"HTTP {status}")
        self.status = status
        self.rpc = rpc

    @property
    def is_down(self) -> bool:
        return self.status in _DOWN

    @property
    def is_passing(self) -> bool:
        return self.status in _PASSING


def body_excerpt(body: str, most: int) -> str:
    """The part of an unexpected body that a message shows; of a page of HTML its title."""
    if not _HTML.match(body):
        return body.strip()[:most]
    title = _TITLE.search(body)
    return "a page of HTML" if title is None else f"a page of HTML, `{' '.join(title[1].split())}`"


class SessionLostError(HttpStatusError):
    """The server does not know the session of a request, which it has not begun."""


MAX_BATCH = 1000
MAX_LISTED = 2000
"""Rows of a listing that are looked at: each may be large."""
LISTINGS = frozenset({"tools", "resources", "resourceTemplates", "prompts"})
"""What the rows of a listing stand under."""
# Above this a message is not parsed as a whole: its values take many times its size.
_LARGE = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class NotAMessageError(ValueError):
    """These bytes are not JSON-RPC."""


@frozen
class RpcResponse:
    """A response; `id` is its text, whatever type the server echoed, `None` where it was null."""

    id: str | None
    result: JsonObject
    error: RpcError | None = None


@frozen
class ServerRequest:
    """A request from the server; its `id` is sent back unchanged."""

    id: str | int
    method: str
    params: JsonObject


@frozen
class Noted:
    """A notification from the server."""

    method: str
    params: JsonObject


Incoming = RpcResponse | ServerRequest | Noted


def encode(message: JsonObject) -> bytes:
    """Encode a message on one line; ASCII, so that lone surrogates and U+2028 cannot harm."""
    return _ENCODER.encode(message).encode()


def request(number: int, method: str, params: JsonObject) -> bytes:
    return encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notification(method: str, params: JsonObject | None = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return encode(message)


def reply(number: str | int, result: JsonObject) -> bytes:
    return encode({"jsonrpc": "2.0", "id": number, "result": result})


def refusal(number: str | int, error: RpcError) -> bytes:
    body: dict[str, JsonValue] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return encode({"jsonrpc": "2.0", "id": number, "error": body})


def decode(raw: bytes | str) -> tuple[Incoming, ...]:
    """The messages in one line, body or event: one, or those of a batch.

    Raises:
        NotAMessageError: the bytes are not JSON-RPC.
    """
    try:
        value = _parse_bounded(raw) if len(raw) > _LARGE else _DECODER.decode(_text(raw))
    except (ValueError, RecursionError) as error:
        raise NotAMessageError("not JSON") from error
    if isinstance(value, list) and 0 < len(value) <= MAX_BATCH:
        return tuple(_message(item) for item in value)
    return (_message(value),)


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(json.detect_encoding(raw), "surrogatepass")


def _parse_bounded(raw: bytes | str) -> Any:
    """The value of a large message: of the rows of a listing, one more than the limit.

    The extra row shows that there are more; these are parsed one by one and not kept.

    Raises:
        ValueError: it is not valid JSON.
    """
    text = _text(raw)
    start = _past_space(text, 0)
    if text[start : start + 1] != "{":
        return _DECODER.decode(text)
    value, end = _object(text, start, _member)
    if _past_space(text, end) != len(text):
        raise ValueError("text behind the message")
    return value


def _member(key: str, text: str, start: int) -> tuple[Any, int]:
    if key == "result" and text[start : start + 1] == "{":
        return _object(text, start, _row_list)
    return _DECODER.raw_decode(text, start)


def _row_list(key: str, text: str, start: int) -> tuple[Any, int]:
    if key not in LISTINGS or text[start : start + 1] != "[":
        return _DECODER.raw_decode(text, start)
    rows: list[Any] = []
    at = _past_space(text, start + 1)
    while text[at : at + 1] != "]":
        row, at = _DECODER.raw_decode(text, at)
        if len(rows) <= MAX_LISTED:
            rows.append(row)
        at = _past_comma(text, at, "]")
    return rows, at + 1


def _object(
    text: str, start: int, value_of: Callable[[str, str, int], tuple[Any, int]]
) -> tuple[dict[str, Any], int]:
    """The object that begins at `start`, its values read by `value_of`, and its end position."""
    result: dict[str, Any] = {}
    at = _past_space(text, start + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise ValueError("no key")
        key, at = _DECODER.raw_decode(text, at)
        at = _past_space(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        result[key], at = value_of(key, text, _past_space(text, at + 1))
        at = _past_comma(text, at, "}")
    return result, at + 1


def _past_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _past_comma(text: str, at: int, closing: str) -> int:
    """The position of the next member, or of the closing bracket."""
    at = _past_space(text, at)
    if text[at : at + 1] == closing:
        return at
    if text[at : at + 1] != ",":
        raise ValueError("no comma")
    at = _past_space(text, at + 1)
    if text[at : at + 1] == closing:
        raise ValueError("a comma and nothing behind it")
    return at


def json_object(value: object) -> JsonObject:
    """An object unchanged; anything else, such as Lua's `[]` or `null`, as an empty one."""
    return value if isinstance(value, Mapping) else {}


def _message(value: Any) -> Incoming:
    if not isinstance(value, dict):
        raise NotAMessageError("not a JSON-RPC message")
    method = value.get("method")
    number = value.get("id")
    if isinstance(method, str):
        params = json_object(value.get("params"))
        if isinstance(number, str | int):
            return ServerRequest(number, method, params)
        return Noted(method, params)
    if "id" not in value and value.get("jsonrpc") != "2.0":
        raise NotAMessageError("not a JSON-RPC message")
    return _answer(_id_text(number), value)


def _answer(number: str | None, value: dict[str, Any]) -> RpcResponse:
    error = value.get("error")
    if error is not None:
        return RpcResponse(number, {}, read_error(error))
    if "result" not in value:
        raise NotAMessageError("neither a result nor an error")
    result = value["result"]
    if isinstance(result, dict):
        return RpcResponse(number, result)
    if result is None or result == []:
        return RpcResponse(number, {})
    return RpcResponse(number, {}, RpcError(INTERNAL_ERROR, "the result is not an object"))


def read_error(value: Any) -> RpcError:
    """A JSON-RPC error object, or the value given in its place."""
    if not isinstance(value, dict):
        return RpcError(INTERNAL_ERROR, value if isinstance(value, str) else json.dumps(value))
    code = value.get("code")
    message = value.get("message")
    return RpcError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        message if isinstance(message, str) and message else f"error {code}",
        value.get("data"),
    )


def _id_text(number: Any) -> str | None:
    if isinstance(number, float) and number.is_integer():
        return str(int(number))
    return str(number) if isinstance(number, str | int) else None


def _no_number(_: str) -> None:
    """NaN and the infinities, which JSON does not have, become null.

    So do numbers that are too large to be read: the message is the answer to a call all the same.
    """


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _whole(digits: str) -> int | None:
    try:
        return int(digits)
    except ValueError:  # more digits than the interpreter takes
        return None


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite, parse_int=_whole)


def find_answer(messages: Sequence[Incoming], number: int) -> RpcResponse | None:
    """The answer to the client's request among the messages of its HTTP response.

    An error without an id is accepted as the answer too: JSON-RPC says so for unreadable ids.
    """
    for message in messages:
        if isinstance(message, RpcResponse):
            if message.id == str(number):
                return message
            if message.id is None and message.error is not None:
                return message
    return None


MAX_LINE = 32 * 1024 * 1024


class LineBuffer:
    """Collects pieces until a line is whole; a line over the cap is dropped and counted."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.dropped = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that a piece completes, without their line ends; empty lines are skipped."""
        *whole, rest = chunk.split(b"\n")
        lines = []
        for line in whole:
            self._keep(line)
            full = b"".join(self._parts)
            if self._size > self._limit:
                self.dropped += 1
            elif full.strip():
                lines.append(full)
            self._parts, self._size = [], 0
        self._keep(rest)
        return lines

    def _keep(self, part: bytes) -> None:
        """Keep a piece of a line unless the line is too long."""
        self._size += len(part)
        if self._size > self._limit:
            self._parts = []
        elif part:
            self._parts.append(part)
