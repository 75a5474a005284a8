"""A server of text messages over WebSockets on an open socket, within a loop that runs (K75, X11).

Framing is that of the library `websockets`, without its I/O; who may connect is checked by the
rules of every server here (`request_checks`). Nothing is compressed. What a client does not read
waits in bounded memory, and is dropped and counted beyond that: nobody waits for a client.

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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
from websockets.datastructures import Headers, MultipleValuesError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from aish.core.frozen import frozen
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
from aish.net.listen.sockets import Listener, accepted

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
class Conversation:
    """What a service does with its clients; none of it waits.

    `lost` makes the message that tells a client how many messages it did not get.
    """

    opened: "Callable[[SocketClient], None]"
    message: "Callable[[SocketClient, str], None]"
    closed: "Callable[[SocketClient], None]"
    lost: Callable[[int], bytes]


class SocketServer:
    """A running server."""

    def __init__(
        self,
        path: str,
        protocol: str,
        listener: Listener,
        access: Access,
        conversation: Conversation,
        limits: SocketLimits,
        report: Callable[[Exception], None],
    ) -> None:
        self.address = listener.address
        """Where it listens; the port is a real one."""
        self.path = path
        self.protocol = Subprotocol(protocol)
        self.listening = Listening(listener.address)
        self.access = access
        self.conversation = conversation
        self.limits = limits
        self.report = report
        self.clients: dict[SocketClient, None] = {}
        """Those that were let in."""
        self.pending: dict[SocketClient, None] = {}
        """Those whose handshake has not ended, and those that were refused, the oldest first."""
        self._listener = listener

    async def accept(self) -> None:
        """Take connections until this is cancelled, or the socket is of no use any more."""
        loop = asyncio.get_running_loop()
        async for connection in accepted(self._listener, self.report):
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

    async def drain(self) -> None:
        """Close the socket, say goodbye, and close all connections."""
        self._listener.socket.close()
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


@asynccontextmanager
async def serve_websockets(
    path: str,
    protocol: str,
    listener: Listener,
    access: Access,
    conversation: Conversation,
    *,
    report: Callable[[Exception], None],
    limits: SocketLimits | None = None,
) -> AsyncGenerator[SocketServer]:
    """Take clients at `path` until the block ends; pages have to offer the subprotocol `protocol`.

    `report` is told of faults of a handler and of the system.
    """
    bounds = limits or SocketLimits()
    server = SocketServer(path, protocol, listener, access, conversation, bounds, report)
    async with anyio.create_task_group() as accepting:
        accepting.start_soon(server.accept)
        try:
            yield server
        finally:
            accepting.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await server.drain()


class SocketClient(asyncio.Protocol):
    """One connection: its handshake, then messages in both directions."""

    def __init__(self, server: SocketServer, peer: Peer) -> None:
        self.peer = peer
        self.gone = anyio.Event()
        self.dropped = 0
        """Messages that it did not get because it read too slowly."""
        self._server = server
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._protocol = ServerProtocol(
            select_subprotocol=_selecting(server.protocol),
            max_size=server.limits.message,
            logger=_SILENT,
        )
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
        """Whether messages can be sent."""
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
            self._guarded(lambda: self._server.conversation.closed(self))
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
        for start in range(0, len(data), _SLICE):
            self._protocol.receive_data(data[start : start + _SLICE])
            for event in self._protocol.events_received():
                if isinstance(event, Request):
                    self._shake_hands(event)
                elif isinstance(event, Frame):
                    self._take(event)
            if self._frames > self._limits.frames and self.is_open:
                self._protocol.fail(CloseCode.POLICY_VIOLATION, "too many messages")
            self._flush()
        self._watch_message()

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
        """Write what the protocol has to say, and see to the end of the connection."""
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
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        del self._server.pending[self]
        self._server.clients[self] = None
        self._keepalive = self._loop.call_later(self._limits.ping, self._ask)
        self._flush()
        self._guarded(lambda: self._server.conversation.opened(self))

    def _check(self, request: Request) -> None:
        """The rules of every server, in their order; then whether there is room.

        Raises:
            HttpError: the client is refused.
        """
        server, headers = self._server, request.headers
        url = urlsplit(request.path)
        check_host(headers.get_all("Host"), server.listening, server.access)
        check_url(url.path, url.query, server.access)
        check_origin(headers.get_all("Origin"), server.listening, server.access)
        given = [*headers.get_all("Authorization"), *_offered_token(headers)]
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
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._protocol.send_response(_response(error))
        self._flush()

    def _take(self, frame: Frame) -> None:
        """A part of a message, or a whole one."""
        self._frames += 1
        if frame.opcode is Opcode.BINARY:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "messages are text")
            return
        if frame.opcode not in {Opcode.TEXT, Opcode.CONT}:
            return
        if not self.is_open:
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
        self._guarded(lambda: self._server.conversation.message(self, text))

    def _watch_message(self) -> None:
        """Let the time run in which a message has to come, while one is on its way."""
        if self in self._server.pending:
            return
        # What the parser holds back is the beginning of a frame.
        is_under_way = self._protocol.current_size is not None or self._protocol.reader.buffer
        if not is_under_way and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif is_under_way and self._deadline is None and self.is_open:
            self._deadline = self._loop.call_later(self._limits.receive, self._too_slow)

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

    def _guarded(self, handle: Callable[[], None]) -> None:
        try:
            handle()
        except Exception as error:  # ruff: ignore[blind-except] - a handler's fault ends no server
            self._server.report(error)
            self.abort()


_MOST_PARTS = 1_000
_SLICE = 4_096
"""Bytes that are parsed at once: frames are counted in between."""


def _selecting(
    own: Subprotocol,
) -> Callable[[ServerProtocol, Sequence[Subprotocol]], Subprotocol | None]:
    """Selects our subprotocol if the client knows it: never the one that has the token."""
    # A function, because the library binds it as a method.
    return lambda _protocol, offered: own if own in offered else None


def _offered_token(headers: Headers) -> list[str]:
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
    return Response(error.status, _PHRASES.get(error.status, "Refused"), Headers(fields), body)


_PHRASES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    408: "Request Timeout",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
