"""HTTP connection: its requests, parsed by httptools, and their answers.

Framing that two readers could understand differently is refused; a request has to arrive whole
within a time, and an answer has to be read. A connection that is refused is read to its end for a
moment, so that the client sees the answer and not a reset.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from http import HTTPStatus
from urllib.parse import unquote

import anyio
import httptools
from anyio.abc import TaskGroup
from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from aish.net.listen.access import AccessRecord, ServerLimits
from aish.net.listen.guards import Checked, Guards, look_up_bearer
from aish.net.listen.http_error import HttpError
from aish.net.listen.routes import ConnectionState, error_response
from aish.system.task_group import task_group

_VERSIONS = frozenset({"1.0", "1.1"})
_MOST_DRAINED = 1 << 20
_LINGER_SECONDS = 2.0
_ENDING_SECONDS = 1.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS = frozenset({204, 304})
_LINE_END = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers of every answer to a request that was read, unless the answer has its own."""


class Connections:
    """All connections of a server, and what they share."""

    def __init__(
        self,
        guards: Guards,
        answers: TaskGroup,
        limits: ServerLimits,
        log: Callable[[AccessRecord], None],
        report: Callable[[Exception], None],
    ) -> None:
        self.guards = guards
        self.answers = answers
        self.limits = limits
        self.log = log
        self.report = report
        self.served: set[HttpConnection] = set()
        self.refused: set[HttpConnection] = set()
        self.is_closing = False

    def make_room(self) -> bool:
        """Return true if one more may connect; closes the one that deserves its place least.

        That is one without a credential, and without a request that is being answered, for the
        longest time. A connection that answers a request is not closed.
        """
        if len(self.served) < self.limits.connections:
            return True
        waiting = [one for one in self.served if not one.is_answering]
        if not waiting:
            return False
        min(waiting, key=lambda one: (one.peer_state.trusted, one.since)).close_now()
        return True

    async def drain(self) -> None:
        """Let answers end within their time, then close all connections."""
        self.is_closing = True
        left = [*self.served, *self.refused]
        for one in left:
            one.drain()
        with anyio.move_on_after(self.limits.drain):
            for one in left:
                await one.peer_state.gone.wait()
        for one in left:
            one.transport.abort()
        with anyio.move_on_after(_ENDING_SECONDS):
            for one in left:
                await one.peer_state.gone.wait()


class _Part(Enum):
    """Part of a request that is received next."""

    NOTHING = "nothing has come"
    HEAD = "head"
    BODY = "body"


class _FramingError(Exception):
    """The head of a request is refused."""


