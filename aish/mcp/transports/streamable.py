"""Streamable HTTP: each message is a POST, answered by JSON or by a stream of events (M2).

A server that only answers POST, closes each connection, sends 202 without a body for
notifications and has no session is normal here.
"""

from contextlib import suppress

import anyio

from aish.mcp.protocol import messages
from aish.mcp.protocol.messages import (
    MAX_LINE,
    Answer,
    Asked,
    HttpStatusError,
    NotAMessageError,
    RpcError,
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
NO_CONTENT = frozenset({202, 204})
MAX_STREAM = 256 * 1024 * 1024
CAPS = Caps(MAX_LINE, MAX_STREAM, MAX_STREAM)
"""More than of a model: one picture in the result of a tool is a long line."""
MAX_RECONNECTS = 5
"""Streams in a row that end without an event; then we stop asking."""
DEFAULT_RETRY = 1.0
MAX_RETRY = 30.0


class Cursor:
    """The position in an event stream, used to resume it (2025-11-25)."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.retry = DEFAULT_RETRY

    def see(self, event: SseEvent) -> None:
        """Store the id and the retry delay of an event."""
        if event.id and is_header_value(event.id):
            self.last = event.id
        if event.retry is not None:
            self.retry = min(event.retry / 1000, MAX_RETRY)


class StreamableHttp:
    """The transport of 2025-03-26 and later."""

    over_http = True

    def __init__(self, door: HttpOrigin) -> None:
        self.door = door
        self._inbox: Inbox = _nobody
        self._session: Headers = ()
        self._silent = 0

    @property
    def has_session(self) -> bool:
        """Whether the server gave us a session id."""
        return bool(self._session)

    async def open(self, inbox: Inbox) -> None:
        """Start without a session; nothing is sent."""
        self._inbox = inbox
        self._session = ()

    async def exchange(self, outgoing: Outgoing) -> Answer:
        """POST a request and read its answer."""
        body = messages.request(outgoing.number, outgoing.method, outgoing.params)
        headers = (*outgoing.headers, *self._session)
        async with self.door.post(headers, body) as reply:
            if reply.status >= FAILED:
                raise await self._refusal(reply)
            if outgoing.method == "initialize":
                self._begin_session(reply.header(SESSION))
            if reply.status in NO_CONTENT:
                raise TransportError(f"HTTP {reply.status} without an answer to a request")
            if not reply.is_events:
                return await self._pick(reply, outgoing.number)
            cursor = Cursor()
            found = await self._from_events(reply, outgoing.number, cursor)
        return found or await self._resume(outgoing, cursor)

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        """POST a notification or an answer; the server need not send a body."""
        async with self.door.post((*headers, *self._session), body) as reply:
            if reply.status >= FAILED:
                raise await self._refusal(reply)
            await reply.drain()

    async def listen(self, heard: anyio.Event, headers: Headers = ()) -> None:
        """GET the stream of unsolicited messages, for as long as the server offers one."""
        cursor = Cursor()
        self._silent = 0
        unreachable: UnreachableError | None = None
        while self._silent < MAX_RECONNECTS:
            self._silent += 1
            unreachable = None
            try:
                if not await self._listen_once(cursor, heard, headers):
                    return
            except UnreachableError as error:
                unreachable = error
            except TransportError:
                pass  # the stream is asked for again
            await anyio.sleep(max(cursor.retry, DEFAULT_RETRY))
        if unreachable is not None:
            raise unreachable

    async def _listen_once(self, cursor: Cursor, heard: anyio.Event, headers: Headers) -> bool:
        """Read one stream to its end; returns whether there was one."""
        async with self.door.open("GET", self._get_headers(headers, cursor)) as reply:
            heard.set()
            if reply.status >= FAILED or not reply.is_events:
                await reply.drain()
                return False
            events = Events(reply)
            while (event := await events.next()) is not None:
                cursor.see(event)
                self._silent = 0
                self._pass_on(event, None)
        return True

    async def close(self) -> None:
        """End the session, if there is one, and the connections."""
        try:
            if self._session:
                # A server that is not notified drops the session by itself.
                with anyio.move_on_after(1), suppress(TransportError):
                    async with self.door.open("DELETE", self._session):
                        pass
        finally:
            await self.door.close()

    def _begin_session(self, session: str) -> None:
        if is_header_value(session):
            self._session = ((SESSION, session),)

    async def _refusal(self, reply: Reply) -> HttpStatusError:
        text = await reply.read_start()
        if reply.status == NOT_FOUND and self._session:
            return SessionLostError(reply.status, text)
        return HttpStatusError(reply.status, text, _rpc_error(text))

    async def _pick(self, reply: Reply, number: int) -> Answer:
        """The client's answer in a JSON body, which may be a batch with other messages."""
        raw = await reply.read()
        try:
            found = messages.decode(raw)
        except NotAMessageError as error:
            said = f"the answer is {error}: {reply.beginning(raw)}"
            raise TransportError(said) from error
        for message in found:
            if not isinstance(message, Answer):
                self._inbox(message, number)
        answer = messages.find_answer(found, number)
        if answer is None:
            raise TransportError("the answer belongs to another request")
        return answer

    async def _from_events(self, reply: Reply, number: int, cursor: Cursor) -> Answer | None:
        """The client's answer in an event stream, `None` if the stream ended before it."""
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
    ) -> Answer | None:
        """Handle the messages in an event; returns the client's answer if it is among them."""
        if not event.data or event.event not in {None, "message"}:
            return None
        try:
            found = messages.decode(event.data)
        except NotAMessageError:
            return None  # an event that is not JSON-RPC is ignored
        for message in found:
            if not isinstance(message, Answer):
                self._inbox(message, number)
        if number is None:
            return None
        # A resumed stream names no request: its ids are those of the recording.
        if is_resumed and self.door.replays:
            return next((one for one in found if isinstance(one, Answer)), None)
        return messages.find_answer(found, number)

    async def _resume(self, outgoing: Outgoing, cursor: Cursor) -> Answer:
        """Request the rest of an interrupted stream, as the server allowed."""
        for _ in range(MAX_RECONNECTS):
            if cursor.last is None:
                break
            await anyio.sleep(0 if self.door.hurries else cursor.retry)
            headers = self._get_headers(outgoing.headers, cursor)
            try:
                async with self.door.open("GET", headers) as reply:
                    if reply.status >= FAILED or not reply.is_events:
                        break
                    answer = await self._from_events(reply, outgoing.number, cursor)
                    if answer is not None:
                        return answer
            except UnreachableError as error:
                error.sent = True  # the request itself was received
                raise
        raise TransportError("the stream of events ended without an answer")

    def _get_headers(self, headers: Headers, cursor: Cursor) -> Headers:
        kept = tuple(pair for pair in headers if pair[0].lower() == "mcp-protocol-version")
        last = (("last-event-id", cursor.last),) if cursor.last else ()
        return (*kept, *self._session, *last)


class Events:
    """The events of a reply, in order."""

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
                found = self._reader.close() if chunk is None else self._reader.feed(chunk)
            except LimitError as error:
                raise TransportError("the stream of events is larger than is allowed") from error
            self._waiting = found[::-1]
        return self._waiting.pop() if self._waiting else None


def _rpc_error(text: str) -> RpcError | None:
    """The JSON-RPC error in an HTTP error's body: only a whole envelope counts (M8)."""
    try:
        found = messages.decode(text)
    except NotAMessageError:
        return None
    first = found[0]
    return first.error if isinstance(first, Answer) else None


def _nobody(message: Asked | messages.Noted, number: int | None) -> None:
    """Ignore messages before `open`."""
