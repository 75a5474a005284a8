"""A proxy on loopback for a browser of ours: it connects where the address guard permits.

The browser looks up no name and dials nothing itself. It sends requests for `http:` in absolute
form and asks for tunnels (`CONNECT`) for all else, WebSockets among it; each of them is looked up,
checked and dialled anew, at the checked address. The proxy reads no page, follows no redirect and
keeps no connection for another request.

Only processes of the admitted session are served: who opened a connection is found in `/proc`. A
password would not do. Chromium sends none by itself, and what answers for it over its debugging
protocol is not asked for WebSockets, for workers, or for what the browser itself requests.
"""

import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

import anyio
from anyio import to_thread

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern
from aish.net.address_guard import (
    PORTS,
    AddressGuard,
    BlockedAddressError,
    Destination,
    Resolve,
    host_text,
    is_host,
    system_addresses,
)
from aish.net.listen.addresses import Address
from aish.net.listen.sockets import Listener, accept_connections, listen_on
from aish.net.tcp_peer import local_end, owner_of
from aish.net.tunnel import STEP, TrafficMeter, copy, dial, receive, relay, send
from aish.system.task_group import task_group

MAX_CONNECTIONS: Final = 512
"""More than Chromium opens: 32 to a proxy, and 255 for WebSockets."""
MAX_HEAD: Final = 256 * 1024
MAX_BYTES: Final = 1024**3
"""What a connection carries, both ways together."""
MAX_REFUSALS: Final = 1_000
HEAD_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 20.0
IDLE_SECONDS: Final = 300.0
_LINGER_SECONDS: Final = 2.0
_LAST_PORT: Final = 65_535
_DIGITS: Final = 15
"""Index of the session in `/proc/PID/stat`, after the name of the program."""
_NOWHERE: Final = ".invalid"
_SWITCHES: Final = 101
_FIRST_FINAL: Final = 200
_WANTS_PROXY_PASSWORD: Final = 407

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST: Final = lazy_pattern(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.[01]")
_STATUS: Final = lazy_pattern(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\x00\r\n]*)?")
_FIELD: Final = lazy_pattern(rb"(" + _TOKEN + rb"):[^\x00\r\n]*")
_TARGET: Final = lazy_pattern(rb"http://([^/?#@\\]+)(/[^#]*)")
_AUTHORITY: Final = lazy_pattern(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::([0-9]{1,5}))?")
_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"),
        *(b"proxy-authenticate", b"proxy-authentication-info", b"te", b"trailer", b"upgrade"),
    }
)
"""Headers that mean one connection and are not sent on."""

RefusalCode = Literal["blocked", "unavailable", "timeout", "limit", "not_valid"]
_STATUSES: Final = {
    "blocked": "403 Forbidden",
    "unavailable": "502 Bad Gateway",
    "timeout": "504 Gateway Timeout",
    "limit": "503 Service Unavailable",
    "not_valid": "400 Bad Request",
}


@frozen
class RefusedRequest:
    """A refused request of the browser; `number` counts from 1.

    `destination` is `None` if the request named none.
    """

    number: int
    code: RefusalCode
    destination: Destination | None
    message: str


class _RefusedError(Exception):
    def __init__(
        self, code: RefusalCode, message: str, destination: Destination | None = None
    ) -> None:
        super().__init__(message)
        self.code: RefusalCode = code
        self.message = message
        self.destination = destination


class _EndedError(Exception):
    """The browser has gone, or there is nothing more to be said to it."""


@frozen
class _Request:
    """A request in absolute form: what is sent to its host, and how much of a body follows."""

    wanted: Destination
    head: bytes
    body: int


