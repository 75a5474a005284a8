"""What a request has to pass before it is answered (H18, H19, X11), in one order for all.

Framing comes before (`connection`). Then: `Host` (421), a token in the URL (400), `Origin` (403),
method (405), type (415), token (401), scope (403), and the size of the body (413).
"""

from collections.abc import Callable, Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from aish.net.listen.access import Access, Call, Peer
from aish.net.listen.http_error import HttpError
from aish.net.listen.request_checks import (
    URL_HAS_TOKEN,
    bearer_token,
    check_host,
    check_origin,
    check_url,
)
from aish.net.listen.routes import (
    JSON_TYPE,
    WITH_BODY,
    ConnectionState,
    Route,
    connection_of,
    error_response,
)

_TYPES = frozenset({JSON_TYPE, f"{JSON_TYPE};charset=utf-8"})
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers of every answer, unless the answer has its own."""


class Guards:
    """The application of a server: checks each request and hands it to its route."""

    def __init__(
        self,
        routes: Iterable[Route],
        access: Access,
        *,
        most_body: int,
        report: Callable[[Exception], None],
        log: Callable[[Call], None],
    ) -> None:
        self._routes = [(compile_path(route.path), route) for route in routes]
        self._access = access
        self._most_body = most_body
        self._report = report
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = _Guarded(scope, receive, send)
        try:
            response = await self._response(request)
        except _GoneError:
            return
        except HttpError as error:
            request.code = error.code
            response = error_response(error)
        except Exception as error:  # ruff: ignore[blind-except] - a handler's fault ends no server
            self._report(error)
            response = _internal_error(request)
        try:
            await response(scope, request.receive, request.send)
        except Exception as error:  # ruff: ignore[blind-except] - the same, while a stream is written
            self._report(error)
            request.connection.abort()
        finally:
            if request.status:
                self._log(request.call())

    async def _response(self, request: "_Guarded") -> Response:
        scope = request.scope
        routes = self._matching(scope)
        if not any(route.any_host for _, route in routes):
            check_host(request.texts(b"host"), request.connection.listener, self._access)
        self._check_url(request)
        check_origin(request.texts(b"origin"), request.connection.listener, self._access)
        if not scope["path"].startswith("/"):
            raise HttpError(400, "bad_request", "the target of the request is not a path")
        found = [pair for pair in routes if scope["method"] in pair[1].methods]
        if routes and not found:
            allowed = ", ".join(sorted({name for _, route in routes for name in route.methods}))
            message = f"`{scope['method']}` is not allowed here"
            headers = {"allow": allowed}
            raise HttpError(405, "method_not_allowed", message, headers=headers)
        _check_type(request)
        route = found[0][1] if found else None
        self._identify(request, is_public=route is not None and route.public)
        if route is None:
            raise HttpError(404, "not_found", "there is nothing at this path")
        request.required = route.scope
        if not route.public and route.scope not in request.peer.scopes:
            message = f"this needs the scope `{route.scope}`"
            raise HttpError(403, "forbidden", message, hint="use a token that has it")
        await request.read_body(self._most_body)
        scope["path_params"] = found[0][0]
        return await route.handler(Request(scope, request.receive), request.peer)

    def _matching(self, scope: Scope) -> list[tuple[dict[str, object], Route]]:
        """The routes of a path, and what its parameters are."""
        found = []
        for (pattern, _, convertors), route in self._routes:
            if match := pattern.fullmatch(scope["path"]):  # `$` alone allows a line break
                values = {
                    name: convertors[name].convert(text) for name, text in match.groupdict().items()
                }
                found.append((values, route))
        return found

    def _check_url(self, request: "_Guarded") -> None:
        scope = request.scope
        try:
            check_url(scope["path"], scope["query_string"].decode("latin-1"), self._access)
        except HttpError as error:
            if error.code == URL_HAS_TOKEN:
                request.path = ""
            raise

    def _identify(self, request: "_Guarded", *, is_public: bool) -> None:
        """Note who sent it: by the user of a socket file, or by its token."""
        peer, key = request.peer, ""
        if peer.transport == "unix":
            name = f"uid:{peer.uid}"
            scopes = self._access.socket_scopes
        else:
            values = request.texts(b"authorization")
            if not values and is_public:
                return
            token = bearer_token(values, self._access)
            name, scopes, key = token.name, token.scopes, token.key
        request.peer = Peer(peer.transport, peer.address, name, scopes, peer.uid, peer.pid, key)
        request.connection.trusted = True


class _GoneError(Exception):
    """The client left before its request was complete."""


class _Guarded:
    """A request on its way: what is known of it, its body once it is whole, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.connection: ConnectionState = connection_of(scope)
        self.peer = self.connection.peer
        self.path: str = scope["path"]
        self.required = ""
        self.status = 0
        self.code = ""
        self._body: bytes | None = None
        self._receive = receive
        self._send = send

    def headers(self, name: bytes) -> list[bytes]:
        """The values of a header, one for each time that it was sent."""
        return [value for found, value in self.scope["headers"] if found == name]

    def texts(self, name: bytes) -> list[str]:
        """The same as text."""
        return [value.decode("latin-1") for value in self.headers(name)]

    def call(self) -> Call:
        """What a log gets to see."""
        return Call(
            self.scope["method"], self.path, self.required, self.peer, self.status, self.code
        )

    async def read_body(self, most: int) -> None:
        """Receive all of the body.

        Raises:
            HttpError: it is too long.
        """
        length = self.headers(b"content-length")
        # The parser bounds the value, and not the zeros before it.
        if length and int(length[0].lstrip(b"0") or b"0") > most:
            raise _too_large(most)
        body = bytearray()
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > most:
                raise _too_large(most)
        self._body = bytes(body)

    async def receive(self) -> Message:
        """The body, then what follows: the end of the connection."""
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            there = {name for name, _ in headers}
            headers += [pair for pair in _HEADERS if pair[0] not in there]
            message = {**message, "headers": headers}
        await self._send(message)


def _check_type(request: _Guarded) -> None:
    if request.scope["method"] not in WITH_BODY:
        lengths = request.headers(b"content-length")
        if request.headers(b"transfer-encoding") or any(value.strip(b"0") for value in lengths):
            message = f"a `{request.scope['method']}` request has no body here"
            raise HttpError(400, "unexpected_body", message)
        return
    values = [value.decode("latin-1") for value in request.headers(b"content-type")]
    spelled = values[0].lower().replace(" ", "").replace('"', "") if len(values) == 1 else ""
    if spelled not in _TYPES:
        hint = f"send `Content-Type: {JSON_TYPE}`"
        raise HttpError(415, "wrong_type", "the body has to be JSON", hint=hint)


def _too_large(most: int) -> HttpError:
    return HttpError(413, "body_too_large", f"the body is longer than {most} bytes")


def _internal_error(request: _Guarded) -> Response:
    request.code = "internal"
    return error_response(HttpError(500, "internal", "the server has failed at this request"))
