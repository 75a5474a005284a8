"""Clients over streamable HTTP, in both eras of the protocol.

A POST carries one message. Its answer is JSON or, from the first notification on, a stream of
events. A request of the stateless era is independent: its headers have to match its body, and it is
cancelled when the client disconnects. A request of the handshake era belongs to a session.

https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import anyio
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Clock
from aish.core.tools import Tool, ToolName
from aish.mcp.protocol.messages import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    RpcError,
    json_object,
)
from aish.mcp.protocol.mirrored_headers import (
    Mirrored,
    check_parameters,
    check_standard,
    header_parameters,
)
from aish.mcp.protocol.requests import (
    INVALID_REQUEST,
    ClientRequest,
    Invalid,
    Notification,
    Received,
    RequestId,
    failure,
    read,
)
from aish.mcp.protocol.revisions import HANDSHAKE, MODERN, VERSION_KEY
from aish.net.listen.access import Access, AccessRecord, Peer, ServerLimits, Target
from aish.net.listen.addresses import Address
from aish.net.listen.http_error import HttpError
from aish.net.listen.request_checks import URL_HAS_TOKEN
from aish.net.listen.routes import (
    JSON_TYPE,
    EventQueue,
    EventStreamResponse,
    Route,
    ServerEvent,
    connection_of,
    json_response,
)
from aish.net.listen.server import serve
from aish.serve.clients import SCOPE, AuthenticatedClient
from aish.serve.hub import Hub
from aish.serve.listeners.http_sessions import (
    HttpSession,
    HttpSessions,
    SessionStore,
    SessionStream,
    TooManySessionsError,
)
from aish.serve.listeners.listening import OpenEndpoint
from aish.serve.offer.offers import ListName
from aish.serve.records.audit import AuditError
from aish.serve.records.metrics import CONTENT_TYPE
from aish.serve.session import ClientSession, Notify, StatelessClient, unheard
from aish.system.process.ancestry import is_own_process
from aish.system.task_group import task_group
from aish.system.user import name_of_user

if TYPE_CHECKING:
    # Most servers have no issuer.
    from aish.serve.listeners.resource_server import ResourceServer

SESSION_NOT_FOUND = -32001
_SESSION_HEADER = "mcp-session-id"
_VERSION_HEADER = "mcp-protocol-version"
_STREAM_TYPES = (b"text/event-stream", b"text/*", b"*/*")
_WITH_PARAMS = ClientRequest | Notification
_NO_ARRAYS = "arrays of messages are not taken"
_BUSY = 503
_PRIMED = frozenset({"2025-11-25"})
"""The revisions whose streams begin with an event that holds nothing but its id."""
_RESUME_SECONDS = 10.0
"""How long a client may take to read on in the stream of a call, before the call is cancelled."""
_RETRY_SECONDS = "5"
_STATUSES: Mapping[int, int] = {
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
}
"""The status of an error of the stateless era, unless it is 200."""
_REFUSALS = frozenset({401, 403, 421})
_REFUSAL_CODES = frozenset({URL_HAS_TOKEN, "issuer_unreachable"})
_NAMED: Mapping[str, tuple[ListName, str]] = {
    "tools/call": ("tools", "name"),
    "prompts/get": ("prompts", "name"),
    "resources/read": ("resources", "uri"),
}
"""The requests that name what they are for: the list that has it, and the parameter."""

Work = Callable[[Notify], Awaitable[bytes | None]]
"""Answers a request, or all of an array; `None` if that was cancelled."""


async def serve_http(
    hub: Hub,
    opened: Sequence[OpenEndpoint],
    state: Path,
    clock: Clock,
    authority: "ResourceServer | None" = None,
) -> None:
    """Serve clients on the sockets until this is cancelled, then close them.

    With `authority`, tokens of its issuer are accepted.

    Raises:
        UsageError: the extra `serve` is not installed, or `state` cannot be written.
    """
    limits, settings = hub.settings.limits, hub.settings
    sessions = HttpSessions(hub, SessionStore(state, clock, limits.idle))
    endpoint = _McpEndpoint(hub, sessions, opened, authority)
    access = Access(
        hub.clients.tokens,
        frozenset({SCOPE}),
        is_own_process,
        frozenset(settings.hosts),
        frozenset(settings.origins),
        authority,
    )
    server = serve(
        endpoint.routes,
        [entry.listener for entry in opened],
        access,
        report=hub.report_listener,
        on_call=partial(_note_refusal, hub),
        limits=ServerLimits(limits.http_connections, body=limits.message, receive=limits.receive),
        tls=next((entry.tls for entry in opened), None),
    )
    hub.clients.watchers.add(sessions.end_unproven)
    try:
        async with server, task_group() as tasks:
            if authority is not None:
                tasks.start_soon(authority.keys.stay_current)
            await sessions.expire()
    finally:
        hub.clients.watchers.discard(sessions.end_unproven)
        sessions.close()
        endpoint.close()


def _note_refusal(hub: Hub, call: AccessRecord) -> None:
    if call.status in _REFUSALS or call.code in _REFUSAL_CODES:
        detail = "" if hub.settings.auth is None else call.reason
        hub.note_refusal(_peer_object(call.peer), call.code, detail)


class _McpEndpoint:
    """The paths of the server: those of the protocol, and those for monitoring."""

    def __init__(
        self,
        hub: Hub,
        sessions: HttpSessions,
        opened: Sequence[OpenEndpoint],
        authority: "ResourceServer | None",
    ) -> None:
        self._hub = hub
        self._authority = authority
        self._sessions = sessions
        self._stateless: dict[str, StatelessClient] = {}
        self._mirrored: dict[ToolName, tuple[Tool, Sequence[Mirrored]]] = {}
        self._paths: dict[str, set[Address]] = {}
        """The listeners of each path."""
        for entry in opened:
            self._paths.setdefault(entry.endpoint.path, set()).add(entry.listener.address)

    def routes(self) -> Iterable[Route]:
        """The routes of all listeners."""
        for path in self._paths:
            yield Route(path, ("POST",), SCOPE, self._post)
            yield Route(path, ("GET",), SCOPE, self._get)
            yield Route(path, ("DELETE",), SCOPE, self._delete)
        yield Route("/healthz", ("GET", "HEAD"), "", self._healthy, public=True, any_host=True)
        yield Route("/readyz", ("GET", "HEAD"), "", self._ready, public=True, any_host=True)
        yield Route("/metrics", ("GET",), SCOPE, self._metrics)
        for path in () if self._authority is None else self._authority.document_paths:
            yield Route(path, ("GET",), "", self._describe, public=True, anonymous=True)

    async def _post(self, request: HttpRequest, peer: Peer) -> HttpResponse:
        headers = self._headers(request)
        message = read(await request.body())
        if self._authority is not None:
            await self._check_scopes(message, request, peer, self._authority)
        id = message.id if isinstance(message, ClientRequest | Invalid) else None
        try:
            return await self._answer(message, headers, peer)
        except RpcError as error:
            return _refusal(error, id)

    async def _answer(
        self, message: Received | Sequence[Received], headers: "_Headers", peer: Peer
    ) -> HttpResponse:
        """Answer the message in a body.

        Raises:
            RpcError: it is not valid.
            _RefusedError: it is not accepted now, or not from this client.
        """
        if isinstance(message, Invalid):
            raise message.error
        version = headers.one(_VERSION_HEADER)
        meta = json_object(message.params.get("_meta")) if isinstance(message, _WITH_PARAMS) else {}
        is_modern = version == MODERN or VERSION_KEY in meta
        if isinstance(message, ClientRequest) and is_modern:
            await self._check_modern(message, version, meta, headers, peer)
            return self._alone(message, headers, peer)
        _check_version(version)
        if is_modern:
            if isinstance(message, Sequence):
                raise RpcError(INVALID_REQUEST, _NO_ARRAYS)
            return HttpResponse(status_code=202)
        key = headers.one(_SESSION_HEADER)
        if key is None and isinstance(message, ClientRequest) and message.method == "initialize":
            return await self._begin(message, peer)
        session = self._session(key, peer)
        inner = session.session
        if isinstance(message, Sequence):
            return self._array(message, session, headers)
        if isinstance(message, ClientRequest):
            scope = _admit(message, inner)
            work = partial(inner.answer, message, scope)
            return _Answer(work, [scope], headers, self._queue, session)
        inner.take(message)
        return HttpResponse(status_code=202)

    async def _check_scopes(
        self,
        message: Received | Sequence[Received],
        request: HttpRequest,
        peer: Peer,
        authority: "ResourceServer",
    ) -> None:
        """Check that a client has the scopes for the tool that it names.

        Raises:
            HttpError: it needs a token with more scopes.
        """
        proof, clients = self._proof(peer, request), self._hub.clients
        for one in message if isinstance(message, Sequence) else (message,):
            if not isinstance(one, ClientRequest) or one.method not in _NAMED:
                continue
            await self._hub.wait_until_settled()
            if not self._offers(proof.client.tools, one):
                entries = (entry for entry in clients.scoped if self._offers(entry.tools, one))
                if (entry := next(entries, None)) is not None:
                    raise authority.lacks(proof, entry, _target(request))

    def _offers(self, globs: tuple[str, ...], request: ClientRequest) -> bool:
        """Return true if clients with these tools may use what a request names."""
        listed, parameter = _NAMED[request.method]
        offer, name = self._hub.offer(globs), request.params.get(parameter)
        if not isinstance(name, str):
            return False
        is_known = offer.name(listed, name) is not None
        return is_known or (listed == "tools" and self._hub.tool(offer, name) is not None)

    async def _describe(self, request: HttpRequest, peer: Peer) -> HttpResponse:  # ruff: ignore[unused-method-argument] - as all handlers
        assert self._authority is not None, "it has the route"
        return json_response(self._authority.document(_target(request)))

    def close(self) -> None:
        """Clean up after requests without a session."""
        for common in self._stateless.values():
            self._hub.forget(common.id)

    def _alone(self, request: ClientRequest, headers: "_Headers", peer: Peer) -> HttpResponse:
        if request.method == "subscriptions/listen" and not headers.takes_stream:
            raise _no_stream()
        clients, proof = self._hub.clients, self._proof(peer)
        common = self._stateless.get(proof.client.name)
        if common is None:
            common = StatelessClient(token_hex(8), self._hub.calls.places())
            self._stateless[proof.client.name] = common
        session = ClientSession(self._hub, proof, _peer_object(peer), _ignore, common)
        try:
            scope = _admit(request, session)
        except _RefusedError:
            session.close()
            raise
        work = partial(session.respond, request, scope)
        ends = request.method == "subscriptions/listen"
        timer = _at_end_of_token(peer, scope.cancel) if ends else None

        def check() -> None:
            if not clients.holds(proof):
                scope.cancel()

        def end() -> None:
            if timer is not None:
                timer.cancel()
            clients.watchers.discard(check)
            session.close()

        clients.watchers.add(check)
        return _Answer(work, [scope], headers, self._queue, id=request.id, on_end=end)

    async def _check_modern(
        self,
        request: ClientRequest,
        version: str | None,
        meta: JsonObject,
        headers: "_Headers",
        peer: Peer,
    ) -> None:
        """Compare the headers with the body.

        Raises:
            RpcError: they differ, or the revision is not supported.
        """
        body_version = meta.get(VERSION_KEY)
        if version is None:
            raise RpcError(HEADER_MISMATCH, "header mismatch: `MCP-Protocol-Version` is missing")
        if body_version is None:
            raise RpcError(INVALID_PARAMS, f"`_meta.{VERSION_KEY}` is missing")
        if version != body_version:
            message = "header mismatch: `MCP-Protocol-Version` differs from the body"
            raise RpcError(HEADER_MISMATCH, message)
        if version != MODERN:
            raise _version_error(version)
        check_standard(request.method, request.params, headers.values)
        if request.method != "tools/call":
            return
        await self._hub.wait_until_settled()
        name = request.params.get("name")
        offer = self._hub.offer(self._proof(peer).client.tools)
        tool = self._hub.tool(offer, name) if isinstance(name, str) else None
        if tool is not None and (parameters := self._header_parameters_of(tool)):
            arguments = json_object(request.params.get("arguments"))
            check_parameters(parameters, arguments, headers.values)

    def _header_parameters_of(self, tool: Tool) -> Sequence[Mirrored]:
        """Return the parameters of a tool that a client repeats in headers."""
        known = self._mirrored.get(tool.name)
        if known is None or known[0] is not tool:
            try:
                parameters = header_parameters(tool.input_schema)
            except ValueError:  # clients leave such a tool out
                parameters = ()
            known = self._mirrored[tool.name] = tool, parameters
        return known[1]

    async def _begin(self, request: ClientRequest, peer: Peer) -> HttpResponse:
        session = self._sessions.make(self._proof(peer), _peer_object(peer))
        try:
            scope = _admit(request, session.session)
            answer = await session.session.respond(request, scope, lambda *_: None)
            assert answer is not None, "nobody can cancel it"
            self._add(session)
        except BaseException:
            session.end()
            raise
        return _json(answer, 200, {_SESSION_HEADER: session.id})

    def _add(self, session: HttpSession) -> None:
        try:
            self._sessions.add(session)
        except TooManySessionsError:
            error = RpcError(INTERNAL_ERROR, "busy: there are too many sessions")
            raise _RefusedError(503, error) from None
        except AuditError as error:
            raise _RefusedError(503, RpcError(INTERNAL_ERROR, str(error))) from error

    def _session(self, key: str | None, peer: Peer) -> HttpSession:
        """Return the session that a message belongs to.

        Raises:
            RpcError: it names none.
            _RefusedError: it names none of this client.
        """
        if key is None:
            message = (
                "send `initialize` first, and its `Mcp-Session-Id` with what follows, "
                f"or each request with `_meta.{VERSION_KEY}`"
            )
            raise RpcError(INVALID_PARAMS, message, {"supported": [MODERN, *HANDSHAKE]})
        proof, about = self._proof(peer), _peer_object(peer)
        session = self._sessions.find(key, proof, about)
        if session is None:
            session = self._sessions.restore_session(key, proof, about)
            if session is None:
                raise _RefusedError(404, RpcError(SESSION_NOT_FOUND, "session not found"))
            try:
                self._add(session)
            except BaseException:
                session.end()
                raise
        return session

    def _array(
        self, messages: Sequence[Received], session: HttpSession, headers: "_Headers"
    ) -> HttpResponse:
        """Answer several messages, each by itself, and return the answers together."""
        inner = session.session
        if not inner.takes_arrays:
            raise RpcError(INVALID_REQUEST, _NO_ARRAYS)
        answers, admitted = inner.admit_all(messages)
        if not admitted and not answers:
            return HttpResponse(status_code=202)
        work = partial(inner.answer_all, answers, admitted)
        scopes = [scope for _, scope in admitted]
        return _Answer(work, scopes, headers, self._queue, session)

    async def _get(self, request: HttpRequest, peer: Peer) -> HttpResponse:
        """Return the stream of messages that belong to no request, or resume another one."""
        headers = self._headers(request)
        try:
            session = self._session_of(headers, peer)
            last = headers.one("last-event-id") or ""
        except RpcError as error:
            return _refusal(error)
        if not headers.takes_stream:
            raise _no_stream()
        queue = self._queue()
        stream = session.resume(last, queue)
        timer = _at_end_of_token(peer, queue.close)

        def end() -> None:
            if timer is not None:
                timer.cancel()
            stream.detach(queue)

        return EventStreamResponse(queue, end)

    async def _delete(self, request: HttpRequest, peer: Peer) -> HttpResponse:
        try:
            self._sessions.end(self._session_of(self._headers(request), peer))
        except RpcError as error:
            return _refusal(error)
        return HttpResponse(status_code=204)

    def _session_of(self, headers: "_Headers", peer: Peer) -> HttpSession:
        version = headers.one(_VERSION_HEADER)
        if version == MODERN:
            message = f"revision {MODERN} has neither sessions nor their streams"
            raise HttpError(405, "method_not_allowed", message, headers={"allow": "POST"})
        _check_version(version)
        return self._session(headers.one(_SESSION_HEADER), peer)

    async def _healthy(self, request: HttpRequest, peer: Peer) -> HttpResponse:  # ruff: ignore[unused-method-argument] - as all handlers
        return json_response(self._status("ok", peer))

    async def _ready(self, request: HttpRequest, peer: Peer) -> HttpResponse:  # ruff: ignore[unused-method-argument] - as all handlers
        state = self._hub.state
        return json_response(self._status(state, peer), 200 if state == "ready" else 503)

    def _status(self, state: str, peer: Peer) -> JsonObject:
        """Return the status; for a client also the servers."""
        if SCOPE not in peer.scopes:
            return {"status": state}
        servers: list[JsonValue] = [
            {"alias": server.alias, "state": server.state, "tools": server.tools}
            for server in self._hub.servers
        ]
        return {"status": state, "servers": servers}

    async def _metrics(self, request: HttpRequest, peer: Peer) -> HttpResponse:  # ruff: ignore[unused-method-argument] - as all handlers
        return HttpResponse(self._hub.metrics.text(), media_type=CONTENT_TYPE)

    def _headers(self, request: HttpRequest) -> "_Headers":
        """Return the headers of a request.

        Raises:
            HttpError: the path belongs to another listener.
        """
        connection = connection_of(request.scope)
        if connection.local not in self._paths[request.scope["path"]]:
            raise HttpError(404, "not_found", "there is nothing at this path")
        return _Headers(request.scope["headers"])

    def _proof(self, peer: Peer, request: HttpRequest | None = None) -> AuthenticatedClient:
        """Return the client of a request, with its proof.

        Raises:
            HttpError: its token was revoked while the request arrived.
        """
        proof = self._hub.clients.proof(peer.name, peer.key)
        if proof is None and self._authority is not None and request is not None:
            raise self._authority.no_client(_target(request))
        if proof is None:
            headers = {"www-authenticate": "Bearer"}
            raise HttpError(401, "unauthorized", "the token is not valid", headers=headers)
        return proof

    def _queue(self) -> EventQueue:
        return EventQueue(self._hub.settings.limits.queued)


class _RefusedError(RpcError):
    """A message is not accepted now, or not from this client."""

    def __init__(self, status: int, error: RpcError) -> None:
        super().__init__(error.code, error.message, error.data)
        self.status = status


def _refusal(error: RpcError, id: RequestId | None = None) -> HttpResponse:
    status = error.status if isinstance(error, _RefusedError) else 400
    headers = {"retry-after": _RETRY_SECONDS} if status == _BUSY else {}
    return _json(failure(id, error), status, headers)


class _Headers:
    """The headers of a request that the protocol defines."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.values: dict[str, list[str]] = {}
        """The values of each header of the protocol, by its name in lower case."""
        self.takes_stream = True
        for name, value in raw:
            if name.startswith(b"mcp-") or name == b"last-event-id":
                self.values.setdefault(name.decode("ascii"), []).append(
                    value.decode("latin-1").strip(" \t")
                )
            elif name == b"accept":
                self.takes_stream = any(media_type in value for media_type in _STREAM_TYPES)

    def one(self, name: str) -> str | None:
        """Return the value of a header.

        Raises:
            RpcError: it occurs more than once.
        """
        values = self.values.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise RpcError(HEADER_MISMATCH, f"header mismatch: `{name}` is there more than once")
        return values[0]


