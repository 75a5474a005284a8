"""Clients over socket files and TCP: one JSON message per line, one session per connection.

At a socket file the kernel has to report our own user as the peer; over TCP the first message has a
token. A connection may be encrypted.
"""

import os
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import NoReturn

import anyio
from anyio import to_thread

from aish.config.model import ServeLimits
from aish.core.json import JsonObject
from aish.mcp.protocol.messages import INTERNAL_ERROR, RpcError
from aish.mcp.protocol.requests import INVALID_REQUEST, ClientRequest, RequestId, failure, read
from aish.net.listen.addresses import Address
from aish.net.listen.sockets import accept_connections, credentials
from aish.net.tcp_peer import MOST_LOOKUPS, MOST_OWNERS, REFUSED_PEER, is_refused_peer
from aish.serve.clients import AuthenticatedClient, HubClient
from aish.serve.hub import Hub
from aish.serve.listeners.line_connection import (
    CHUNK,
    TOKEN_KEY,
    ClientGoneError,
    LineReader,
    LineRefusedError,
    LineWriter,
    converse,
    token_in,
)
from aish.serve.listeners.listening import OpenEndpoint
from aish.serve.records.audit import AuditError
from aish.serve.session import ClientSession
from aish.system.platform.peers import KEEP_IDLE
from aish.system.process.ancestry import is_own_process
from aish.system.task_group import task_group
from aish.system.user import login_name

_LINGER_SECONDS = 2.0
_SILENT_SECONDS = 60
"""After which a silent client is asked by the kernel whether it is there."""
_MOST_DRAINED = 1 << 20


class SocketStream:
    """A non-blocking connection, encrypted or not."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._read_waits = self._write_waits = False
        """Whether reading waits until it can write, and the other way round, as TLS may have it."""

    def read(self) -> bytes | None:
        try:
            return self._connection.recv(CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._read_waits = False
        except ssl.SSLWantWriteError:
            self._read_waits = True
        except OSError:
            return b""
        return None

    def write(self, data: memoryview) -> int:
        try:
            return self._connection.send(data[:CHUNK])
        except (BlockingIOError, ssl.SSLWantWriteError):
            self._write_waits = False
        except ssl.SSLWantReadError:
            self._write_waits = True
        return 0

    async def wait_readable(self) -> None:
        await (anyio.wait_writable if self._read_waits else anyio.wait_readable)(self._connection)

    async def wait_writable(self) -> None:
        await (anyio.wait_readable if self._write_waits else anyio.wait_writable)(self._connection)


class _RefusedError(Exception):
    """The connection is refused, with this answer to the request `id`."""

    def __init__(self, error: RpcError, id: RequestId | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.id = id


class _Connection:
    """A connection of a client; `trusted` once its client is known."""

    def __init__(self, opened: socket.socket, limits: ServeLimits) -> None:
        self.socket = opened
        self.scope = anyio.CancelScope()
        self.trusted = False
        self.proof: AuthenticatedClient | None = None
        self.peer: JsonObject = {}
        self._limits = limits
        opened.setblocking(False)
        if opened.family != socket.AF_UNIX:
            # A client that has vanished without a word does not hold its place for ever.
            with suppress(OSError):  # it has gone already
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                opened.setsockopt(socket.IPPROTO_TCP, KEEP_IDLE, _SILENT_SECONDS)
        self._use(opened)

    async def encrypt(self, tls: ssl.SSLContext) -> None:
        """Wait for the TLS handshake of the client.

        Raises:
            OSError: it fails.
        """
        encrypted = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self._use(encrypted)
        while True:
            try:
                encrypted.do_handshake()
            except ssl.SSLWantReadError:
                await anyio.wait_readable(encrypted)
            except ssl.SSLWantWriteError:
                await anyio.wait_writable(encrypted)
            else:
                return

    async def linger(self) -> None:
        """Let the client read the last message: closing with unread input would discard it."""
        self._end_tls()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        drained = 0
        with anyio.move_on_after(_LINGER_SECONDS):
            while drained < _MOST_DRAINED:
                chunk = self._stream.read()
                if chunk is None:
                    await self._stream.wait_readable()
                elif chunk:
                    drained += len(chunk)
                else:
                    return

    def close(self) -> None:
        self._end_tls()
        self.socket.close()

    def _end_tls(self) -> None:
        """Send the end of a TLS stream, without waiting for the client's."""
        if isinstance(self.socket, ssl.SSLSocket):
            with suppress(OSError, ValueError):
                self.socket.unwrap()

    def _use(self, opened: socket.socket) -> None:
        self.socket = opened
        self._stream = SocketStream(opened)
        self.writer = LineWriter(self._stream, self._limits.queued)
        reader = LineReader(self._stream, self._limits.message, self._limits.receive)
        self.lines = reader.lines()