class GuardedProxy:
    """A proxy that listens; nobody may use it before `admit`."""

    def __init__(
        self,
        listener: Listener,
        guard: AddressGuard,
        report: Callable[[RefusedRequest], None] | None,
        report_fault: Callable[[Exception], None] | None,
        idle_seconds: float,
    ) -> None:
        self.address = listener.address.netloc
        self._listener = listener
        self._guard = guard
        self._report = report
        self._report_fault = report_fault or (lambda _: None)
        self._idle_seconds = idle_seconds
        self._peers = _Peers()
        self._refusals: deque[RefusedRequest] = deque(maxlen=MAX_REFUSALS)
        self._open = 0
        self.refused = 0
        """How many requests were refused."""

    def admit(self, session: int) -> None:
        """Serve the processes of this session, and no others any more."""
        self._peers.session = session

    def refusals(self, after: int = 0) -> tuple[RefusedRequest, ...]:
        """The last refusals whose number is greater than `after`."""
        return tuple(one for one in self._refusals if one.number > after)

    async def serve(self) -> None:
        """Serve connections, until it is cancelled."""
        async with task_group() as tasks:
            async for connection in accept_connections(self._listener, self._report_fault):
                connection.setblocking(False)
                tasks.start_soon(self._talk, connection)

    async def _talk(self, connection: socket.socket) -> None:
        """Serve one connection to its end."""
        self._open += 1
        try:
            with connection:
                await self._serve_connection(connection)
        except (OSError, _EndedError):
            # Either side has hung up, in the middle perhaps: there is nobody to be told.
            return
        finally:
            self._open -= 1

    async def _serve_connection(self, connection: socket.socket) -> None:
        """Serve a connection, and say why where something is refused."""
        # First: nothing is read of what another program sends.
        if not await to_thread.run_sync(self._peers.has, connection):
            await _answer(connection, "blocked", "this proxy serves one browser only")
            return
        try:
            await self._serve(connection)
        except _RefusedError as refused:
            self._note(refused)
            await _answer(connection, refused.code, refused.message)

    async def _serve(self, connection: socket.socket) -> None:
        if self._open > MAX_CONNECTIONS:
            raise _RefusedError("limit", f"more than {MAX_CONNECTIONS} connections")
        with anyio.move_on_after(HEAD_SECONDS) as waiting:
            head, rest = await _head(connection)
        if waiting.cancelled_caught:
            return
        method, target, lines = _parse_head(head)
        if method == b"CONNECT":
            wanted = _destination(target, None)
            if rest:
                raise _RefusedError("not_valid", "data before the tunnel is open", wanted)
            with await self._connect(wanted) as server:
                await send(connection, b"HTTP/1.1 200 Connection established\r\n\r\n")
                await self._relay(connection, server, wanted)
            return
        request = _request(method, target, lines)
        with await self._connect(request.wanted) as server:
            await self._exchange(connection, server, request, rest)

    async def _connect(self, wanted: Destination) -> socket.socket:
        """A connection to the first of the checked addresses that answers."""
        if wanted.host.endswith(_NOWHERE):
            # No such name exists (RFC 6761): there a browser is sent with what it asks by itself.
            raise _EndedError
        try:
            self._guard.check_port(wanted)
            with anyio.fail_after(CONNECT_SECONDS):
                addresses = await self._guard.addresses(wanted.host, wanted.port)
                return await dial(addresses, wanted.port)
        except BlockedAddressError as error:
            raise _RefusedError("blocked", str(error), wanted) from error
        except TimeoutError as error:
            message = f"`{host_text(str(wanted))}` gave no answer"
            raise _RefusedError("timeout", message, wanted) from error
        except socket.gaierror as error:
            message = f"DNS has no address for `{host_text(wanted.host)}`"
            raise _RefusedError("unavailable", message, wanted) from error
        except (OSError, UnicodeError) as error:
            message = f"cannot connect to `{host_text(str(wanted))}`"
            raise _RefusedError("unavailable", message, wanted) from error

    async def _exchange(
        self, connection: socket.socket, server: socket.socket, request: _Request, body: bytes
    ) -> None:
        """Forward a request and its answer, after which the connection ends."""
        if len(body) > request.body:
            raise _RefusedError("not_valid", "data behind the request", request.wanted)
        with anyio.move_on_after(self._idle_seconds) as idle:
            meter = TrafficMeter(idle, self._idle_seconds, MAX_BYTES)
            async with task_group() as tasks:

                async def to_server() -> None:
                    with suppress(OSError):  # it may answer, and read no more
                        await _send_body(connection, server, request, body, meter)
                    # Nothing more is sent on: this is where the browser hangs up.
                    with suppress(OSError):
                        await receive(connection, 1)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(to_server)
                await _pass_answer(connection, server, request.wanted, meter)
                tasks.cancel_scope.cancel()
        self._note_excess(meter, request.wanted)

    async def _relay(
        self, connection: socket.socket, server: socket.socket, wanted: Destination
    ) -> None:
        """Copy bytes in both directions until both ends have closed."""
        with anyio.move_on_after(self._idle_seconds) as idle:
            meter = TrafficMeter(idle, self._idle_seconds, MAX_BYTES)
            await relay(connection, server, meter)
        self._note_excess(meter, wanted)

    def _note_excess(self, meter: TrafficMeter, wanted: Destination) -> None:
        if meter.is_full:
            message = f"`{host_text(str(wanted))}`: more than {MAX_BYTES // 2**30} GiB"
            self._note(_RefusedError("limit", message, wanted))

    def _note(self, error: _RefusedError) -> None:
        self.refused += 1
        refusal = RefusedRequest(self.refused, error.code, error.destination, error.message)
        self._refusals.append(refusal)
        if self._report is not None:
            self._report(refusal)


