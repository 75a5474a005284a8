"""A server of text messages over WebSockets on an open socket, within a loop that runs.

Framing is that of the library `websockets`, without its I/O; who may connect is checked by the
rules of every server here (`request_checks`). Nothing is compressed. Unread messages
wait in bounded memory; beyond that they are dropped and counted. A client is never waited for.

A page cannot set headers on a WebSocket. It gives its token as a second subprotocol,
`bearer.` and the token in base64url without padding: a URL ends up in logs and histories, and a
token in a first message would come over a connection that is open already.
"""

import asyncio
import base64
import binascii
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import field
from http import HTTPStatus
from urllib.parse import urlsplit

import anyio
from websockets.datastructures import Headers, MultipleValuesError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from aish.core.frozen import frozen, slotted
from aish.net.listen.access import Access, Peer
from aish.net.listen.http_error import HttpError, error_document
from aish.net.listen.request_checks import (
    Listening,
    bearer_token,
    check_host,
    check_origin,
    check_url,
)
from aish.net.listen.server import peer_of
from aish.net.listen.sockets import Listener, accept_connections

_BEARER = "bearer."
_MOST_OFFERED = 16
_LINGER_SECONDS = 2.0
_ENDING_SECONDS = 1.0
_SILENT = logging.getLogger("aish.net.listen.websocket")
_SILENT.setLevel(logging.CRITICAL + 1)
_SILENT.propagate = False


@frozen
class SocketLimits:
    """Bounds of a server of WebSockets: sizes in bytes, times in seconds."""

    clients: int = 64
    head: int = 16 << 10
    message: int = 1 << 20
    waiting: int = 256
    """Messages that wait for a client."""
    waiting_bytes: int = 8 << 20
    receive: float = 10.0
    """From the start of the connection to the end of its handshake, and for each message."""
    write: float = 30.0
    """How long a client may read nothing of what waits for it."""
    ping: float = 20.0
    """How often a client is asked whether it is there."""
    frames: int = 20_000
    """How many frames a client may send in that time: each is answered."""


@frozen
class WebSocketService:
    """Service that talks to its clients; none of it waits.

    `lost` makes the message that tells a client how many messages it did not get.
    """

    opened: "Callable[[SocketClient], None]"
    message: "Callable[[SocketClient, str], None]"
    closed: "Callable[[SocketClient], None]"
    lost: Callable[[int], bytes]


@slotted
class SocketServer:
    """Takes clients at `path`; pages have to offer the subprotocol `protocol`.

    `report` is told of faults of a handler and of the system. `clients` were let in; the handshake
    of those in `pending` has not ended, or they were refused, the oldest first.
    """

    path: str
    protocol: str
    listener: Listener
    access: Access
    conversation: WebSocketService
    report: Callable[[Exception], None]
    limits: SocketLimits = SocketLimits()
    clients: "dict[SocketClient, None]" = field(default_factory=dict)
    pending: "dict[SocketClient, None]" = field(default_factory=dict)

    @asynccontextmanager
    async def serve_clients(self) -> AsyncGenerator[None]:
        """Take clients until the block ends; then say goodbye and close all connections."""
        async with anyio.create_task_group() as accepting:
            accepting.start_soon(self._accept)
            try:
                yield
            finally:
                accepting.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._drain()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        async for connection in accept_connections(self.listener, self.report):
            try:
                peer = peer_of(connection)
                await loop.connect_accepted_socket(
                    lambda peer=peer: SocketClient(self, peer),  # type: ignore[misc]  # as bound now
                    connection,
                )
            except OSError:  # the client has gone
                connection.close()
            except BaseException:
                connection.close()
                raise

    async def _drain(self) -> None:
        self.listener.socket.close()
        left = [*self.clients, *self.pending]
        for one in left:
            one.leave()
        with anyio.move_on_after(_ENDING_SECONDS):
            for one in left:
                await one.gone.wait()
        for one in left:
            one.abort()
        with anyio.move_on_after(_ENDING_SECONDS):
            for one in left:
                await one.gone.wait()


