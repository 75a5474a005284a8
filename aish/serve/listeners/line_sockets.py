"""Clients over socket files and TCP: a JSON message a line, one session per connection (H14, H15).

Over a socket file the peer's user has to be ours, as the kernel says it (H18).
"""

import os
import socket
import ssl
from contextlib import suppress

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.mcp.protocol.messages import INTERNAL_ERROR, RpcError
from aish.mcp.protocol.requests import INVALID_REQUEST, failure
from aish.net.listen.sockets import accepted, credentials
from aish.serve.audit import AuditError
from aish.serve.hub import Hub
from aish.serve.listeners.line_connection import (
    CHUNK,
    ClientGoneError,
    LineReader,
    LineRefusedError,
    LineWriter,
    converse,
)
from aish.serve.listeners.listening import OpenEndpoint
from aish.serve.session import Session
from aish.system.task_group import task_group
from aish.system.user import login_name

_LINGER_SECONDS = 2.0
_MOST_DRAINED = 1 << 20


class SocketStream:
    """A connection that does not block, encrypted or not."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._read_waits = self._write_waits = False
        """Whether reading waits until it can write, and the other way round, as TLS may have it."""

    def read(self) -> bytes | None:
        """What is there; nothing at the end, `None` if more may come."""
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
        """Write what the reader takes at once; how many bytes.

        Raises:
            OSError: the reader is gone.
        """
        try:
            return self._connection.send(data[:CHUNK])
        except (BlockingIOError, ssl.SSLWantWriteError):
            self._write_waits = False
        except ssl.SSLWantReadError:
            self._write_waits = True
        return 0

    async def wait_readable(self) -> None:
        """Wait until something may be there."""
        await (anyio.wait_writable if self._read_waits else anyio.wait_readable)(self._connection)

    async def wait_writable(self) -> None:
        """Wait until something may be taken."""
        await (anyio.wait_readable if self._write_waits else anyio.wait_writable)(self._connection)


@frozen
class _Client:
    """Who is at the other end of a connection."""

    name: str
    peer: JsonObject


class _RefusedError(Exception):
    """A connection is not served: what the client is told, and why, for the log."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error


async def serve_line_socket(hub: Hub, opened: OpenEndpoint) -> None:
    """Serve the clients of one socket until this is cancelled; each connection fails by itself.

    Once the server drains no more are taken.
    """
    listener = _LineListener(hub, opened)
    async with task_group() as tasks:
        with anyio.CancelScope() as accepting:
            tasks.start_soon(_until_draining, hub, accepting)
            async for connection in accepted(opened.listener, hub.report_listener):
                tasks.start_soon(listener.serve, connection)
        opened.listener.socket.close()


async def _until_draining(hub: Hub, accepting: anyio.CancelScope) -> None:
    await hub.draining.wait()
    accepting.cancel()


class _LineListener:
    """The connections of one socket."""

    def __init__(self, hub: Hub, opened: OpenEndpoint) -> None:
        self._hub = hub
        self._address = str(opened.listener.address.path)
        self._limits = hub.settings.limits
        self._open = 0

    async def serve(self, connection: socket.socket) -> None:
        """Serve a connection to its end; a fault in it ends nothing else."""
        self._open += 1
        try:
            with connection:
                connection.setblocking(False)
                await self._served(connection)
        except Exception as error:  # ruff: ignore[blind-except] - a fault ends one connection
            self._hub.report(error)
        finally:
            self._open -= 1

    async def _served(self, connection: socket.socket) -> None:
        stream = SocketStream(connection)
        writer = LineWriter(stream, self._limits.queued)
        try:
            await self._conversed(connection, stream, writer)
        except _RefusedError as refused:
            writer.send(failure(None, refused.error))
        except LineRefusedError as error:
            self._hub.tell("warning", "client_refused", f"a client was disconnected: {error}")
        except ClientGoneError as error:
            if error.is_slow:
                text = "a client does not read: it is disconnected"
                self._hub.tell("warning", "client_lost", text)
            return
        except AuditError as error:
            self._hub.tell("error", "audit_lost", str(error))
        else:
            return
        await _linger(connection, stream)

    async def _conversed(
        self, connection: socket.socket, stream: SocketStream, writer: LineWriter
    ) -> None:
        if self._open > self._limits.connections:
            said = f"busy: there are {self._limits.connections} connections already"
            raise _RefusedError(RpcError(INTERNAL_ERROR, said))
        client = self._socket_user(connection)
        reader = LineReader(stream, self._limits.message, self._limits.receive)
        session = Session(self._hub, client.name, client.peer, writer.send)
        self._hub.opened(session.caller)
        self._hub.flushes.add(writer.flush)
        try:
            await converse(session, reader.lines(), writer)
        finally:
            self._hub.flushes.discard(writer.flush)
            self._hub.closed(session.caller)

    def _socket_user(self, connection: socket.socket) -> _Client:
        """The user who opened a connection to a socket file.

        Raises:
            _RefusedError: it is another one.
        """
        found = credentials(connection)
        peer: JsonObject = {
            "transport": "unix",
            "address": self._address,
            "pid": found.pid,
            "uid": found.uid,
            "user": login_name(found.uid) if found.uid >= 0 else None,
        }
        if found.uid != os.geteuid():
            self._hub.refused(peer, "the socket belongs to another user")
            said = "this socket belongs to another user"
            raise _RefusedError(RpcError(INVALID_REQUEST, said))
        return _Client(f"uid:{found.uid}", peer)


async def _linger(connection: socket.socket, stream: SocketStream) -> None:
    """Let the client see the last words: a socket that is closed unread would take them back."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    drained = 0
    with anyio.move_on_after(_LINGER_SECONDS):
        while drained < _MOST_DRAINED:
            chunk = stream.read()
            if chunk is None:
                await stream.wait_readable()
            elif chunk:
                drained += len(chunk)
            else:
                return
