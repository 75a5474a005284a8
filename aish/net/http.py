"""Carries HTTP/1.1 over asyncio connections, without a proxy, as a transport of httpx.

It stops at bytes: its users choose the destination, decide what an answer means, and have a
compressed body decoded by `inflate`. httpx's own transport passes each chunk of a body through four
layers, and a request through locks, traces and a pool that models and servers do not need. Here
each read of the socket is one piece, and a request is one write.
"""

import asyncio
import os
import select
import socket
import ssl
import zlib
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import anyio
import httpx

from aish.core.patterns import lazy_pattern
from aish.net.address_guard import is_address

Pairs = list[tuple[bytes, bytes]]
Addresses = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses, as numbers, that a connection to this host and port may go to."""


class Framing(Protocol):
    """Finds the end of a body: fed with the bytes that follow the head."""

    over: bool
    """Whether the body is complete."""
    rest: bytes
    """What came behind its end."""

    def feed(self, data: bytes, pieces: list[bytes]) -> None:
        """Append the pieces of the body in `data`, also those before an invalid part.

        Raises:
            httpx.RemoteProtocolError: the body is invalid.
        """

    def close(self) -> None:
        """The connection has ended.

        Raises:
            httpx.RemoteProtocolError: the body was incomplete.
        """


class TooManyBytesError(httpx.RemoteProtocolError):
    """More was sent than the transport receives."""


_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST: Final = lazy_pattern(
    rb"[A-Z]+ [\x21-\x7e]+ HTTP/1\.1\r\n"
    rb"(?:" + _TOKEN + rb": (?:[\x21-\x7e\x80-\xff]|(?<=[\x21-\x7e\x80-\xff])[\t ]+(?!\r))*\r\n)*"
    rb"\r\n"
)


def _head_of(request: httpx.Request, size: int) -> bytes:
    """The head of a request whose body has that size.

    Raises:
        httpx.LocalProtocolError: it has a character that HTTP does not allow, or misstates the
            body, so that a server would read the rest as another request.
    """
    headers = request.headers.raw
    lines = [b"%s: %s\r\n" % pair for pair in headers]
    target = request.url.raw_path
    head = b"%s %s HTTP/1.1\r\n%s\r\n" % (request.method.encode(), target, b"".join(lines))
    if not _REQUEST.fullmatch(head) or head.count(b"\r\n") != len(headers) + 2:
        raise httpx.LocalProtocolError("a header has a character that HTTP does not allow")
    if _words(headers, b"transfer-encoding"):
        raise httpx.LocalProtocolError("a body is never sent with `Transfer-Encoding`")
    if any(words != b"%d" % size for words in _words(headers, b"content-length")):
        raise httpx.LocalProtocolError("`Content-Length` is not the length of the body")
    return head


def _words(headers: Pairs, name: bytes) -> list[bytes]:
    words: list[bytes] = []
    size = len(name)
    for key, value in headers:
        if len(key) == size and key.lower() == name:
            words += [word.strip().lower() for word in value.split(b",")]
    return words


_HEAD_END: Final = lazy_pattern(rb"\n\r?\n")
_STATUS: Final = lazy_pattern(rb"HTTP/([0-9]\.[0-9]) ([0-9]{3})(?: ([^\x00\r\n]*))?")
_FIELD: Final = lazy_pattern(rb"(" + _TOKEN + rb"):([^\x00\r\n]*)")


class Head:
    __slots__ = ("headers", "reason", "status", "version")

    def __init__(self, data: bytes) -> None:
        """Read the head.

        Raises:
            httpx.RemoteProtocolError: it is invalid.
        """
        first, *lines = data.replace(b"\r\n", b"\n").rstrip(b"\n").split(b"\n")
        found = _STATUS.fullmatch(first)
        if found is None:
            raise httpx.RemoteProtocolError(f"illegal status line: {first[:80]!r}")
        self.version, self.status, self.reason = found[1], int(found[2]), found[3] or b""
        self.headers: Pairs = []
        for line in _unfold_lines(lines):
            field = _FIELD.fullmatch(line)
            if field is None:
                raise httpx.RemoteProtocolError(f"illegal header line: {line[:80]!r}")
            self.headers.append((field[1], field[2].strip(b" \t")))

    def words(self, name: bytes) -> list[bytes]:
        """The items of a list header, from all its lines."""
        return _words(self.headers, name)

    @property
    def keeps_alive(self) -> bool:
        """True if the connection can be reused."""
        return self.version >= b"1.1" and b"close" not in self.words(b"connection")

    def find_framing(self, method: str) -> Framing:
        """Return how the end of the body is found.

        Raises:
            httpx.RemoteProtocolError: the head does not define it validly.
        """
        if method == "HEAD" or self.status in {204, 304}:
            return SizedBody(0)
        if codings := self.words(b"transfer-encoding"):
            if codings != [b"chunked"]:
                raise httpx.RemoteProtocolError("Only Transfer-Encoding: chunked is supported")
            return ChunkedBody()
        sizes = set(self.words(b"content-length"))
        if len(sizes) > 1:
            raise httpx.RemoteProtocolError("conflicting Content-Length headers")
        if not sizes:
            return UnsizedBody()
        size = sizes.pop()
        if not size.isdigit() or len(size) > 20:  # ruff: ignore[magic-value-comparison] - as h11
            raise httpx.RemoteProtocolError("bad Content-Length")
        return SizedBody(int(size))


def _unfold_lines(lines: Iterable[bytes]) -> Iterable[bytes]:
    """Header lines, with obsolete continuation lines joined."""
    whole: list[bytes] = []
    for line in lines:
        if not line.startswith((b" ", b"\t")):
            whole.append(line)
        elif whole:
            whole[-1] += b" " + line.lstrip(b" \t")
        else:
            raise httpx.RemoteProtocolError("continuation line at start of headers")
    return whole


class SizedBody:
    """A body whose length is in its head."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self.over = not size
        self.rest = b""

    def feed(self, data: bytes, pieces: list[bytes]) -> None:
        """The part that belongs to the body."""
        piece, self.rest = data[: self._left], data[self._left :]
        self._left -= len(piece)
        self.over = not self._left
        if piece:
            pieces.append(piece)

    def close(self) -> None:
        """Always incomplete here."""
        raise httpx.RemoteProtocolError(
            "peer closed connection without sending complete message body"
            f" (received {self._size - self._left} bytes, expected {self._size})"
        )