class _Answer(HttpResponse):
    """The answer to a request while it is made: JSON, or a stream of events.

    With `session`, a stream can be resumed after its connection broke. An answer that nobody can
    read any more is cancelled.
    """

    def __init__(
        self,
        work: Work,
        scopes: Sequence[anyio.CancelScope],
        headers: _Headers,
        make_queue: Callable[[], EventQueue],
        session: HttpSession | None = None,
        *,
        id: RequestId | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._work = work
        self._scopes = scopes
        self._takes_stream = headers.takes_stream
        self._make_queue = make_queue
        self._session = session
        self._id = id
        self._on_end = on_end
        self._stream: _Stream | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        status, answer = 200, None

        def notify(message: bytes, key: str) -> None:
            if self._stream is None:
                self._stream = self._open_stream()
                assert connection.tasks is not None, "a request was made"
                connection.tasks.start_soon(self._stream.write, scope, receive, send)
            self._stream.put(message.decode("ascii"), key)

        connection.on_gone.add(self._leave)
        try:
            if connection.gone.is_set():
                self._leave()
            answer = await self._work(notify if self._takes_stream else unheard)
        except RpcError as error:
            status, answer = _STATUSES.get(error.code, 200), failure(self._id, error)
        finally:
            connection.on_gone.discard(self._leave)
            self._on_end()
            if self._stream is not None:
                if answer is not None:
                    self._stream.put(answer.decode("ascii"), "")
                self._stream.end()
        if self._stream is not None:
            await self._stream.written.wait()
        else:
            response = HttpResponse(status_code=202) if answer is None else _json(answer, status)
            await response(scope, receive, send)

    def _open_stream(self) -> "_Stream":
        queue, session = self._make_queue(), self._session
        if session is None:
            return _Stream(
                lambda text, key: queue.put(ServerEvent(text, key=key)),
                queue.close,
                EventStreamResponse(queue),
            )
        stream = session.open_stream()
        stream.attach(queue)
        stream.on_unread = lambda: self._expect_reader(stream)
        if session.session.version in _PRIMED:
            stream.put("")
        response = EventStreamResponse(queue, lambda: stream.detach(queue))
        return _Stream(stream.put, lambda: session.end_stream(stream), response)

    def _expect_reader(self, stream: SessionStream) -> None:
        """Wait a while for the client to resume a stream whose connection is lost."""

        def decide() -> None:
            if not stream.is_read:
                self._cancel()

        asyncio.get_running_loop().call_later(_RESUME_SECONDS, decide)

    def _leave(self) -> None:
        if self._session is None or self._stream is None:
            self._cancel()

    def _cancel(self) -> None:
        for scope in self._scopes:
            scope.cancel()


@frozen
class _Stream:
    """A stream of events as the answer to a request."""

    put: Callable[[str, str], None]
    end: Callable[[], None]
    response: EventStreamResponse
    written: anyio.Event = field(default_factory=anyio.Event)

    async def write(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.response(scope, receive, send)
        finally:
            self.written.set()


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(body, status, headers, JSON_TYPE)


def _no_stream() -> HttpError:
    message = "the answer is a stream of events, and `Accept` does not have it"
    return HttpError(406, "not_acceptable", message, hint="accept `text/event-stream`")


def _admit(request: ClientRequest, session: ClientSession) -> anyio.CancelScope:
    """Return the scope of a request.

    Raises:
        RpcError: another request has the same id.
        _RefusedError: it is not accepted now.
    """
    try:
        return session.admit(request)
    except RpcError as error:
        if error.code == INTERNAL_ERROR:
            raise _RefusedError(_BUSY, error) from error
        raise


def _check_version(version: str | None) -> None:
    """Check the header of a message of the handshake era.

    Raises:
        RpcError: the revision is not supported.
    """
    if version is not None and version != MODERN and version not in HANDSHAKE:
        raise _version_error(version)


def _version_error(version: str) -> RpcError:
    data: JsonObject = {"supported": [MODERN, *HANDSHAKE], "requested": version}
    return RpcError(UNSUPPORTED_VERSION, "unsupported protocol version", data)


def _ignore(message: bytes) -> None:
    """Discard a notification: a stateless client is notified only within its requests."""


def _target(request: HttpRequest) -> Target:
    host = ",".join(request.headers.getlist("host"))
    return Target(request.scope["path"], host, connection_of(request.scope).is_tls)


def _at_end_of_token(peer: Peer, end: Callable[[], object]) -> asyncio.TimerHandle | None:
    """Call this when the token of a client expires, to end a stream that would outlive it."""
    if peer.until is None:
        return None
    return asyncio.get_running_loop().call_at(peer.until, end)


def _peer_object(peer: Peer) -> JsonObject:
    """Return the peer for the audit log."""
    about = peer.about or {}
    if peer.uid is None:
        return {"transport": "http", "address": peer.address, **about}
    user = _user(peer.uid)
    return {"transport": "http", "uid": peer.uid, "pid": peer.pid, "user": user, **about}


@cache
def _user(uid: int) -> str:
    return name_of_user(uid)
