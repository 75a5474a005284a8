"""Declarations and answers of a service over HTTP: routes, JSON, errors, streams of events.

Imported only where something listens: it needs the extra `serve`.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import field

import anyio
from anyio.abc import TaskGroup
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue, json_text, strict_json
from aish.net.listen.access import Peer
from aish.net.listen.addresses import Address
from aish.net.listen.http_error import HttpError, error_document
from aish.net.listen.request_checks import Listening

JSON_TYPE = "application/json"
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
"""The methods whose requests have a body, which is JSON."""
_PING_SECONDS = 15.0
_MOST_TEXT = 16 << 20
_MOST_WRITTEN = 256 << 10


Handler = Callable[[Request, Peer], Awaitable[Response]]


@frozen
class Route:
    """A path (`/approvals/{id}`, `/values/{path:path}`) and what answers it.

    `scope` is what the peer must have. A `public` route needs no token, and one that is `anonymous`
    looks at none; `any_host` skips the check of `Host`, for what a load balancer asks.
    """

    path: str
    methods: tuple[str, ...]
    scope: str
    handler: Handler
    public: bool = False
    any_host: bool = False
    anonymous: bool = False


@slotted
class ConnectionState:
    """A connection, as what answers its requests sees it: `request.state.connection`."""

    peer: Peer
    local: Address
    is_tls: bool
    closing: anyio.Event
    """The server is ending: streams end with what they have."""
    gone: anyio.Event
    """The client has left, or was cut off."""
    abort: Callable[[], None]
    """Cut it off, with what was not sent yet."""
    tasks: TaskGroup | None = None
    """What an answer starts beside itself; there from the first request on."""
    trusted: bool = False
    """A request on it had a credential."""
    on_gone: set[Callable[[], None]] = field(default_factory=set)
    """Called when the client has left; without a task that waits for it."""

    @property
    def listener(self) -> Listening:
        """Listener that accepted the request."""
        return Listening(self.local, is_tls=self.is_tls)


def connection_of(scope: Scope) -> ConnectionState:
    """The connection of a request."""
    connection = scope["state"]["connection"]
    assert isinstance(connection, ConnectionState)
    return connection


def json_response(
    value: JsonValue, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON document."""
    return Response(json_text(value), status, headers, JSON_TYPE)


def error_response(error: HttpError) -> Response:
    """An error as JSON: `{"error": {code, message, hint}}`."""
    return json_response(error_document(error), error.status, error.headers)


async def json_body(request: Request) -> JsonValue:
    """The body of a request.

    Raises:
        HttpError: it is not valid JSON.
    """
    try:
        return strict_json((await request.body()).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "invalid_json", "the body is not valid JSON") from error


@frozen
class ServerEvent:
    """An event of a stream; neither its `event` nor its `id` may have a line break.

    Of those with the same `key` only the last one matters; it is not sent.
    """

    data: str
    event: str = ""
    id: str = ""
    key: str = ""

    def encode(self) -> bytes:
        """The event in the format of `text/event-stream`."""
        lines = [f"{name}: {value}" for name, value in (("event", self.event), ("id", self.id))]
        kept = [line for line in lines if not line.endswith(": ")]
        data = self.data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return "\n".join([*kept, *(f"data: {line}" for line in data), "", ""]).encode()


class EventQueue:
    """The events that one reader has not got yet; it is cut off where they become too many.

    So it is where they have more than `most_text` characters together, however few they are.
    """

    def __init__(self, most: int = 1000, most_text: int = _MOST_TEXT) -> None:
        self._most = most
        self._most_text = most_text
        self._text = 0
        self._events: deque[ServerEvent] = deque()
        self._changed = anyio.Event()
        self._closed = False
        self.overflowed = anyio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._events

    def put(self, event: ServerEvent) -> None:
        """Add an event; never waits. One with the same key that was not taken yet is dropped."""
        if self._closed:
            return
        if event.key:
            self._drop(event.key)
        self._text += len(event.data)
        is_long = self._text > self._most_text and len(self._events) > 0
        if is_long or len(self._events) >= self._most:
            self._closed = True
            self._events.clear()
            self.overflowed.set()
        else:
            self._events.append(event)
        self._changed.set()

    def close(self) -> None:
        """No event follows: the stream ends after those that are left."""
        self._closed = True
        self._changed.set()

    async def take(self) -> list[ServerEvent]:
        """The events that are there, at least one; none at the end."""
        while not self._events and not self._closed:
            self._changed = anyio.Event()
            await self._changed.wait()
        found = list(self._events)
        self._events.clear()
        self._text = 0
        return found

    def _drop(self, key: str) -> None:
        for at, event in enumerate(self._events):
            if event.key == key:
                self._text -= len(event.data)
                del self._events[at]
                return


class EventStreamResponse(Response):
    """Events as they come (`text/event-stream`), until the queue is closed or the client leaves.

    `on_end` is called in every case. A comment each 15 seconds shows whether anybody reads.
    """

    media_type = "text/event-stream"

    def __init__(self, queue: EventQueue, on_end: Callable[[], None] | None = None) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"x-accel-buffering": "no"})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._queue = queue
        self._on_end = on_end

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,  # ruff: ignore[unused-method-argument] - every answer gets it
        send: Send,
    ) -> None:
        """Write the events until there are no more, or the reader disconnects."""
        connection = connection_of(scope)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._close_with, connection)
                group.start_soon(self._cut_off, connection)
                group.start_soon(_cancel_after, connection.gone, group.cancel_scope)
                await self._write(send)
                group.cancel_scope.cancel()
        finally:
            if self._on_end is not None:
                self._on_end()

    async def _write(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        if self._queue.is_empty:  # the head goes at once, or together with the first events
            await send({"type": "http.response.body", "body": b"", "more_body": True})
        while True:
            events: list[ServerEvent] | None = None
            with anyio.move_on_after(_PING_SECONDS):
                events = await self._queue.take()
            if events is not None and not events:
                break
            for body in (b":\n\n",) if events is None else _bodies(events):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        if not self._queue.overflowed.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _close_with(self, connection: ConnectionState) -> None:
        await connection.closing.wait()
        self._queue.close()

    async def _cut_off(self, connection: ConnectionState) -> None:
        await self._queue.overflowed.wait()
        connection.abort()


def _bodies(events: Iterable[ServerEvent]) -> Iterator[bytes]:
    """The encoded events, several at a time while they are short."""
    body = bytearray()
    for event in events:
        body += event.encode()
        if len(body) >= _MOST_WRITTEN:
            yield bytes(body)
            body.clear()
    if body:
        yield bytes(body)


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