@asynccontextmanager
async def open_guarded_proxy(
    *,
    allow: Collection[Destination] = (),
    resolve: Resolve = system_addresses,
    report: Callable[[RefusedRequest], None] | None = None,
    report_fault: Callable[[Exception], None] | None = None,
    idle_seconds: float = IDLE_SECONDS,
) -> AsyncGenerator[GuardedProxy]:
    """A proxy on a free port of 127.0.0.1, until the end of the block.

    `allow` are destinations that may be connected to whatever their address is. `report` is told of
    each refusal at once, `report_fault` where no connection can be accepted for a while.
    """
    with listen_on([Address(host="127.0.0.1")]) as (listener,):
        guard = AddressGuard(allow, resolve)
        proxy = GuardedProxy(listener, guard, report, report_fault, idle_seconds)
        async with task_group() as tasks:
            tasks.start_soon(proxy.serve)
            try:
                yield proxy
            finally:
                tasks.cancel_scope.cancel()


class _Peers:
    """Tells by `/proc` whether a connection was opened by a process of a session.

    What cannot be found out counts as another's: a process that is closed to us, one that has ended
    meanwhile, a system without `/proc`.
    """

    def __init__(self) -> None:
        self.session: int | None = None
        self._last: int | None = None
        """The process that opened the connection before: mostly it opens the next one too."""

    def has(self, connection: socket.socket) -> bool:
        """Return true if the session owns the other end of a connection; reads files."""
        session = self.session
        if session is None:
            return False
        try:
            end = local_end(connection)
            self._last = (
                owner_of(end.inode, [self._last] if self._last else ()) if end is not None else None
            )
        except OSError:
            return False
        return self._last is not None and _session_of(self._last) == session


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


async def _send_body(
    connection: socket.socket,
    server: socket.socket,
    request: _Request,
    body: bytes,
    meter: TrafficMeter,
) -> None:
    """Send a request and its body, of which the beginning has come with the head."""
    await send(server, request.head + body)
    left = request.body - len(body)
    while left and (piece := await receive(connection, min(left, STEP))):
        meter.count(len(piece))
        left -= len(piece)
        await send(server, piece)


async def _pass_answer(
    connection: socket.socket, server: socket.socket, wanted: Destination, meter: TrafficMeter
) -> None:
    """Pass an answer on; it says to the browser that its connection ends with it."""
    rest, status = b"", 0
    while status < _FIRST_FINAL:
        try:
            head, rest = await _head(server, rest)
            status, sent = _answer_head(head)
        except (_EndedError, _RefusedError, OSError) as error:
            message = f"`{host_text(str(wanted))}` gave no valid HTTP answer"
            raise _RefusedError("unavailable", message, wanted) from error
        meter.count(len(head))
        await send(connection, sent)
    await send(connection, rest)
    await copy(server, connection, meter)


