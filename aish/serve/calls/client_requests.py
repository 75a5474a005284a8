"""Requests to a client during its own request, such as those of servers that are forwarded.

A server may request input (elicitation), the answer of a model (sampling) or folders (roots) from
the client whose call it handles. The capabilities of the client and `serve.forward` decide what is
forwarded. A message begins with the alias of the server, and a form has only the fields that the
protocol defines.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from secrets import token_hex
from urllib.parse import urlsplit

import anyio

from aish.config.model import ForwardKind
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue
from aish.mcp.client.server_requests import ELICITATION, ROOTS, SAMPLING, OnProgress
from aish.mcp.protocol.messages import INTERNAL_ERROR, REFUSED_BY_USER, RpcError, json_object
from aish.mcp.protocol.requests import ClientResponse, notice, request
from aish.mcp.protocol.revisions import META
from aish.serve.calls.request_state import STATE_SECONDS

ALIAS_MARK = "aish/server"
"""In the `_meta` of a request that is passed on: the alias of the server that made it."""
_OF_THE_HOP = (META, "aish/")
_ACTIONS = frozenset({"accept", "decline", "cancel"})
_OF_FORM = frozenset({"$schema", "type", "title", "description", "properties", "required"})
_OF_FIELD = frozenset(
    {
        "type",
        "title",
        "description",
        "default",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "enum",
        "enumNames",
        "oneOf",
        "items",
        "minItems",
        "maxItems",
    }
)
_OF_CHOICES = frozenset({"type", "enum", "enumNames", "anyOf", "oneOf"})
_OF_CHOICE = frozenset({"const", "title"})
_MODES = ("form", "url")
_FORMS: Sequence[ForwardKind] = ("elicitation",)
_SCHEMES = frozenset({"http", "https"})
_MOST_PAGES = 16
_MOST_KNOWN_PAGES = 256

Send = Callable[[bytes, str], None]
"""Sends a message to the client on the way of one of its requests."""


def capabilities_for_servers(declared: JsonObject, kinds: Sequence[ForwardKind]) -> JsonObject:
    """Return the capabilities for servers: those that the client declared and the file forwards."""
    found: dict[str, JsonValue] = {}
    for kind in kinds:
        value = declared.get(kind)
        if value is None or value is False:
            continue
        parts = json_object(value)
        match kind:
            case "elicitation":
                modes: dict[str, JsonValue] = {
                    mode: {} for mode in _MODES if isinstance(parts.get(mode), Mapping)
                }
                found[kind] = modes or {"form": {}}
            case "sampling":
                wanted = ("tools", "context")
                found[kind] = {part: {} for part in wanted if isinstance(parts.get(part), Mapping)}
            case "roots":
                found[kind] = {}
    return found


def fills_forms(declared: JsonObject) -> bool:
    """Return true if a client has declared that it fills in forms."""
    return "form" in json_object(capabilities_for_servers(declared, _FORMS).get("elicitation"))


def params_for_client(
    server: str, method: str, params: JsonObject, offered: JsonObject
) -> JsonObject | None:
    """Return the params of a server's request for the client; `None` if it is not forwarded."""
    match method:
        case _ if method == ELICITATION and "elicitation" in offered:
            fields = _elicitation(server, params, json_object(offered["elicitation"]))
        case _ if method == SAMPLING and "sampling" in offered:
            fields = _params_for_sampling(params, json_object(offered["sampling"]))
        case _ if method == ROOTS and "roots" in offered:
            fields = {}
        case _:
            return None
    if fields is None:
        return None
    meta = json_object(params.get("_meta")).items()
    own = {key: value for key, value in meta if not key.startswith(_OF_THE_HOP)}
    return {**fields, "_meta": {**own, ALIAS_MARK: server}}


