"""The only sockets to models: one POST, its status, its bytes.

Each connection has a client of its own, kept for the next request. Bytes are buffered between the
task that reads from the network and the one that decodes them, under the deadlines of one request:
first token, idle, whole turn.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import anyio
import httpx
from anyio.abc import TaskGroup

from aish.config.model import ModelEntry, ModelTimeout
from aish.core.messages import Delta
from aish.models.dialect_choice import wire_of
from aish.models.retry import (
    BROKEN,
    MALFORMED,
    REFUSED,
    AttemptError,
    error_of_malformed,
    hint_for,
    judge_status,
    not_connected,
    too_late,
)
from aish.net.http import INFLATES, DirectTransport, inflate, tls_context

if TYPE_CHECKING:
    from aish.wire.answer_stream import AnswerStream


class Closed(Protocol):
    async def aclose(self) -> None: ...


Client = TypeVar("Client", bound=Closed)


class HttpClients(Generic[Client]):
    """HTTP clients with one connection each, opened as needed.

    For each request that begins or ends, an httpx pool iterates over all pairs of its connections:
    with 32 in a pool that is five milliseconds per request.
    """

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._all: list[Client] = []
        self._idle: list[Client] = []

    def take(self) -> Client:
        """An unused client; the one used last is most likely still connected."""
        if self._idle:
            return self._idle.pop()
        client = self._make()
        self._all.append(client)
        return client

    def give_back(self, client: Client) -> None:
        self._idle.append(client)

    async def aclose(self) -> None:
        clients, self._all = self._all, []
        for client in clients:
            await client.aclose()


CAP = 64 * 1024 * 1024
_PLENTY = 1024 * 1024
# Number of pieces of a replay after which other tasks run.
_TURN = 64


class BodyBuffer:
    """The body of a response, with one producer and one consumer task."""

    __slots__ = (
        "_arrived", "_chunks", "_ended", "_failure", "_held", "_room", "_size", "_taken",
        "keeps_cuts",
    )  # fmt: skip

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._taken = 0
        self.keeps_cuts = False
        """Whether what came apart is taken apart."""
        self._held = 0
        self._size = 0
        self._ended = False
        self._failure: Exception | None = None
        self._arrived = asyncio.Event()
        self._room: asyncio.Event | None = None

    @property
    def empty(self) -> bool:
        return not self._chunks

    @property
    def has_ended(self) -> bool:
        return self._ended

    def put(self, chunk: bytes) -> bool:
        """Add a chunk; whether there is room for another right away.

        Raises:
            AttemptError: the body exceeds the size limit.
        """
        self._size += len(chunk)
        if self._size > CAP:
            raise AttemptError(f"the answer is larger than {CAP >> 20} MiB", REFUSED)
        self._held += len(chunk)
        self._chunks.append(chunk)
        self._arrived.set()
        return self._held < _PLENTY

    async def room(self) -> None:
        while self._chunks:
            self._room = asyncio.Event()
            await self._room.wait()

    def end(self, failure: Exception | None) -> None:
        self._ended = True
        self._failure = failure
        self._arrived.set()

    async def wait_for_end(self) -> None:
        """Wait for the end, whether or not everything was taken."""
        while not self._ended:
            self._arrived.clear()
            await self._arrived.wait()

    async def take(self) -> bytes:
        """Everything received since the last call, at least one byte; empty at the end.

        Raises:
            Exception: the failure that ended it, once everything before it was taken.
        """
        while not self._chunks:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        if self.keeps_cuts:
            self._taken += 1
            if self._taken % _TURN == 0:
                await asyncio.sleep(0)
            data = self._chunks.popleft()
            self._held -= len(data)
            if not self._chunks and self._room is not None:
                self._room.set()
            return data
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._held = 0
        if self._room is not None:
            self._room.set()
        return data


_SOON = 1.0


class Deadlines:
    """Cancels a scope when the endpoint is too slow; `expired` then names the deadline."""

    __slots__ = (
        "_intake", "_last", "_loop", "_scope", "_started", "_timeout", "_timer", "_turn_ends",
        "expired",
    )  # fmt: skip

    def __init__(
        self, scope: anyio.CancelScope, intake: BodyBuffer, timeout: ModelTimeout, turn_ends: float
    ) -> None:
        self._scope = scope
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._turn_ends = turn_ends
        self._started = self._loop.time()
        self._last: float | None = None
        self.expired: str | None = None
        self._timer = self._loop.call_at(self._due()[0], self._fire)

    def note_progress(self) -> None:
        """Note that the answer has grown. Not for comments and pings."""
        first = self._last is None
        self._last = self._loop.time()
        if first:
            # From now on the idle deadline applies, which may be the nearer one.
            self._rearm()

    def end_within(self, seconds: float) -> None:
        """The answer is complete: limit the wait for the end of the body."""
        self._turn_ends = min(self._turn_ends, self._loop.time() + seconds)
        self._rearm()

    def expire(self, name: str) -> None:
        """Simulate a passed deadline: a replay does not wait for it again."""
        self.expired = name
        self._scope.cancel()

    def close(self) -> None:
        self._timer.cancel()

    def _rearm(self) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_at(self._due()[0], self._fire)

    def _due(self) -> tuple[float, str]:
        """The nearest deadline and its name in the pipeline file."""
        if self._last is None:
            nearest = (self._started + self._timeout.first_token, "first_token")
        else:
            nearest = (self._last + self._timeout.idle, "idle")
        return min(nearest, (self._turn_ends, "turn"))

    def _fire(self) -> None:
        due, name = self._due()
        now = self._loop.time()
        if now < due:
            self._timer = self._loop.call_at(due, self._fire)
        elif name != "turn" and not self._intake.empty:
            # The consumer is slow, not the endpoint.
            self._timer = self._loop.call_at(now + _SOON, self._fire)
        else:
            self.expired = name
            self._scope.cancel()


KEEP_ALIVE_SECONDS = 60.0
TRAILER_SECONDS = 1.0
MARKER_SECONDS = 3.0
"""How long the marker of the end, or an error, may come after the finish reason and the usage."""
ERROR_BODY_SECONDS = 10.0
_ERROR_BODY_CAP = 64 * 1024
_SHOWN = 400
_SILENT = "without sending a response"
_OK = 200
_REDIRECT = 300

MakeClient = Callable[[ModelEntry], httpx.AsyncBaseTransport]
Check = Callable[[httpx.Response], Awaitable[None]]


def is_sendable(url: str) -> bool:
    """Return true if the host of a URL is a valid name, including internationalized ones."""
    try:
        return bool(httpx.URL(url).host)
    except (httpx.InvalidURL, ValueError):
        return False


def open_client(entry: ModelEntry) -> httpx.AsyncBaseTransport:
    """Open a connection, reopened as needed; uses a proxy only if the entry names one."""
    if entry.proxy is None:
        return _KeptClient(
            DirectTransport(verify=entry.verify_tls, most=1, kept_seconds=KEEP_ALIVE_SECONDS)
        )
    remember_absence("sniffio")
    is_https = httpx.URL(entry.base_url or "").scheme == "https"
    proxied = httpx.AsyncHTTPTransport(
        # Plain http needs no certificates, so none are loaded.
        verify=tls_context(verify=is_https and entry.verify_tls),
        trust_env=False,
        proxy=httpx.Proxy(entry.proxy),
        limits=httpx.Limits(
            max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEP_ALIVE_SECONDS
        ),
    )
    return _KeptClient(proxied)


def remember_absence(name: str) -> None:
    """Look for the module `name` once; if it is missing, later imports fail at once.

    Python does not cache failed imports and searches the whole path again at the next. httpcore,
    used for proxies, tries `sniffio` several times per request: this saves a tenth of a tool turn.
    """
    if name in sys.modules:
        return
    try:
        import_module(name)
    except ImportError:
        modules: dict[str, Any] = sys.modules
        modules[name] = None


class _KeptClient(httpx.AsyncBaseTransport):
    """A client of one connection, below a cassette: what it hides is not recorded.

    A kept connection may be closed by the endpoint just when a request is sent: then the request
    is sent once more, on a new one. An answer that is compressed unasked is decompressed.
    """

    def __init__(self, client: httpx.AsyncBaseTransport) -> None:
        self._client = client
        self._is_kept = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            httpx.TransportError: there was no response.
        """
        try:
            response = await self._client.handle_async_request(request)
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            is_silent = isinstance(error, httpx.NetworkError) or _SILENT in str(error)
            if not (self._is_kept and is_silent):
                raise
            self._is_kept = False
            response = await self._client.handle_async_request(request)
        self._is_kept = True
        coding = response.headers.get("content-encoding", "").strip().lower()
        if coding in INFLATES:
            response.stream = _Inflated(body_of(response), coding)
            del response.headers["content-encoding"]
        return response

    async def aclose(self) -> None:
        await self._client.aclose()