async def serve_line_socket(hub: Hub, opened: OpenEndpoint) -> None:
    """Serve the clients of one socket until this is cancelled; each connection fails by itself.

    No connections are accepted while the server drains.
    """
    listener = _LineListener(hub, opened)
    hub.clients.watchers.add(listener.check_clients)
    try:
        async with task_group() as tasks:
            with anyio.CancelScope() as accepting:
                tasks.start_soon(_until_draining, hub, accepting)
                async for connection in accept_connections(opened.listener, hub.report_listener):
                    tasks.start_soon(listener.serve, connection)
            opened.listener.socket.close()
    finally:
        hub.clients.watchers.discard(listener.check_clients)


async def _until_draining(hub: Hub, accepting: anyio.CancelScope) -> None:
    await hub.draining.wait()
    accepting.cancel()


class _LineListener:
    """The connections of one socket."""

    def __init__(self, hub: Hub, opened: OpenEndpoint) -> None:
        self._hub = hub
        self._address = opened.listener.address
        self._tls = opened.tls
        self._limits = hub.settings.limits
        self._open: dict[_Connection, None] = {}
        self._lingering = 0
        self._lookups = anyio.CapacityLimiter(MOST_LOOKUPS)
        self._owners: deque[int] = deque(maxlen=MOST_OWNERS)

    async def serve(self, opened: socket.socket) -> None:
        """Serve a connection to its end; an error in it affects no other."""
        connection = _Connection(opened, self._limits)
        serve = self._serve if self._make_room() else self._refuse
        try:
            with connection.scope:
                await serve(connection)
        except Exception as error:  # ruff: ignore[blind-except] - a fault ends one connection
            self._hub.report(error)
        finally:
            connection.close()

    def check_clients(self) -> None:
        """Close connections whose token is no longer valid, or whose tools have changed."""
        for connection in self._open:
            if connection.proof is not None and not self._hub.clients.holds(connection.proof):
                connection.scope.cancel()

    async def _refuse(self, connection: _Connection) -> None:
        if self._tls is None:
            message = f"busy: there are {self._limits.connections} connections already"
            connection.writer.send(failure(None, RpcError(INTERNAL_ERROR, message)))
            await self._linger(connection)

    async def _linger(self, connection: _Connection) -> None:
        """Let a refused client read the reason, unless there are very many."""
        if self._lingering >= self._limits.connections:
            return
        self._lingering += 1
        try:
            await connection.linger()
        finally:
            self._lingering -= 1

    def _make_room(self) -> bool:
        """Make room by closing the oldest untrusted connection; false if there is none."""
        if len(self._open) < self._limits.connections:
            return True
        waiting = [one for one in self._open if not one.trusted and not one.scope.cancel_called]
        if waiting:
            waiting[0].scope.cancel()
        return bool(waiting)

    async def _serve(self, connection: _Connection) -> None:
        hub = self._hub
        self._open[connection] = None
        try:
            await self._converse(connection)
        except _RefusedError as refused:
            connection.writer.send(failure(refused.id, refused.error))
        except LineRefusedError as error:
            hub.tell("warning", "client_refused", f"a client was disconnected: {error}")
        except ClientGoneError as error:
            if error.is_slow:
                text = "a client does not read: it is disconnected"
                hub.tell("warning", "client_lost", text)
            return
        except AuditError as error:
            hub.tell("error", "audit_lost", str(error))
        else:
            return
        finally:
            del self._open[connection]
        await self._linger(connection)

    async def _converse(self, connection: _Connection) -> None:
        client: HubClient | None
        first: bytes | None = None
        if self._address.path is not None:
            client = self._socket_user(connection)
        else:
            client, first = await self._token_holder(connection)
        if client is None:
            return
        connection.trusted = True
        hub, writer = self._hub, connection.writer
        session = ClientSession(hub, AuthenticatedClient(client, ""), connection.peer, writer.send)
        await converse(hub, session, _all_lines(first, connection.lines), writer)

    def _socket_user(self, connection: _Connection) -> HubClient:
        """Return the user who opened a connection to a socket file.

        Raises:
            _RefusedError: it is another user, or a process that this one started.
        """
        peer = credentials(connection.socket)
        connection.peer = {
            "transport": "unix",
            "address": str(self._address.path),
            "pid": peer.pid,
            "uid": peer.uid,
            "user": login_name(peer.uid) if peer.uid >= 0 else None,
        }
        if peer.uid != os.geteuid():
            self._reject(connection, "this socket belongs to another user")
        if is_own_process(peer.pid):
            self._reject(connection, REFUSED_PEER)
        return self._hub.clients.by_name(f"uid:{peer.uid}")

    def _reject(self, connection: _Connection, reason: str) -> NoReturn:
        self._hub.note_refusal(connection.peer, reason)
        raise _RefusedError(RpcError(INVALID_REQUEST, reason))

    async def _token_holder(self, connection: _Connection) -> tuple[HubClient | None, bytes]:
        """Return the client whose token is in the first message, and the message.

        Raises:
            _RefusedError: this process started the peer, no message came in time, or it has no
                known token.
            LineRefusedError: it is too long or too slow.
        """
        connection.peer = _tcp_peer(connection.socket)
        # First: nothing is read of what another program sends.
        if await to_thread.run_sync(
            is_refused_peer, connection.socket, is_own_process, self._owners, limiter=self._lookups
        ):
            self._reject(connection, REFUSED_PEER)
        first: bytes | None = None
        with anyio.move_on_after(self._limits.receive) as waiting:
            if self._tls is not None:
                try:
                    await connection.encrypt(self._tls)
                except OSError:  # it has gone, or speaks no TLS
                    return None, b""
            first = await anext(connection.lines, None)
        if waiting.cancelled_caught:
            problem = f"no message arrived within {self._limits.receive:g} s"
            raise _RefusedError(RpcError(INVALID_REQUEST, problem))
        if first is None:
            return None, b""
        message = read(first)
        token = "" if isinstance(message, Sequence) else token_in(message)
        connection.proof = self._hub.clients.by_token(token) if token else None
        if connection.proof is None:
            problem = "the token is not valid" if token else "a token is needed"
            self._hub.note_refusal(connection.peer, problem)
            hint = f"send it in the first message, as `_meta.{TOKEN_KEY}`"
            id = message.id if isinstance(message, ClientRequest) else None
            raise _RefusedError(RpcError(INVALID_REQUEST, f"{problem}: {hint}"), id)
        return connection.proof.client, first


def _tcp_peer(connection: socket.socket) -> JsonObject:
    try:
        host, port, *_ = connection.getpeername()
    except OSError:  # it has gone
        return {"transport": "tcp"}
    return {"transport": "tcp", "address": str(Address(host=host, port=port))}


async def _all_lines(first: bytes | None, lines: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the lines of a connection, beginning with one that was already read."""
    if first is not None:
        yield first
    async for line in lines:
        yield line
