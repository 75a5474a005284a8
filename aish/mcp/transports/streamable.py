"""Streamable HTTP: each message is a POST, answered by JSON or by a stream of events.

A server that only answers POST, closes each connection, sends 202 without a body for
notifications and has no session is normal here.
"""

from collections.abc import Callable
from contextlib import suppress

import anyio

from aish.core.patterns import lazy_pattern
from aish.mcp.protocol import messages
from aish.mcp.protocol.messages import (
    MAX_LINE,
    ConnectionBrokenError,
    HttpStatusError,
    NotAMessageError,
    RpcError,
    RpcResponse,
    ServerRequest,
    SessionLostError,
    TransportError,
    UnreachableError,
)
from aish.mcp.protocol.mirrored_headers import is_header_value
from aish.mcp.transports.http import HttpOrigin, Reply
from aish.mcp.transports.transport import Headers, Inbox, Outgoing
from aish.wire.errors import LimitError
from aish.wire.sse import Caps, SseEvent, SseReader

SESSION = "mcp-session-id"
NOT_FOUND = 404
FAILED = 400
SAYS_WHY = frozenset({400, 410})
"""In the place of 404, if the body says that it is about the session."""
_OF_A_SESSION = lazy_pattern(r"(?i)session|server not initialized")
NO_CONTENT = frozenset({202, 204})
MAX_STREAM = 256 * 1024 * 1024
CAPS = Caps(MAX_LINE, MAX_STREAM, MAX_STREAM)
"""More than of a model: one picture in the result of a tool is a long line."""
MAX_RECONNECTS = 5
"""Requests in a row for the rest of an answer that bring nothing of it; then it is unknown."""
UNANSWERED = "the stream of events ended without an answer, so the outcome is unknown"
DEFAULT_RETRY = 1.0
MAX_RETRY = 30.0