class UnsizedBody:
    """A body that ends with its connection."""

    def __init__(self) -> None:
        self.over = False
        self.rest = b""

    def feed(self, data: bytes, pieces: list[bytes]) -> None:  # ruff: ignore[no-self-use] - of `Framing`
        pieces.append(data)

    def close(self) -> None:
        self.over = True


_MAX_TRAILERS: Final = 16 * 1024
_CHUNK: Final = lazy_pattern(rb"([0-9A-Fa-f]{1,20})[ \t]*(?:;[^\r\n]*)?\r\n")
_CHUNK_CUT: Final = lazy_pattern(rb"(?:[0-9A-Fa-f]{1,20}[ \t]*(?:;[^\r\n]*)?\r?)?")


class ChunkedBody:
    """A body in chunks, each with its length before it."""

    def __init__(self) -> None:
        self._left = 0
        self._waiting = b""
        self._is_within = False
        self._in_trailers = False
        self.over = False
        self.rest = b""

    def feed(self, data: bytes, pieces: list[bytes]) -> None:
        """The content of the chunks, as far as received."""
        if self._waiting:
            data = self._waiting + data
            self._waiting = b""
        at = 0
        if self._is_within:
            at = self._rest_of_chunk(data, 0, pieces)
        while not (self._is_within or self._in_trailers):
            found = _CHUNK.match(data, at)
            if found is None:
                self._keep_head(data[at:])
                return
            begin = found.end()
            size = int(found[1], 16)
            end = begin + size
            if not size:
                self._in_trailers = True
                at = begin
            elif data[end : end + 2] == b"\r\n":
                pieces.append(data[begin:end])
                at = end + 2
            else:
                self._is_within, self._left = True, size
                at = self._rest_of_chunk(data, begin, pieces)
        if self._in_trailers:
            self._skip_trailers(data[at:])

    def close(self) -> None:  # ruff: ignore[no-self-use] - of `Framing`
        """Always incomplete here."""
        raise httpx.RemoteProtocolError(
            "peer closed connection without sending complete message body (incomplete chunked read)"
        )

    def _rest_of_chunk(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Consume what is available of a chunk and its line end; returns where the next begins."""
        piece = data[at : at + self._left]
        if piece:
            pieces.append(piece)
            self._left -= len(piece)
            at += len(piece)
        if self._left:
            return at
        behind = data[at : at + 2]
        if behind == b"\r\n":
            self._is_within = False
            return at + 2
        if behind not in {b"", b"\r"}:
            raise httpx.RemoteProtocolError(f"malformed chunk footer: {behind!r}")
        self._waiting = behind
        return at + len(behind)

    def _keep_head(self, head: bytes) -> None:
        if len(head) > _MAX_TRAILERS or not _CHUNK_CUT.fullmatch(head):
            raise httpx.RemoteProtocolError(f"illegal chunk header: {head[:40]!r}")
        self._waiting = head

    def _skip_trailers(self, data: bytes) -> None:
        if data.startswith(b"\r\n"):
            self.over, self.rest = True, data[2:]
        elif found := _HEAD_END.search(data):
            self.over, self.rest = True, data[found.end() :]
        elif len(data) > _MAX_TRAILERS:
            raise httpx.RemoteProtocolError("the trailers of the answer are too long")
        else:
            self._waiting = data


MAX_HEAD: Final = 100 * 1024
"""How long the head of an answer may be."""
_MOST_WAITING: Final = 256 * 1024
_SENT_WITH_HEAD: Final = 64 * 1024


class Connection(asyncio.Protocol):
    """A connection that handles one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._method = ""
        self._unread = b""
        self._head: Head | None = None
        self._framing: Framing | None = None
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._is_paused = False
        self._failure: httpx.TransportError | None = None
        self._is_lost = False
        self._apart = False
        self._is_last = False
        self._read_seconds: float | None = None
        self._drained: asyncio.Future[None] | None = None
        self.origin = ("", "", 0)
        self.server_address = ""
        self.idle_since = 0.0

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.server_address = str((transport.get_extra_info("peername") or [""])[0])

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except httpx.RemoteProtocolError as error:
            self._fail(error)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self.resume_writing()
        if exc is not None:
            self._failure = self._failure or httpx.ReadError("")
            self._failure.__cause__ = exc
        elif self._failure is None and self._framing is not None and not self._framing.over:
            try:
                self._framing.close()
            except httpx.RemoteProtocolError as error:
                self._failure = error
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # Called by the transport.

    def may_be_used(self, kept_seconds: float) -> bool:
        """Return true if a request may be sent: still connected, and not idle for too long."""
        if self._is_lost or self._transport is None or self._transport.is_closing():
            return False
        if self._loop.time() - self.idle_since > kept_seconds:
            return False
        # Unrequested data usually means the end of the connection.
        waiting = select.poll()
        waiting.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not waiting.poll(0)

    async def ask(self, request: httpx.Request) -> Head:
        """Send a request; returns the head of its response.

        Raises:
            httpx.TransportError: there was no response.
        """
        assert self._transport is not None, "it is connected"
        self._method = request.method
        self._head = self._framing = None
        self._apart = "chunks_apart" in request.extensions
        self._read_seconds = request.extensions.get("timeout", {}).get("read")
        self._is_last = b"close" in _words(request.headers.raw, b"connection")
        self._is_last = b"close" in _words(request.headers.raw, b"connection")
        size: int | None = request.extensions.get("body_size")
        if size is None:
            body = await request.aread()
            head_sent = _head_of(request, len(body))
            self._transport.write(head_sent + body[:_SENT_WITH_HEAD])
            if len(body) > _SENT_WITH_HEAD:
                # A long body is not copied to follow its head.
                self._transport.write(memoryview(body)[_SENT_WITH_HEAD:])
        else:
            self._transport.write(_head_of(request, size))
            await self._send_pieces(request, size)
        while (head := self._current_head()) is None:
            await self._arrival("Server disconnected without sending a response.")
        return head

    async def _send_pieces(self, request: httpx.Request, size: int) -> None:
        """Send a body as fast as the server takes it, unless it answers before the end.

        Raises:
            httpx.TransportError: the body has another size, or the server takes nothing.
        """
        assert self._transport is not None, "it is connected"
        assert isinstance(request.stream, httpx.AsyncByteStream), "a body in pieces"
        sent = 0
        async for piece in request.stream:
            sent += len(piece)
            if sent > size:
                break
            self._transport.write(piece)
            if self._drained is not None:
                try:
                    with anyio.fail_after(self._read_seconds):
                        await self._drained
                except TimeoutError as error:
                    raise httpx.WriteTimeout("") from error
            if self._is_lost or self._current_head() is not None:
                self._is_last = True
                return
        if sent != size:
            raise httpx.LocalProtocolError("`Content-Length` is not the length of the body")

    async def next_piece(self) -> bytes:
        """Some of the body; empty at its end.

        Raises:
            httpx.TransportError: the connection failed, or the response is invalid.
        """
        framing = self._framing
        assert framing is not None, "the head has come"
        while not self._pieces:
            if framing.over:
                return b""
            await self._arrival("the connection is closed")
        if len(self._pieces) == 1 or self._apart:
            piece = self._pieces.popleft()
        else:
            piece = b"".join(self._pieces)
            self._pieces.clear()
        self._held -= len(piece)
        if self._is_paused and not self._pieces:
            self._is_paused = False
            assert self._transport is not None, "it is connected"
            self._transport.resume_reading()
        return piece

    def end(self) -> bool:
        """The response was read or dropped; whether the connection can be reused."""
        head, framing, transport = self._head, self._framing, self._transport
        assert transport is not None, "it is connected"
        is_read = framing is not None and framing.over and not framing.rest and not self._pieces
        is_sent = not transport.get_write_buffer_size()
        if (
            is_read
            and is_sent
            and not (self._is_lost or self._is_last)
            and head is not None
            and head.keeps_alive
        ):
            self.idle_since = self._loop.time()
            return True
        self.close()
        return False

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _current_head(self) -> Head | None:
        return self._head

    def _take(self, data: bytes) -> None:
        framing = self._framing
        if framing is None:
            seen = len(self._unread)
            self._unread += data
            if self._find_head(seen):
                data, self._unread = self._unread, b""
                if data:
                    self._take(data)
            return
        if framing.over:
            # Unrequested data.
            self.close()
            return
        pieces: list[bytes] = []
        try:
            framing.feed(data, pieces)
        finally:
            for piece in pieces:
                self._pieces.append(piece)
                self._held += len(piece)
        if self._held > _MOST_WAITING and not self._is_paused:
            assert self._transport is not None, "it is connected"
            self._is_paused = True
            self._transport.pause_reading()

    def _find_head(self, seen: int) -> bool:
        """Look for the head of a response, skipping interim ones."""
        while found := _HEAD_END.search(self._unread, max(0, seen - 2)):
            head = Head(self._unread[: found.end()])
            self._unread = self._unread[found.end() :]
            seen = 0
            if head.status == 101:  # ruff: ignore[magic-value-comparison] - switching protocols
                raise httpx.RemoteProtocolError("the server switches to another protocol, unasked")
            if head.status >= 200:  # ruff: ignore[magic-value-comparison] - 1xx: not final
                self._framing = head.find_framing(self._method)
                self._head = head
                return True
        if len(self._unread) > MAX_HEAD:
            raise httpx.RemoteProtocolError("the head of the answer is too long")
        return False

    def _fail(self, error: httpx.TransportError) -> None:
        self._failure = self._failure or error
        self.close()

    async def _arrival(self, otherwise: str) -> None:
        """Wait for data.

        Raises:
            httpx.TransportError: there will be none.
        """
        if self._failure is not None:
            raise self._failure
        if self._is_lost:
            raise httpx.RemoteProtocolError(otherwise)
        self._arrived = self._loop.create_future()
        try:
            if self._read_seconds is None:
                await self._arrived
                return
            with anyio.fail_after(self._read_seconds):
                await self._arrived
        except TimeoutError as error:
            raise httpx.ReadTimeout("") from error
        finally:
            self._arrived = None


class CappedConnection(Connection):
    """A connection that receives no more than so many bytes: heads, chunk lines and all."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def data_received(self, data: bytes) -> None:
        self._most -= len(data)
        if self._most < 0:
            self._fail(TooManyBytesError("the answer is too large"))
        else:
            super().data_received(data)


_PORTS: Final = {"http": 80, "https": 443}
_NEXT_ADDRESS_SECONDS: Final = 0.25
_ONE_OF_SEVERAL_SECONDS: Final = 2.0


class DirectTransport(httpx.AsyncBaseTransport):
    """Requests over its own connections, kept for later requests.

    With the request extension `chunks_apart`, each chunk of the response is a piece of its own.
    With `body_size` a request body of so many bytes is sent piece by piece, not read before.
    Of the request's `timeout`, `connect` and `read` are used, the latter for writing too. How long
    it waits for a free connection is up to the caller.

    With `addresses` a connection goes to one of these and nowhere else: it looks up, checks and
    raises for what is refused, and nothing is looked up again. `most_bytes` is what a connection
    receives in its life.
    """

    def __init__(
        self,
        *,
        verify: bool | Path | ssl.SSLContext,
        most: int,
        kept_seconds: float,
        addresses: Addresses | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self._verify = verify
        self._kept_seconds = kept_seconds
        self._addresses = addresses
        self._most_bytes = most_bytes
        self._room = asyncio.Semaphore(most)
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, on an idle connection or a new one.

        Raises:
            httpx.TransportError: there was no response.
        """
        await self._room.acquire()
        connection: Connection | None = None
        try:
            connection = self._take_idle(_origin(request.url))
            if connection is None:
                connection = await self._connect(request)
            head = await connection.ask(request)
        except BaseException:
            if connection is not None:
                connection.close()
                self._open.discard(connection)
            self._room.release()
            raise
        return httpx.Response(
            head.status,
            headers=head.headers,
            stream=_Body(connection, self),
            extensions={
                "http_version": b"HTTP/" + head.version,
                "reason_phrase": head.reason,
                "server_address": connection.server_address,
            },
        )

    def over(self, connection: Connection) -> None:
        """The response on a connection was read or dropped."""
        if connection.end():
            self._idle.append(connection)
        else:
            self._open.discard(connection)
        self._room.release()

    async def aclose(self) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()
        # asyncio closes a socket with a short delay.
        await asyncio.sleep(0)

    def _take_idle(self, origin: tuple[str, str, int]) -> Connection | None:
        """The most recently used idle connection to that origin."""
        for connection in [one for one in reversed(self._idle) if one.origin == origin]:
            self._idle.remove(connection)
            if connection.may_be_used(self._kept_seconds):
                return connection
            connection.close()
            self._open.discard(connection)
        return None

    async def _connect(self, request: httpx.Request) -> Connection:
        scheme, host, port = origin = _origin(request.url)
        if scheme not in _PORTS:
            said = f"Request URL has an unsupported protocol '{scheme}://'."
            raise httpx.UnsupportedProtocol(said)
        seconds = request.extensions.get("timeout", {}).get("connect")
        try:
            with anyio.fail_after(seconds):
                connection = await self._open_connection(scheme, host, port)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("") from error
        except (ssl.SSLError, OSError, UnicodeError) as error:
            raise httpx.ConnectError(_why(error)) from error
        connection.origin = origin
        self._open.add(connection)
        return connection

    async def _open_connection(self, scheme: str, host: str, port: int) -> Connection:
        """A connection to a host: to the first of its addresses that answers."""
        tls = self._tls() if scheme == "https" else None
        if self._addresses is None:
            return await self._open_at(host, port, tls, host)
        *others, last = await self._addresses(host, port)
        for address in others:
            with suppress(OSError), anyio.move_on_after(_ONE_OF_SEVERAL_SECONDS):
                return await self._open_at(address, port, tls, host)
        return await self._open_at(last, port, tls, host)

    async def _open_at(
        self, place: str, port: int, tls: ssl.SSLContext | None, host: str
    ) -> Connection:
        """A connection to a name or an address; a certificate has to be for `host`."""
        _, connection = await asyncio.get_running_loop().create_connection(
            self._make_connection,
            place,
            port,
            ssl=tls,
            server_hostname=None if tls is None else host,
            happy_eyeballs_delay=None if is_address(place) else _NEXT_ADDRESS_SECONDS,
        )
        return connection

    def _make_connection(self) -> Connection:
        return Connection() if self._most_bytes is None else CappedConnection(self._most_bytes)

    def _tls(self) -> ssl.SSLContext:
        verify = self._verify
        return verify if isinstance(verify, ssl.SSLContext) else tls_context(verify=verify)


class _Body(httpx.AsyncByteStream):
    """The body of a response; releases its connection at the end."""

    def __init__(self, connection: Connection, transport: "DirectTransport") -> None:
        self._connection = connection
        self._transport = transport
        self._is_closed = False

    def __aiter__(self) -> "_Body":
        return self

    async def __anext__(self) -> bytes:
        if self._is_closed:
            raise httpx.StreamClosed
        piece = await self._connection.next_piece()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Release the connection, or close it if the body was not read to its end."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.over(self._connection)


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS.get(url.scheme, 0)


def is_web_url(text: str) -> bool:
    """Return true if a text is a URL with a host that can be asked over HTTP."""
    try:
        url = httpx.URL(text)
        return url.scheme in _PORTS and bool(url.host)
    except (httpx.InvalidURL, UnicodeError, ValueError):
        return False


@cache
def tls_context(*, verify: bool | Path) -> ssl.SSLContext:
    """Return the context of the process: creating one takes tens of milliseconds.

    With a path only the authorities in that PEM file are trusted.

    Raises:
        httpx.ConnectError: they cannot be read.
    """
    if isinstance(verify, Path):
        try:
            context = ssl.create_default_context(cafile=verify)
        except OSError as error:
            raise httpx.ConnectError(unread_authorities(verify, error)) from error
    else:
        context = httpx.create_ssl_context(verify=verify, trust_env=False)
    context.set_alpn_protocols(["http/1.1"])
    return context


def own_tls_context() -> ssl.SSLContext:
    """A context that trusts the authorities of `SSL_CERT_FILE` or `SSL_CERT_DIR`, if one is set.

    Raises:
        httpx.ConnectError: they cannot be read.
    """
    try:
        return httpx.create_ssl_context(trust_env=True)
    except OSError as error:
        place = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
        raise httpx.ConnectError(unread_authorities(f"{place}` (`SSL_CERT_FILE", error)) from error


def unread_authorities(place: str | Path, error: OSError) -> str:
    return f"the authorities in `{place}` cannot be read: {error.strerror or error}"


def _why(error: Exception) -> str:
    """The error for a failed connection, in httpx's wording."""
    is_own = isinstance(error, (ssl.SSLError, UnicodeError)) or "gaierror" in type(error).__name__
    return str(error) if is_own else "All connection attempts failed"


def unknown_host(error: BaseException, origin: str) -> str | None:
    """The message if an address look-up failed, whichever exception wraps it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, socket.gaierror):
            host = urlsplit(origin).hostname or origin
            if cause.errno == socket.EAI_AGAIN:
                return f"DNS gave no answer for `{host}`"
            return f"DNS has no address for `{host}`"
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


INFLATES: Final = frozenset({"gzip", "x-gzip", "deflate"})
"""The content codings that `inflate` knows."""
_GZIP: Final = zlib.MAX_WBITS | 16
_STEP: Final = 64 * 1024
_MOST_MEMBERS: Final = 100


async def inflate(body: AsyncIterable[bytes], coding: str) -> AsyncIterator[bytes]:
    """A compressed body, in pieces of bounded size; how many are taken is up to the caller.

    Raises:
        httpx.RemoteProtocolError: it is not valid, or incomplete.
    """
    decoder = _Inflater(is_gzip=coding != "deflate")
    try:
        async for data in body:
            for piece in decoder.feed(data):
                yield piece
        decoder.end()
    except zlib.error as error:
        said = f"the answer is not valid {coding}, or incomplete"
        raise httpx.RemoteProtocolError(said) from error


class _Inflater:
    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._stream = zlib.decompressobj(_GZIP) if is_gzip else None
        self._start = b""
        self._is_empty = True
        self._members = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that these bytes bring.

        Raises:
            zlib.error: they are not valid.
        """
        self._is_empty = self._is_empty and not data
        if self._stream is None:
            self._start += data
            if len(self._start) < 2:  # ruff: ignore[magic-value-comparison] - the bytes of a header
                return
            # `deflate` is either what its name says or zlib's format, which it should be.
            is_zlib = self._start[0] & 15 == zlib.DEFLATED and not (
                int.from_bytes(self._start[:2]) % 31
            )
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
            data = self._start
        while True:
            piece = self._stream.decompress(data, _STEP)
            if piece:
                yield piece
            if self._stream.eof:
                data = self._stream.unused_data
                if not (self._is_gzip and data.startswith(b"\x1f")):
                    break
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise zlib.error("too many members")
                self._stream = zlib.decompressobj(_GZIP)
            else:
                data = self._stream.unconsumed_tail
                if not data and len(piece) < _STEP:
                    break

    def end(self) -> None:
        """The body has ended.

        Raises:
            zlib.error: it was incomplete.
        """
        if not self._is_empty and not (self._stream is not None and self._stream.eof):
            raise zlib.error("incomplete")
