"""A server over HTTP on open sockets, within an event loop that runs already.

It handles no signal, writes to no stream, and ends no run: what fails is reported to its caller.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from aish.core.errors import UsageError
from aish.core.phrases import backticked
from aish.net.listen.access import Access, AccessRecord, Peer, ServerLimits
from aish.net.listen.addresses import Address, Exposure
from aish.net.listen.sockets import PAUSE_SECONDS, Listener, accept_connections, credentials
from aish.net.tcp_peer import MOST_LOOKUPS, MOST_OWNERS, REFUSED_PEER, is_refused_peer

if TYPE_CHECKING:
    from aish.net.listen.connection import Connections, HttpConnection
    from aish.net.listen.http_error import HttpError
    from aish.net.listen.routes import Route

INSTALL = "pip install 'aish-pipelines[serve]'"


def require_serve() -> None:
    """Check that the libraries of the extra `serve` are installed, before anything is opened.

    Raises:
        UsageError: they are not; says how they are installed.
    """
    missing = [name for name in ("starlette", "httptools") if find_spec(name) is None]
    if missing:
        named = backticked(missing, by=" and ")
        raise UsageError(f"listening needs {named}, not installed here", hint=INSTALL)


def tls_context(exposure: Exposure) -> ssl.SSLContext | None:
    """The certificate that connections over TCP are encrypted with, if one was named.

    Raises:
        UsageError: it cannot be read, or does not fit its key.
    """
    if not exposure.has_tls:
        return None
    assert exposure.tls_cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password: nobody is there to be asked for one.
        context.load_cert_chain(exposure.tls_cert, exposure.tls_key, password="")
    except (OSError, ssl.SSLError) as error:
        said = f"`{exposure.tls_cert}` cannot be used with `{exposure.tls_key}`"
        raise UsageError(f"{said}: {error.strerror or error}", where="--tls-cert") from error
    return context


@asynccontextmanager
async def serve(
    routes: "Callable[[], Iterable[Route]]",
    listeners: Sequence[Listener],
    access: Access,
    *,
    report: Callable[[Exception], None],
    on_call: Callable[[AccessRecord], None] | None = None,
    limits: ServerLimits | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator["RunningServer"]:
    """Answer requests on the sockets until the block ends; then answers end, and sockets close.

    `routes` is called at the first connection, and what HTTP needs is imported then: where nobody
    connects, listening costs nothing. `report` is told of faults of a handler and of the system;
    `on_call` of every answer.

    Raises:
        UsageError: the extra `serve` is not installed.
    """
    require_serve()

    def log(call: AccessRecord) -> None:
        try:
            if on_call is not None:
                on_call(call)
        except Exception as error:  # ruff: ignore[blind-except] - a log's fault ends no server
            report(error)

    def connect(answers: TaskGroup) -> "Connections":
        from aish.net.listen.connection import Connections
        from aish.net.listen.guards import Guards

        bounds = limits or ServerLimits()
        return Connections(Guards(routes(), access, bounds.body), answers, bounds, log, report)

    server = RunningServer(connect, listeners, access, report, tls)
    async with anyio.create_task_group() as accepting:
        await accepting.start(server.answer)
        for listener in listeners:
            accepting.start_soon(server.accept, listener)
        try:
            yield server
        finally:
            accepting.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await server.drain()


class RunningServer:
    """A running server."""

    def __init__(
        self,
        connect: "Callable[[TaskGroup], Connections]",
        listeners: Sequence[Listener],
        access: Access,
        report: Callable[[Exception], None],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.addresses: tuple[Address, ...] = tuple(one.address for one in listeners)
        """Where it listens; the ports are real ones."""
        self._connect = connect
        self._opened: Connections | None = None
        self._listeners = listeners
        self._access = access
        self._report = report
        self._tls = tls
        self._closing = anyio.Event()
        self._closed = anyio.Event()
        self._answers: TaskGroup | None = None
        self._handshakes = 0
        self._lookups = anyio.CapacityLimiter(MOST_LOOKUPS)
        self._owners: deque[int] = deque(maxlen=MOST_OWNERS)

    @property
    def connections(self) -> int:
        """Number of connections."""
        served = 0 if self._opened is None else len(self._opened.served)
        return served + self._handshakes

    async def answer(self, *, task_status: TaskStatus[None]) -> None:
        """Let requests be answered until the server is drained, whatever is cancelled around it."""
        async with anyio.create_task_group() as answers:
            answers.cancel_scope.shield = True
            self._answers = answers
            task_status.started()
            await self._closed.wait()

    async def accept(self, listener: Listener) -> None:
        """Take connections until this is cancelled, or the socket is of no use any more."""
        async with anyio.create_task_group() as handshakes:
            async for connection in accept_connections(listener, self._report):
                if self._tls is not None and listener.address.path is None:
                    handshakes.start_soon(self._encrypt, connection, listener.address)
                else:
                    await self._open(connection, listener.address)

    async def drain(self) -> None:
        """Close the sockets, let answers end within their time, then close all connections."""
        for listener in self._listeners:
            listener.socket.close()
        self._closing.set()
        if self._opened is not None:
            await self._opened.drain()
        if self._answers is not None:
            self._answers.cancel_scope.cancel()
        self._closed.set()

    async def _open(self, connection: socket.socket, local: Address) -> None:
        try:
            factory = await self._factory(connection, local, self._all())
            await asyncio.get_running_loop().connect_accepted_socket(factory, connection)
        except OSError:  # the client has gone
            connection.close()
        except Exception as error:  # ruff: ignore[blind-except] - a fault ends one connection
            connection.close()
            self._report(error)
        except BaseException:
            connection.close()
            raise

    async def _encrypt(self, connection: socket.socket, local: Address) -> None:
        """Begin a connection with TLS; its handshake has to end in the time of a request."""
        self._handshakes += 1
        try:
            shared = self._all()
            if self._handshakes > shared.limits.connections:
                connection.close()
                return
            factory = await self._factory(connection, local, shared)
            await asyncio.get_running_loop().connect_accepted_socket(
                factory, connection, ssl=self._tls, ssl_handshake_timeout=shared.limits.receive
            )
        except OSError:  # it has gone, is too slow, or speaks no TLS
            connection.close()
        except Exception as error:  # ruff: ignore[blind-except] - a fault ends one connection
            connection.close()
            self._report(error)
        except BaseException:
            connection.close()
            raise
        finally:
            self._handshakes -= 1

    def _all(self) -> "Connections":
        if self._opened is None:
            assert self._answers is not None, "it accepts only after that"
            self._opened = self._connect(self._answers)
        return self._opened

    async def _factory(
        self, connection: socket.socket, local: Address, shared: "Connections"
    ) -> "Callable[[], HttpConnection]":
        from aish.net.listen.connection import HttpConnection
        from aish.net.listen.routes import ConnectionState

        peer = peer_of(connection)
        if peer.transport == "unix":
            is_refused = peer.pid is None or self._access.is_refused(peer.pid)
        else:
            is_refused = await self._is_refused(connection)
        refusal = _refusal(peer, shared, is_refused=is_refused)
        is_tls = self._tls is not None and local.path is None
        # What it aborts is known when it is made.
        state = ConnectionState(peer, local, is_tls, self._closing, anyio.Event(), lambda: None)
        return lambda: HttpConnection(shared, state, refusal)

    async def _is_refused(self, connection: socket.socket) -> bool:
        """Look for the process that connected; waits for descriptors where they are missing."""
        is_reported = False
        while True:
            try:
                return await to_thread.run_sync(
                    is_refused_peer,
                    connection,
                    self._access.is_refused,
                    self._owners,
                    limiter=self._lookups,
                )
            except OSError as error:
                if not is_reported:
                    self._report(error)
                is_reported = True
                await asyncio.sleep(PAUSE_SECONDS)


def peer_of(connection: socket.socket) -> Peer:
    """Identify the client, as far as the socket tells."""
    if connection.family == socket.AF_UNIX:
        found = credentials(connection)
        return Peer("unix", "", uid=found.uid, pid=found.pid)
    host, port, *_ = connection.getpeername()
    return Peer("tcp", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _refusal(peer: Peer, shared: "Connections", *, is_refused: bool) -> "HttpError | None":
    """Why a connection is not served, if it is not."""
    from aish.net.listen.http_error import HttpError

    if peer.transport == "unix" and peer.uid != os.geteuid():
        return HttpError(403, "forbidden", "this socket belongs to another user")
    if is_refused:
        return HttpError(403, "forbidden", REFUSED_PEER)
    if not shared.make_room():
        message = "there are too many connections"
        return HttpError(503, "busy", message, headers={"retry-after": "1"})
    return None