class Cursor:
    """The position in an event stream, used to resume it (2025-11-25)."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.retry = DEFAULT_RETRY

    def see(self, event: SseEvent) -> None:
        if event.id and is_header_value(event.id):
            self.last = event.id
        if event.retry is not None:
            self.retry = min(event.retry / 1000, MAX_RETRY)


async def refusal_of(reply: Reply, *, has_session: bool) -> HttpStatusError:
    """The error of a request that was refused, and sent in a session or not."""
    text = await reply.read_start()
    is_lost = reply.status == NOT_FOUND or (
        reply.status in SAYS_WHY and _OF_A_SESSION.search(text) is not None
    )
    if is_lost and has_session:
        return SessionLostError(reply.status, text)
    return HttpStatusError(reply.status, text, _rpc_error(text))


class StreamableHttp:
    """The transport of 2025-03-26 and later."""

    over_http = True

    def __init__(self, door: HttpOrigin) -> None:
        self.door = door
        self._inbox: Inbox = _nobody
        self._session: Headers = ()
        self._version: Headers = ()
        self._heard, self._is_heard = Cursor(), False

    @property
    def has_session(self) -> bool:
        return bool(self._session)

    async def open(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._session = ()
        self._heard, self._is_heard = Cursor(), False

    async def exchange(self, outgoing: Outgoing) -> RpcResponse:
        body = messages.request(outgoing.number, outgoing.method, outgoing.params)
        headers = (*outgoing.headers, *self._session)
        async with self.door.post(headers, body) as reply:
            if reply.status >= FAILED:
                raise await refusal_of(reply, has_session=self.has_session)
            if outgoing.method == "initialize":
                self._begin_session(reply.header(SESSION))
            if reply.status in NO_CONTENT:
                raise TransportError(f"HTTP {reply.status} without an answer to a request")
            if not reply.is_events:
                return await self._pick(reply, outgoing.number)
            cursor = Cursor()
            with suppress(ConnectionBrokenError):
                answer = await self._from_events(reply, outgoing.number, cursor)
                if answer is not None:
                    return answer
        return await self._resume(outgoing.number, cursor)

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        self._version = headers
        async with self.door.post((*headers, *self._session), body) as reply:
            if reply.status >= FAILED:
                raise await refusal_of(reply, has_session=self.has_session)
            await reply.drain()

    async def listen(self, on_open: Callable[[], None]) -> float | None:
        """GET the stream of unsolicited messages, from where the last one ended."""
        is_told = False
        with suppress(ConnectionBrokenError):
            async with self.door.open("GET", self._get_headers(self._heard)) as reply:
                if reply.status >= FAILED or not reply.is_events:
                    # A server that never had a stream need not say 405.
                    has_session = self.has_session and self._is_heard
                    raise await refusal_of(reply, has_session=has_session)
                self._is_heard = True
                on_open()
                events = Events(reply)
                while (event := await events.next()) is not None:
                    is_told = True
                    self._heard.see(event)
                    self._pass_on(event, None)
        return self._heard.retry if is_told else None

    async def close(self) -> None:
        """End the session, if there is one, and the connections."""
        try:
            if self._session:
                # A server that is not notified drops the session by itself.
                with anyio.move_on_after(1), suppress(TransportError):
                    async with self.door.open("DELETE", (*self._version, *self._session)):
                        pass
        finally:
            await self.door.close()

    def _begin_session(self, session: str) -> None:
        if is_header_value(session):
            self._session = ((SESSION, session),)

    async def _pick(self, reply: Reply, number: int) -> RpcResponse:
        raw = await reply.read()
        try:
            batch = messages.decode(raw)
        except NotAMessageError as error:
            problem = f"the answer is {error}: {reply.body_start(raw)}"
            raise TransportError(problem) from error
        for message in batch:
            if not isinstance(message, RpcResponse):
                self._inbox(message, number)
        answer = messages.find_answer(batch, number)
        if answer is None:
            raise TransportError("the answer belongs to another request")
        return answer

    async def _from_events(self, reply: Reply, number: int, cursor: Cursor) -> RpcResponse | None:
        is_resumed = cursor.last is not None
        events = Events(reply)
        while (event := await events.next()) is not None:
            cursor.see(event)
            answer = self._pass_on(event, number, is_resumed=is_resumed)
            if answer is not None:
                await reply.drain()
                return answer
        return None

    def _pass_on(
        self, event: SseEvent, number: int | None, *, is_resumed: bool = False
    ) -> RpcResponse | None:
        """Handle the messages in an event; returns the client's answer if it is among them."""
        if not event.data or event.event not in {None, "message"}:
            return None
        try:
            batch = messages.decode(event.data)
        except NotAMessageError:
            return None  # an event that is not JSON-RPC is ignored
        for message in batch:
            if not isinstance(message, RpcResponse):
                self._inbox(message, number)
        if number is None:
            return None
        # A resumed stream names no request: its ids are those of the recording.
        if is_resumed and self.door.replays:
            return next((item for item in batch if isinstance(item, RpcResponse)), None)
        return messages.find_answer(batch, number)

    async def _resume(self, number: int, cursor: Cursor) -> RpcResponse:
        """Request the rest of an answer whose stream has ended or broken, as the server allowed."""
        silent, why = 0, ""
        while cursor.last is not None and silent < MAX_RECONNECTS:
            pause = min(cursor.retry * 2**silent, MAX_RETRY)
            await anyio.sleep(0 if self.door.hurries else pause)
            silent, last = silent + 1, cursor.last
            try:
                async with self.door.open("GET", self._get_headers(cursor)) as reply:
                    if reply.status >= FAILED or not reply.is_events:
                        raise await refusal_of(reply, has_session=self.has_session)
                    answer = await self._from_events(reply, number, cursor)
                    if answer is not None:
                        return answer
            except HttpStatusError as error:
                why = f"; {error.message}"
                if not error.is_passing:
                    break
            except (UnreachableError, ConnectionBrokenError) as error:
                why = f"; {error.message}"
            if cursor.last != last:
                silent, why = 0, ""
        raise TransportError(f"{UNANSWERED}{why}")

    def _get_headers(self, cursor: Cursor) -> Headers:
        last = (("last-event-id", cursor.last),) if cursor.last else ()
        return (*self._version, *self._session, *last)


class Events:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._reader = SseReader(CAPS)
        self._waiting: list[SseEvent] = []
        self._ended = False

    async def next(self) -> SseEvent | None:
        """The next event, `None` at the end of the stream.

        Raises:
            TransportError: the connection was lost, or the content is too large.
        """
        while not self._waiting and not self._ended:
            chunk = await self._reply.next_chunk()
            self._ended = chunk is None
            try:
                events = self._rest() if chunk is None else self._reader.feed(chunk)
            except LimitError as error:
                raise TransportError("the stream of events is larger than is allowed") from error
            self._waiting = events[::-1]
        return self._waiting.pop() if self._waiting else None

    def _rest(self) -> list[SseEvent]:
        """The events at the end of the body; one that was cut counts only if it is a message."""
        return [*self._reader.settle(), *filter(_is_message, self._reader.close())]


def _is_message(event: SseEvent) -> bool:
    try:
        return bool(messages.decode(event.data))
    except NotAMessageError:
        return False


def _rpc_error(text: str) -> RpcError | None:
    """The JSON-RPC error in an HTTP error's body: only a whole envelope counts."""
    try:
        batch = messages.decode(text)
    except NotAMessageError:
        return None
    first = batch[0]
    return first.error if isinstance(first, RpcResponse) else None


def _nobody(message: ServerRequest | messages.Noted, number: int | None) -> None:
    """Ignore messages before `open`."""