class _Exchange:
    """A request and its answer."""

    def __init__(self, connection: "HttpConnection", scope: Scope, *, keeps_alive: bool) -> None:
        self.scope = scope
        self.checked = Checked(connection.peer_state.peer, scope["path"])
        self.body = bytearray()
        self.error: Exception | None = None
        self.status = 0
        self.keeps_alive = keeps_alive
        self.is_begun = False
        self.is_answered = False
        self._connection = connection
        self._is_chunked = False
        self._is_read = False
        self._head = b""

    async def answer(self) -> None:
        """Answer the request, or refuse it."""
        shared, error, code, reason = self._connection.shared, self.error, "", ""
        if error is None:
            assert self.checked.route is not None, "the request was checked"
            request = _WholeRequest(self.scope, self._receive, bytes(self.body))
            try:
                await look_up_bearer(self.scope, self.checked)
                response = await self.checked.route.handler(request, self.checked.peer)
            except Exception as failure:  # ruff: ignore[blind-except] - it ends no server
                error = failure
        if error is not None:
            if not isinstance(error, HttpError):
                shared.report(error)
                error = HttpError(500, "internal", "the server has failed at this request")
            code, reason, response = error.code, error.message, error_response(error)
        try:
            await response(self.scope, self._receive, self._send)
        except Exception as fault:  # ruff: ignore[blind-except] - the same, while a stream is written
            shared.report(fault)
            self._connection.transport.abort()
        finally:
            if self.status:
                method, scope = self.scope["method"], self.checked.scope
                path, peer = self.checked.path, self.checked.peer
                shared.log(AccessRecord(method, path, scope, peer, self.status, code, reason))
            if not self.is_answered:
                self._connection.transport.close()

    async def _receive(self) -> Message:
        """The body, then what follows: the end of the connection."""
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": bytes(self.body), "more_body": False}
        await self._connection.peer_state.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        """Send a part of the answer; the head is sent in one packet with the first of the body."""
        connection = self._connection
        if not connection.writable.is_set():
            await connection.writable.wait()
        is_head = message["type"] == "http.response.start"
        if is_head:
            self.status = message["status"]
        if connection.transport.is_closing() or connection.is_lingering:
            return
        if is_head:
            self._head = self._encode_head(message["headers"])
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._is_chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body += b"0\r\n\r\n" if is_last else b""
        data, self._head = self._head + body, b""
        if data:
            connection.transport.write(data)
        if is_last:
            self.is_answered = True
            connection.on_answered()

    def _encode_head(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        pairs = list(headers)
        there = {name for name, _ in pairs}
        pairs += [pair for pair in _HEADERS if pair[0] not in there]
        has_body = self.scope["method"] != "HEAD" and self.status not in _BODILESS
        # What has no length, and is not in chunks, ends with its connection.
        self._is_chunked = (
            has_body and b"content-length" not in there and self.scope["http_version"] != "1.0"
        )
        if self._is_chunked:
            pairs.append((b"transfer-encoding", b"chunked"))
        if not self.keeps_alive:
            pairs.append((b"connection", b"close"))
        return _encode_head(self.status, pairs)


class _WholeRequest(Request):
    """A request whose body has come."""

    def __init__(self, scope: Scope, receive: Receive, body: bytes) -> None:
        super().__init__(scope, receive)
        self._whole = body

    async def body(self) -> bytes:
        return self._whole


class HttpConnection(asyncio.Protocol):
    """A connection; with `refusal`, every request gets that answer.

    Serves one request at a time: if more arrives before the answer is complete, it is not read,
    and the connection ends after that answer.
    """

    transport: asyncio.Transport

    def __init__(
        self, shared: Connections, peer_state: ConnectionState, refusal: HttpError | None = None
    ) -> None:
        self.shared = shared
        self.peer_state = peer_state
        self.loop = asyncio.get_running_loop()
        self.since = self.loop.time()
        self.writable = asyncio.Event()
        self.is_lingering = False
        self._limits = shared.limits
        self._refusal = refusal
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._exchange: _Exchange | None = None
        self._has_request = asyncio.Event()
        self._begun: _Exchange | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._problem: HttpError | None = None
        self._part = _Part.NOTHING
        self._head = 0
        self._received = 0
        self._is_ignored = False
        self._is_head_request = False
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._is_idle = False
        self._idle_until = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None

    @property
    def is_answering(self) -> bool:
        """True if a whole request is being answered."""
        is_whole = self._deadline is None and not self.transport.is_closing()
        return is_whole and self._pending is not None

    @property
    def _pending(self) -> _Exchange | None:
        """The request that has no whole answer yet."""
        exchange = self._exchange
        return None if exchange is None or exchange.is_answered else exchange

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the time to receive a request runs."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.writable.set()
        self.peer_state.abort = transport.abort
        if self.shared.is_closing:
            transport.close()  # it was accepted just before the server ended
        elif self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self.shared.served.add(self)
            self.shared.answers.start_soon(self._answer_all)
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, by either side."""
        del exc
        self.shared.served.discard(self)
        self.shared.refused.discard(self)
        for timer in (self._deadline, self._idle_timer, self._write_deadline, self._ending):
            if timer is not None:
                timer.cancel()
        self._parser = None  # it refers to this object
        self.writable.set()
        self.peer_state.gone.set()
        self._has_request.set()
        for tell in tuple(self.peer_state.on_gone):
            tell()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, or let it go where the connection was refused."""
        if self._is_ignored or self._parser is None:
            return
        if self.is_lingering:
            self._received += len(data)
            if self._received > _MOST_DRAINED:
                self.transport.abort()
            return
        if self._part is not _Part.BODY:
            if self.is_answering:
                self._ignore_rest()
                return
            self._head += len(data)
            self._is_idle = False
        if not self._parse(self._parser, data):
            return
        is_head = self._part is not _Part.BODY and not self.is_lingering
        if is_head and self._head > self._limits.head:
            self._refuse(_too_long(self._limits.head))
        elif self._part is not _Part.NOTHING or (self._pending is None and not self._is_idle):
            self._expect_request()  # the rest of it

    def _parse(self, parser: httptools.HttpRequestParser, data: bytes) -> bool:
        """Parse what has come; false where nothing more is to be done."""
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return False  # not taken: the request is answered
        except httptools.HttpParserError:
            self._on_invalid()
            return False
        except Exception as error:  # ruff: ignore[blind-except] - asyncio would write it to stderr
            self.shared.report(error)
            self.transport.abort()
            return False
        return not self._is_ignored

    def pause_writing(self) -> None:
        """The client reads more slowly than is written."""
        self.writable.clear()
        self._stop_write_deadline()
        self._write_deadline = self.loop.call_later(self._limits.write, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        self.writable.set()
        self._stop_write_deadline()

    def on_message_begin(self) -> None:
        """The first byte of a request is there."""
        if self._pending is not None:
            self._ignore_rest()
            return
        self._is_idle = False
        self._part = _Part.HEAD
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """A piece of its target is there."""
        if not self._is_ignored:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of it is there."""
        if not self._is_ignored:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Its head is there.

        Raises:
            _FramingError: it is refused.
        """
        if self._is_ignored:
            return
        assert self._parser is not None, "it calls this"
        method, version = self._parser.get_method(), self._parser.get_http_version()
        self._is_head_request = method == b"HEAD"
        self._problem = self._problem_of_head(version)
        if self._problem is not None:
            raise _FramingError
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        scope = {
            "type": "http",
            "http_version": version,
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
            "state": {"connection": self.peer_state},
        }
        self._part = _Part.BODY
        self._head = 0
        self._received = 0
        # What follows an upgrade could be anything.
        keeps_alive = version != "1.0" and self._parser.should_keep_alive()
        keeps_alive = keeps_alive and not self._parser.should_upgrade()
        self._exchange = exchange = _Exchange(self, scope, keeps_alive=keeps_alive)
        try:
            self.shared.guards.check(scope, exchange.checked)
        except Exception as error:  # ruff: ignore[blind-except] - it is the answer, or reported
            self._begin(exchange, error)
            return
        scope["path_params"] = exchange.checked.parameters
        for name, value in self._headers:
            if name == b"expect" and value.lower() == b"100-continue":
                self.transport.write(_CONTINUE)
                break

    def on_body(self, body: bytes) -> None:
        """A part of its body is there."""
        exchange = self._exchange
        if self._is_ignored or exchange is None:
            return
        self._received += len(body)
        if not exchange.is_begun:
            exchange.body += body
            try:
                self.shared.guards.check_size(self._received)
            except HttpError as error:
                self._begin(exchange, error)
        # The answer was given before the body was read: an end of it has to be in sight.
        elif self._received > self._limits.body + _MOST_DRAINED:
            self.transport.abort()

    def on_message_complete(self) -> None:
        """All of it is there."""
        if self._is_ignored:
            return
        self._part = _Part.NOTHING
        self._stop_deadline()
        exchange = self._exchange
        assert exchange is not None, "its head is complete"
        if not exchange.is_begun:
            self._begin(exchange)
        elif exchange.is_answered:
            self._expect_another()

    def on_answered(self) -> None:
        """The answer was written: wait for the next request, or close."""
        self.since = self.loop.time()
        self._is_head_request = False
        exchange = self._exchange
        if exchange is not None and not exchange.keeps_alive:
            self.transport.close()
        elif self._part is _Part.NOTHING:
            self._expect_another()

    def drain(self) -> None:
        """Close after the answer that is being given, or now."""
        if self.is_answering:
            self._end_with_answer()
        else:
            self.close_now()

    def close_now(self) -> None:
        """Close without a word; what was written is still sent."""
        self._stop_deadline()
        self.shared.served.discard(self)
        self.transport.close()
        self._abort_soon()

    def _begin(self, exchange: _Exchange, error: Exception | None = None) -> None:
        """Answer a request, when what has come is parsed."""
        exchange.is_begun, exchange.error = True, error
        self._begun = exchange
        self._has_request.set()

    async def _answer_all(self) -> None:
        """Answer one request after the other, in one task: to start one for each takes longer."""
        try:
            async with task_group() as self.peer_state.tasks:
                await self._answer_each()
        except Exception as fault:  # ruff: ignore[blind-except] - a stream's fault ends no server
            self.shared.report(fault)
            self.transport.abort()

    async def _answer_each(self) -> None:
        while not self.peer_state.gone.is_set():
            await self._has_request.wait()
            self._has_request.clear()
            exchange, self._begun = self._begun, None
            if exchange is not None:
                await exchange.answer()

    def _on_invalid(self) -> None:
        """Refuse what cannot be parsed."""
        if self._part is _Part.NOTHING and self.is_answering:
            self._ignore_rest()  # what follows the request that is answered
        elif self._head > self._limits.head:
            self._refuse(_too_long(self._limits.head))
        else:
            said = "Invalid HTTP request received"
            self._refuse(self._problem or HttpError(400, "bad_request", said))

    def _expect_request(self) -> None:
        """Let the time run that a request has to arrive, unless it does already."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.receive, self._on_deadline)

    def _expect_another(self) -> None:
        """Let the time run that a connection may wait for another request."""
        self._stop_deadline()
        self._is_idle = True
        self._idle_until = self.loop.time() + self._limits.idle
        if self._idle_timer is None:  # it goes on from one request to the next
            self._idle_timer = self.loop.call_at(self._idle_until, self._on_idle)

    def _on_idle(self) -> None:
        self._idle_timer = None
        if not self._is_idle:
            return
        if self.loop.time() < self._idle_until:
            self._idle_timer = self.loop.call_at(self._idle_until, self._on_idle)
        else:
            self.close_now()

    def _end_with_answer(self) -> None:
        if self._exchange is not None:
            self._exchange.keeps_alive = False

    def _ignore_rest(self) -> None:
        """Answer the request that is there, and close."""
        self._is_ignored = True
        self._end_with_answer()
        self._stop_deadline()

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._part is _Part.NOTHING and not self._head:
            self.close_now()  # it has asked for nothing
            return
        seconds = f"{self._limits.receive:g}"
        message = f"the request did not arrive within {seconds} seconds"
        self._refuse(HttpError(408, "timeout", message))

    def _refuse(self, error: HttpError) -> None:
        self._stop_deadline()
        pending = self._pending
        if pending is not None and pending.status:
            self.transport.abort()
            return
        if self._part is not _Part.BODY or pending is not None:
            self._write_error(error)
            self.shared.log(
                AccessRecord("", "", "", self.peer_state.peer, error.status, error.code)
            )
        self._linger()

    def _write_error(self, error: HttpError) -> None:
        response = error_response(error)
        headers = [*response.raw_headers, (b"connection", b"close")]
        body = b"" if self._is_head_request else response.body
        self.transport.write(_encode_head(error.status, headers) + bytes(body))

    def _problem_of_head(self, version: str) -> HttpError | None:
        """Return the problem of a request's head, as far as the parser lets it pass."""
        size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > self._limits.head:
            return _too_long(self._limits.head)
        names = [name for name, _ in self._headers]
        message: str | None = None
        if version not in _VERSIONS:
            message = "the request is not HTTP/1.1"
        elif names.count(b"host") > 1:
            message = "the request names two hosts"
        elif names.count(b"content-length") > 1:
            message = "the request has two lengths"
        elif b"transfer-encoding" in names and b"content-length" in names:
            message = "the request has a length and is chunked"
        elif b"transfer-encoding" in names and version == "1.0":
            message = "a request of HTTP/1.0 cannot be chunked"
        elif not self._url.startswith(b"/"):
            message = "the target of the request is not a path"
        return None if message is None else HttpError(400, "bad_request", message)

    def _linger(self) -> None:
        """Read and forget for a moment: a socket closed with unread data loses what was written."""
        self.shared.served.discard(self)
        if len(self.shared.refused) >= self._limits.connections:
            self.transport.close()
            self.transport.abort()
            return
        self.shared.refused.add(self)
        self.is_lingering = True
        self._received = 0
        self._abort_soon()
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client has gone already
                self.transport.write_eof()
        else:
            self.transport.close()

    def _abort_soon(self) -> None:
        if self._ending is None:
            self._ending = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _stop_deadline(self) -> None:
        self._is_idle = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


def _encode_head(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The first line of an answer, and its headers.

    Raises:
        ValueError: a header would end its line.
    """
    if _LINE_END.search(b"".join([text for pair in headers for text in pair])):
        raise ValueError("a header of an answer has a control character")
    lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
    return _first_line(status) + lines + b"\r\n"


@cache
def _first_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()


def _too_long(most: int) -> HttpError:
    said = f"the head of the request is longer than {most} bytes"
    return HttpError(431, "head_too_large", said)