class SocketClient(asyncio.Protocol):
    """Connection of a client: its handshake, then messages in both directions."""

    def __init__(self, server: SocketServer, peer: Peer) -> None:
        self.peer = peer
        self.gone = anyio.Event()
        self.dropped = 0
        """Messages that it did not get because it read too slowly."""
        self._server = server
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._protocol = _Frames(self._take_events, Subprotocol(server.protocol), server.limits)
        self._transport: asyncio.Transport | None = None
        self._head = 0
        self._is_paused = False
        self._is_heard = True
        self._frames = 0
        self._told_dropped = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._parts: list[bytes] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._keepalive: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """True if messages can be sent."""
        return self._protocol.state is OPEN and self._transport is not None

    def send(self, text: bytes) -> bool:
        """Send a message, or let it wait; whether it was not dropped."""
        if not self.is_open:
            return False
        if not self._is_paused and not self._waiting:
            self._write_text(text)
            return True
        is_full = len(self._waiting) >= self._limits.waiting
        if is_full or self._waiting_bytes + len(text) > self._limits.waiting_bytes:
            self.dropped += 1
            return False
        self._waiting.append(text)
        self._waiting_bytes += len(text)
        return True

    def leave(self) -> None:
        """Close the connection because the server ends."""
        if self.is_open:
            self._protocol.send_close(CloseCode.GOING_AWAY, "the server has ended")
            self._flush()
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection off, with what was not sent yet."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the time for the handshake runs."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        pending = self._server.pending
        while len(pending) >= self._limits.clients:
            oldest = next(iter(pending))
            del pending[oldest]
            oldest.abort()
        pending[self] = None
        self._deadline = self._loop.call_later(self._limits.receive, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """End, by either side."""
        del exc
        for timer in (self._deadline, self._write_deadline, self._keepalive, self._ending):
            if timer is not None:
                timer.cancel()
        self._transport = None
        self._waiting.clear()
        self._server.pending.pop(self, None)
        if self in self._server.clients:
            del self._server.clients[self]
            self._call_handler(lambda: self._server.conversation.closed(self))
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self._is_heard = True
        if self in self._server.pending and not self._protocol.eof_sent:
            self._head += len(data)
            if self._head > self._limits.head:
                message = f"the head of the request is longer than {self._limits.head} bytes"
                self._refuse(HttpError(431, "head_too_large", message))
                return
        self._protocol.receive_data(data)
        self._take_events()
        self._flush()
        # What the parser holds back is the beginning of a frame.
        is_under_way = self._parts or self._protocol.reader.buffer
        if is_under_way and self._deadline is None and self.is_open:
            self._deadline = self._loop.call_later(self._limits.receive, self._too_slow)

    def eof_received(self) -> None:
        """The client sends no more: the connection ends."""
        self._protocol.receive_eof()
        self._flush()

    def pause_writing(self) -> None:
        """The client reads more slowly than is written; what it sends is not read meanwhile."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._write_deadline = self._loop.call_later(self._limits.write, self.abort)

    def resume_writing(self) -> None:
        """It has caught up: what waits is sent."""
        self._is_paused = False
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        while self._waiting and self.is_open and not self._is_paused:
            text = self._waiting.popleft()
            self._waiting_bytes -= len(text)
            self._write_text(text)
        if self.dropped > self._told_dropped and self.is_open and not self._is_paused:
            self._told_dropped = self.dropped
            self._write_text(self._server.conversation.lost(self.dropped))

    def _write_text(self, text: bytes) -> None:
        self._protocol.send_text(text)
        self._flush()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None:
            self._protocol.data_to_send()
            return
        for data in self._protocol.data_to_send():
            if data:
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()
        if self._protocol.close_expected() and self._ending is None:
            # A socket that is closed with unread data loses what was written.
            self._ending = self._loop.call_later(_LINGER_SECONDS, self.abort)

    def _shake_hands(self, request: Request) -> None:
        try:
            self._check(request)
        except HttpError as error:
            self._refuse(error)
            return
        except MultipleValuesError:
            self._refuse(HttpError(400, "bad_request", "a header was sent twice"))
            return
        response = self._protocol.accept(request)
        response.headers["Cache-Control"] = "no-store"
        self._protocol.send_response(response)
        if not self.is_open:
            return
        self._end_deadline()
        del self._server.pending[self]
        self._server.clients[self] = None
        self._keepalive = self._loop.call_later(self._limits.ping, self._ask)
        self._flush()
        self._call_handler(lambda: self._server.conversation.opened(self))

    def _check(self, request: Request) -> None:
        """The rules of every server, in their order; then whether there is room.

        Raises:
            HttpError: the client is refused.
        """
        server, headers = self._server, request.headers
        listening = Listening(server.listener.address)
        url = urlsplit(request.path)
        check_host(headers.get_all("Host"), listening, server.access)
        check_url(url.path, url.query, server.access)
        check_origin(headers.get_all("Origin"), listening, server.access)
        given = [*headers.get_all("Authorization"), *_token_of_subprotocols(headers)]
        token = bearer_token(given, server.access)
        if request.path != server.path:
            raise HttpError(404, "not_found", "there is nothing at this path")
        if len(server.clients) >= self._limits.clients:
            message = f"there are {self._limits.clients} clients, and no more may connect"
            raise HttpError(503, "busy", message, headers={"retry-after": "1"})
        self.peer = Peer("tcp", self.peer.address, token.name, token.scopes, key=token.key)

    def _refuse(self, error: HttpError) -> None:
        if self._protocol.eof_sent:
            return
        self._end_deadline()
        self._protocol.send_response(_response(error))
        self._flush()

    def _take_events(self) -> None:
        """Handle what the parser has read; the time for a message ends with its last frame."""
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame) and self.is_open:
                self._take(event)
                if not self._parts:
                    self._end_deadline()

    def _take(self, frame: Frame) -> None:
        """A part of a message, or a whole one."""
        self._frames += 1
        if self._frames > self._limits.frames:
            self._protocol.fail(CloseCode.POLICY_VIOLATION, "too many messages")
            return
        if frame.opcode is Opcode.BINARY:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "messages are text")
            return
        if frame.opcode not in {Opcode.TEXT, Opcode.CONT}:
            return
        self._parts.append(bytes(frame.data))
        if len(self._parts) > _MOST_PARTS:
            self._parts = [b"".join(self._parts)]
        if not frame.fin:
            return
        whole, self._parts = b"".join(self._parts), []
        try:
            text = whole.decode("utf-8")
        except UnicodeDecodeError:
            self._protocol.fail(CloseCode.INVALID_DATA, "messages are UTF-8")
            return
        self._call_handler(lambda: self._server.conversation.message(self, text))

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        seconds = f"{self._limits.receive:g}"
        if self.is_open:
            said = f"a message did not arrive within {seconds} seconds"
            self._protocol.fail(CloseCode.POLICY_VIOLATION, said)
            self._flush()
        elif self._head:
            said = f"the request did not arrive within {seconds} seconds"
            self._refuse(HttpError(408, "timeout", said))
        else:
            self.abort()  # it has asked for nothing

    def _ask(self) -> None:
        """See whether the client is there; one that reads nothing has a time of its own."""
        if not self._is_heard and not self._is_paused:
            self.abort()
            return
        self._frames = 0
        self._keepalive = self._loop.call_later(self._limits.ping, self._ask)
        if self.is_open and not self._is_paused:
            self._is_heard = False
            self._protocol.send_ping(b"")
            self._flush()

    def _call_handler(self, handle: Callable[[], None]) -> None:
        try:
            handle()
        except Exception as error:  # ruff: ignore[blind-except] - a handler's fault ends no server
            self._server.report(error)
            self.abort()


_MOST_PARTS = 1_000


class _Frames(ServerProtocol):
    """Has each frame handled before the next one is read, which may be the last."""

    def __init__(
        self, take_events: Callable[[], None], own: Subprotocol, limits: SocketLimits
    ) -> None:
        # Our own subprotocol, if the client knows it: never the one that has the token.
        super().__init__(
            select_subprotocol=lambda _, offered: own if own in offered else None,
            max_size=limits.message,
            logger=_SILENT,
        )
        self._take_events = take_events

    def recv_frame(self, frame: Frame) -> None:
        """Answer a frame of control, unless the connection has ended."""
        self._take_events()
        if not self.eof_sent:
            super().recv_frame(frame)
            self._take_events()


def _token_of_subprotocols(headers: Headers) -> list[str]:
    """The token among the subprotocols that a page offers, as `Authorization` would have it."""
    offered = ",".join(headers.get_all("Sec-WebSocket-Protocol")).split(",", _MOST_OFFERED)
    found = []
    for one in offered:
        word = one.strip()
        if word.startswith(_BEARER):
            encoded = word.removeprefix(_BEARER)
            try:
                raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
            except (binascii.Error, ValueError):
                raw = b""
            found.append(f"Bearer {raw.decode('latin-1')}")
    return found


def _response(error: HttpError) -> Response:
    body = json.dumps(error_document(error)).encode()
    fields: Mapping[str, str] = {
        "Connection": "close",
        "Content-Length": str(len(body)),
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        **error.headers,
    }
    return Response(error.status, HTTPStatus(error.status).phrase, Headers(fields), body)