def _elicitation(server: str, params: JsonObject, modes: JsonObject) -> JsonObject | None:
    mode, message = params.get("mode", "form"), params.get("message")
    if not isinstance(message, str) or not isinstance(mode, str) or mode not in modes:
        return None
    text = f"{server}: {message}"
    if mode == "form":
        schema = _form(params.get("requestedSchema"))
        return None if schema is None else {**params, "message": text, "requestedSchema": schema}
    url = params.get("url")
    return {**params, "message": text} if isinstance(url, str) and _is_address(url) else None


def _form(schema: JsonValue) -> JsonObject | None:
    """Return a form with the fields of the protocol only; `None` if it is not valid."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return None
    # Loaded by the first server that asks.
    from aish.terminal.elicitation import FieldError, fields_of

    try:
        fields = fields_of(schema)
    except FieldError:
        return None
    form = {key: value for key, value in schema.items() if key in _OF_FORM}
    form["properties"] = {field.name: _field(field.schema) for field in fields}
    for key in ("$schema", "title", "description"):
        if not isinstance(form.get(key), str):
            form.pop(key, None)
    return form


def _field(schema: JsonObject) -> JsonObject:
    """Return a field of a form: flat values under the names of the protocol."""
    result: dict[str, JsonValue] = {}
    for key, value in schema.items():
        if key == "items":
            result[key] = _choices(json_object(value))
        elif key == "oneOf":
            result |= _choices({key: value})
        elif key in _OF_FIELD and _is_flat(value):
            result[key] = value
    return result


def _choices(schema: JsonObject) -> JsonObject:
    result: dict[str, JsonValue] = {}
    for key, value in schema.items():
        if key in {"anyOf", "oneOf"} and isinstance(value, Sequence):
            result[key] = [
                {name: text for name, text in json_object(row).items() if name in _OF_CHOICE}
                for row in value
                if all(isinstance(text, str) for text in json_object(row).values())
            ]
        elif key in _OF_CHOICES and _is_flat(value):
            result[key] = value
    return result


def _is_flat(value: JsonValue) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(isinstance(item, str) for item in value)
    return not isinstance(value, Mapping) and value is not None


def _is_address(url: str) -> bool:
    """Return true if this is a complete address in visible characters."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    is_seen = url.isprintable() and " " not in url
    return parts.scheme in _SCHEMES and bool(parts.hostname) and is_seen


def _params_for_sampling(params: JsonObject, parts: JsonObject) -> JsonObject | None:
    messages = params.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return None
    if ("tools" in params or "toolChoice" in params) and "tools" not in parts:
        return None
    if "context" not in parts:
        return {key: value for key, value in params.items() if key != "includeContext"}
    return params


def pages_in(error: RpcError) -> list[JsonObject]:
    """Return the pages that a server wants to be opened before a call."""
    rows = json_object(error.data).get("elicitations")
    listed = rows if isinstance(rows, Sequence) and not isinstance(rows, str) else ()
    pages = (json_object(page) for page in listed)
    return list(islice((page for page in pages if page.get("mode") == "url"), _MOST_PAGES))


def check_answer(method: str, result: JsonValue) -> JsonObject:
    """Return a client's answer if it fits this request.

    Raises:
        RpcError: it does not.
    """
    answer = json_object(result)
    match method:
        case _ if method == ELICITATION:
            content = answer.get("content")
            fits = answer.get("action") in _ACTIONS and isinstance(content, Mapping | None)
        case _ if method == SAMPLING:
            fits = isinstance(answer.get("role"), str) and answer.get("content") is not None
        case _:
            fits = isinstance(answer.get("roots"), Sequence)
    if not fits:
        raise RpcError(INTERNAL_ERROR, f"the client's answer to `{method}` is not valid")
    return answer


def default_answer(method: str) -> JsonObject:
    """Return the answer to a server whose client gave none in time.

    Raises:
        RpcError: that is an error for this kind of request.
    """
    if method == ELICITATION:
        return {"action": "cancel"}
    raise RpcError(REFUSED_BY_USER, "the client did not answer in time")


@slotted
class _Asked:
    """A request that is not answered yet."""

    answered: anyio.Event
    on_progress: OnProgress
    progress: float = -math.inf
    response: ClientResponse | None = None