class _Inflated(httpx.AsyncByteStream):
    def __init__(self, body: httpx.AsyncByteStream, coding: str) -> None:
        self._body = body
        self._pieces = inflate(body, coding)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        """Close the connection, if the body was not read to its end."""
        await self._body.aclose()


class ModelExchange:
    """A request and its response, handled by a task of its own (`run`).

    The consumer's task never waits for the network itself: an exceeded deadline, or a consumer that
    leaves, cancels only that task.
    """

    __slots__ = (
        "_client", "_clients", "_entry", "_intake", "_over", "_progress", "_scope", "_watch",
        "recorded_again",
    )  # fmt: skip

    def __init__(
        self, clients: HttpClients[httpx.AsyncBaseTransport], entry: ModelEntry, turn_ends: float
    ) -> None:
        self._clients = clients
        self._client = clients.take()
        self._entry = entry
        self._intake = BodyBuffer()
        self._scope = anyio.CancelScope()
        self._watch = Deadlines(self._scope, self._intake, entry.timeout, turn_ends)
        self._progress = 0
        self._over = False
        self.recorded_again: Callable[[], bool] | None = None
        """In a replay, whether another answer to the same request is held."""

    async def run(self, request: httpx.Request, check: Check) -> None:
        """Send the request, check the head of the response, receive its body."""
        failure: Exception | None = None
        try:
            with self._scope:
                await self._talk(request, check)
        except httpx.HTTPError as error:
            failure = in_words(error, self._entry)
        except Exception as error:  # ruff: ignore[blind-except] - raised again in the consumer
            failure = error
        finally:
            self._watch.close()
            self._clients.give_back(self._client)
            if self._watch.expired is not None:
                failure = too_late(self._watch.expired, self._entry)
            self._intake.end(failure)

    async def deltas(self, reader: "AnswerStream") -> list[Delta]:
        """The decoded deltas of the data received, at least one; empty at the end.

        Raises:
            AttemptError: no connection, a status that is not a success, a stream that broke off, a
                deadline that passed.
            StreamError: the reader cannot decode the answer.
        """
        while data := await self._take(reader):
            batch = reader.feed(data)
            if not self._intake.has_ended:
                if reader.progress != self._progress:
                    self._progress = reader.progress
                    self._watch.note_progress()
                if reader.done:
                    self._watch.end_within(TRAILER_SECONDS)
                elif reader.counted and reader.complete:
                    self._watch.end_within(MARKER_SECONDS)
            if batch:
                return batch
        if self._over:
            return []
        self._over = True
        return reader.close()

    async def aclose(self) -> None:
        """Abort an unfinished response, and wait for that."""
        if self._intake.has_ended:
            return
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._intake.wait_for_end()

    async def _talk(self, request: httpx.Request, check: Check) -> None:
        # For a cassette: which deadline passed, if any, and how to simulate it.
        request.extensions["deadline"] = lambda: self._watch.expired
        request.extensions["pass_deadline"] = self._watch.expire
        response = await self._client.handle_async_request(request)
        self.recorded_again = response.extensions.get("recorded_again")
        self._intake.keeps_cuts = self.recorded_again is not None
        try:
            await check(response)
            intake = self._intake
            async for chunk in body_of(response):
                if not intake.put(chunk):
                    await intake.room()
        finally:
            await response.aclose()

    async def _take(self, reader: "AnswerStream") -> bytes:
        try:
            return await self._intake.take()
        except AttemptError:
            # After a complete answer, any end of the body is accepted.
            if reader.complete:
                return b""
            raise