async def _head(connection: socket.socket, data: bytes = b"") -> tuple[bytes, bytes]:
    """A head with its empty line, and what has come behind it.

    Raises:
        _EndedError: there is none.
        _RefusedError: it is too long.
    """
    found, seen = bytearray(data), 0
    while (end := found.find(b"\r\n\r\n", max(0, seen - 3))) < 0:
        if len(found) > MAX_HEAD:
            raise _RefusedError("not_valid", "the head of the request is too long")
        seen = len(found)
        piece = await receive(connection, STEP)
        if not piece:
            raise _EndedError
        found += piece
    return bytes(found[: end + 4]), bytes(found[end + 4 :])


def _parse_head(head: bytes) -> tuple[bytes, bytes, Sequence[bytes]]:
    """Method, target and header lines of a request."""
    first, *lines = head[:-4].split(b"\r\n")
    found = _REQUEST.fullmatch(first)
    if found is None or not all(map(_FIELD.fullmatch, lines)):
        raise _RefusedError("not_valid", "the request is not valid HTTP")
    return found[1], found[2], lines


def _destination(authority: bytes, port: int | None) -> Destination:
    """The host and port of a request; `port` is what counts where it names none."""
    found = _AUTHORITY.fullmatch(authority.decode("ascii").lower())
    if found is not None:
        host = found[1] or found[2].rstrip(".")
        port = int(found[3]) if found[3] else port
        if port is not None and 0 < port <= _LAST_PORT and is_host(host):
            return Destination(host, port)
    raise _RefusedError("not_valid", "the request names no valid host and port")


def _request(method: bytes, target: bytes, lines: Sequence[bytes]) -> _Request:
    """Rewrite a request in absolute form: for its host alone, and nothing after it."""
    found = _TARGET.fullmatch(target)
    if found is None:
        # Also a request of somebody who takes the proxy for a server.
        raise _RefusedError("not_valid", "only `http:` in absolute form and `CONNECT` are served")
    wanted = _destination(found[1], PORTS["http"])
    pairs = [(line.partition(b":")[0].lower(), line) for line in lines]
    if any(name == b"transfer-encoding" for name, _ in pairs):
        raise _RefusedError("not_valid", "a body without a length is not sent on", wanted)
    sizes = {
        line.partition(b":")[2].strip(b" \t") for name, line in pairs if name == b"content-length"
    }
    size = sizes.pop() if len(sizes) == 1 else b"0"
    if sizes or not size.isdigit() or len(size) > _DIGITS:
        raise _RefusedError("not_valid", "the length of the body is not valid", wanted)
    if int(size) > MAX_BYTES:
        message = f"`{host_text(str(wanted))}`: a body of more than {MAX_BYTES // 2**30} GiB"
        raise _RefusedError("limit", message, wanted)
    kept = [line for name, line in pairs if name not in _HOP and name != b"host"]
    host = b"Host: " + found[1]
    head = [b"%s %s HTTP/1.1" % (method, found[2]), host, b"Connection: close", *kept]
    return _Request(wanted, b"\r\n".join(head) + b"\r\n\r\n", int(size))


def _answer_head(head: bytes) -> tuple[int, bytes]:
    """The status of an answer, and its head for the browser: the last one of this connection."""
    first, *lines = head[:-4].split(b"\r\n")
    found = _STATUS.fullmatch(first)
    if found is None or not all(map(_FIELD.fullmatch, lines)):
        raise _EndedError
    status = int(found[1])
    if status in {_SWITCHES, _WANTS_PROXY_PASSWORD}:
        # Neither was asked for: a page must not be able to ask for the password of a proxy.
        raise _EndedError
    kept = [line for line in lines if line.partition(b":")[0].lower() not in _HOP]
    last = [b"Connection: close"] if status >= _FIRST_FINAL else []
    return status, b"\r\n".join([first, *last, *kept]) + b"\r\n\r\n"


async def _answer(connection: socket.socket, code: RefusalCode, message: str) -> None:
    """Say why, and let the other side read it before the connection ends."""
    body = f"aish: {message}\n".encode()
    head = (
        f"HTTP/1.1 {_STATUSES[code]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    with anyio.move_on_after(_LINGER_SECONDS):
        await send(connection, head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        left = MAX_HEAD
        while left > 0 and (piece := await receive(connection, STEP)):
            left -= len(piece)