class ClientRequests:
    """Requests to a client of the handshake era, over its session, with ids of our own."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._number = 0
        self._open: dict[int, _Asked] = {}
        self._pages: deque[tuple[str, JsonValue]] = deque(maxlen=_MOST_KNOWN_PAGES)

    async def ask(
        self, method: str, params: JsonObject, send: Send, on_progress: OnProgress
    ) -> JsonObject:
        """Send a request during one of the client's own, and return its answer.

        Raises:
            RpcError: the client refuses, or its answer is invalid or missing.
        """
        self._number += 1
        number = self._number
        meta = json_object(params.get("_meta"))
        if "progressToken" in meta:
            meta = {**meta, "progressToken": number}
            params = {**params, "_meta": meta}
        message = request(number, method, params)
        if len(message) > self._longest:
            raise RpcError(REFUSED_BY_USER, f"`{method}` has more than {self._longest:,} bytes")
        self._open[number] = asked = _Asked(anyio.Event(), on_progress)
        try:
            send(message, "")
            with anyio.move_on_after(STATE_SECONDS):
                await asked.answered.wait()
        finally:
            del self._open[number]
            if asked.response is None:
                details: JsonObject = {"requestId": number, "reason": "no longer wanted"}
                send(notice("notifications/cancelled", details), "")
        if asked.response is None:
            return default_answer(method)
        if asked.response.error is not None:
            raise asked.response.error
        return check_answer(method, asked.response.result)

    def take_answer(self, response: ClientResponse) -> None:
        """Accept an answer; one to an unknown or already answered request is ignored."""
        number = response.id
        asked = self._open.get(number) if isinstance(number, int) else None
        if asked is not None and asked.response is None:
            asked.response = response
            asked.answered.set()

    def note_page(self, page: JsonObject) -> None:
        """Note that the client is asked to open a page of a server."""
        alias = json_object(page.get("_meta")).get(ALIAS_MARK)
        self._pages.append((str(alias), page.get("elicitationId")))

    def was_asked(self, alias: str, id: JsonValue) -> bool:
        return (alias, id) in self._pages

    def take_progress(self, params: JsonObject) -> None:
        """Forward the progress of an answer while it increases."""
        number, progress = params.get("progressToken"), params.get("progress")
        asked = self._open.get(number) if isinstance(number, int) else None
        if asked is None or isinstance(progress, bool) or not isinstance(progress, int | float):
            return
        with suppress(OverflowError):
            if float(progress) > asked.progress:
                asked.progress = float(progress)
                asked.on_progress(params)


@frozen
class StreamOwner:
    """A client of the handshake era as the owner of a call: it is asked during the call."""

    client: str
    offered: JsonObject
    requests: ClientRequests
    send: Send
    fills_forms: bool = False
    """Whether it can be asked about the call itself."""

    def capabilities(self) -> JsonObject:
        return self.offered

    def client_params(self, server: str, method: str, params: JsonObject) -> JsonObject | None:
        fields = params_for_client(server, method, params, self.offered)
        if fields is not None and fields.get("mode") == "url":
            # Servers of the stateless era do not give an id, and this client needs it.
            fields = {"elicitationId": token_hex(16), **fields}
            self.requests.note_page(fields)
        return fields

    def pages(self, server: str, error: RpcError) -> JsonObject | None:
        """Ask the client to open pages first; `None` if it does not support that.

        Raises:
            RpcError: tells the client to open them.
        """
        candidates = (self.client_params(server, ELICITATION, page) for page in pages_in(error))
        pages = [page for page in candidates if page is not None]
        if pages:
            raise RpcError(error.code, f"{server}: {error.message}", {"elicitations": pages})
        return None

    def is_given(self, requests: Mapping[str, JsonObject]) -> bool:  # ruff: ignore[unused-method-argument, no-self-use] - `CallOwner`
        return False

    async def ask(self, method: str, params: JsonObject, on_progress: OnProgress) -> JsonObject:
        return await self.requests.ask(method, params, self.send, on_progress)