_NO_EXTENSIONS: Mapping[str, object] = MappingProxyType({})


class ModelTransport:
    def __init__(
        self,
        entry: ModelEntry,
        headers: Mapping[str, str],
        *,
        mask: Callable[[str], str],
        now: Callable[[], float],
        tasks: TaskGroup,
        make_client: MakeClient = open_client,
    ) -> None:
        self._entry = entry
        self._tasks = tasks
        base = httpx.URL(entry.base_url or "")
        self._url = base.copy_with(path=wire_of(entry).path(base.path))
        self._headers = self._fields(headers)
        self._mask = mask
        self._now = now
        self._clients = HttpClients(lambda: make_client(entry))
        timeout = entry.timeout
        # Reads are limited by `Deadlines`: httpx's own read time-out restarts at each ping.
        self._limits = httpx.Timeout(
            connect=timeout.connect, read=None, write=timeout.first_token, pool=None
        ).as_dict()

    async def aclose(self) -> None:
        await self._clients.aclose()

    def send(
        self,
        body: bytes,
        turn_ends: float,
        headers: Mapping[str, str] | None = None,
        extensions: Mapping[str, object] = _NO_EXTENSIONS,
    ) -> ModelExchange:
        """Send one request, to end at `turn_ends` of the loop's time; the caller closes it.

        `headers` take the place of those that all requests have; `extensions` are for the client.
        """
        fields = self._headers if headers is None else self._fields(headers)
        # With a stream, httpx takes the headers as they are; it would make them three times over.
        request = httpx.Request(
            "POST",
            self._url,
            headers=[*fields, (b"Content-Length", b"%d" % len(body))],
            stream=httpx.ByteStream(body),
            extensions={"timeout": self._limits, **extensions},
        )
        request.read()
        exchange = ModelExchange(self._clients, self._entry, turn_ends)
        self._tasks.start_soon(exchange.run, request, self._check, name="exchange")
        return exchange

    def _fields(self, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        """The headers that all requests have, in the order of httpx."""
        return [(b"Host", self._url.netloc), *httpx.Headers(dict(headers)).raw]

    async def _check(self, response: httpx.Response) -> None:
        """Raise for everything but success."""
        status = response.status_code
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        compressed = encoding not in {"", "identity"}
        if status >= _REDIRECT or status < _OK:
            raw = b"(compressed body)" if compressed else await read_start(response)
            text = raw.decode("utf-8", "replace")
            advice = judge_status(status, response.headers, text, self._now())
            excerpt = self._mask(text).strip()[:_SHOWN] or response.reason_phrase
            if advice is MALFORMED:
                raise error_of_malformed(excerpt)
            hint = hint_for(status, self._entry, text)
            raise AttemptError(f"HTTP {status}: {excerpt}", advice, hint)
        if compressed:
            message = f"the answer is compressed ({encoding[:20]}) although that was not asked for"
            raise AttemptError(message, REFUSED)


async def ask_for(entry: ModelEntry, headers: Mapping[str, str], path: str) -> int:
    """The status of one GET below `base_url`, without its body.

    Raises:
        AttemptError: there is no response.
    """
    base = httpx.URL(entry.base_url or "")
    url = base.copy_with(path=wire_of(entry).path(base.path, path))
    limits = httpx.Timeout(entry.timeout.connect).as_dict()
    request = httpx.Request("GET", url, headers=dict(headers), extensions={"timeout": limits})
    transport = open_client(entry)
    try:
        response = await transport.handle_async_request(request)
        await response.aclose()
    except httpx.HTTPError as error:
        raise in_words(error, entry) from None
    finally:
        await transport.aclose()
    return response.status_code


def body_of(response: httpx.Response) -> httpx.AsyncByteStream:
    """The raw body: no decoding, and none of the layers of `aiter_raw`."""
    if not isinstance(response.stream, httpx.AsyncByteStream):
        raise TypeError("there is no asynchronous body to read")
    return response.stream


async def read_start(response: httpx.Response) -> bytes:
    """The first bytes of an error's body, as far as received: the status is sufficient."""
    body = bytearray()
    with suppress(httpx.HTTPError), anyio.move_on_after(ERROR_BODY_SECONDS):
        async for chunk in body_of(response):
            body += chunk
            if len(body) >= _ERROR_BODY_CAP:
                break
    return bytes(body[:_ERROR_BODY_CAP])


def in_words(error: httpx.HTTPError, entry: ModelEntry) -> AttemptError:
    """The failure of a connection, in the words of this package."""
    why = str(error) or type(error).__name__
    match error:
        case httpx.ConnectTimeout():
            return not_connected(f"none within {entry.timeout.connect:g} s", entry)
        case httpx.ConnectError():
            return not_connected(why, entry, error)
        case httpx.ProxyError():
            hint = f"check `models.{entry.alias}.proxy`"
            return AttemptError(f"the proxy refused: {why}", BROKEN, hint)
        case httpx.UnsupportedProtocol() | httpx.LocalProtocolError():
            return AttemptError(f"the request cannot be sent: {why}", REFUSED)
        case _:
            return AttemptError(f"the connection broke: {why}", BROKEN)


@asynccontextmanager
async def background() -> AsyncGenerator[TaskGroup]:
    """For tasks that never fail: exceptions of the body are raised unchanged, not in a group."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except BaseException as error:  # ruff: ignore[blind-except] - raised again below
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
