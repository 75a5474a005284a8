"""The events of a run as a stream that reconnects after lost connections."""

from collections import deque
from collections.abc import Mapping
from typing import Final, Self
from urllib.parse import urlencode

from aish.control.answers import RunEnd
from aish.control.errors import ConnectionLostError, NotListeningError, RunEndedError, SilentError
from aish.control.http_exchange import (
    OK,
    PREFIX,
    UNAVAILABLE,
    Deadline,
    Opened,
    OutgoingRequest,
    RequestSender,
    answer_error,
    api_error,
    decode,
    json_value,
)
from aish.core.events import Exit
from aish.core.json import JsonObject
from aish.wire.sse import Caps, SseReader

_LONGEST_EVENT: Final = 256 << 20
_CAPS: Final = Caps(_LONGEST_EVENT, _LONGEST_EVENT, 1 << 62)
# The server writes a comment each 15 seconds where nothing happens.
_PING_SECONDS: Final = 15.0
_SILENCE_SECONDS: Final = 3 * _PING_SECONDS
_SLACK_SECONDS: Final = 0.25


class AsyncEventStream:
    """The events of a run, one by one, until its `run.finished`; use it in an `async with`.

    No event is missed after the beginning of the block. `after` is the number of the last event.
    """

    # After a lost connection it continues behind the last event that it gave, so nothing is lost
    # and nothing comes twice.

    def __init__(self, exchange: RequestSender, after: int | None, deadline: Deadline) -> None:
        self.after = after
        self.finished: JsonObject | None = None
        """Its last event, when that has come."""
        self._exchange = exchange
        self._deadline = deadline
        self._opened: Opened | None = None
        self._limit = 0.0
        self._failures = 0
        self._reader = SseReader(_CAPS)
        self._events: deque[JsonObject] = deque()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JsonObject:
        """Return the next event.

        Raises:
            NotListeningError: nobody listens.
            ApiError: the server refused it; a `GoneError` if events are not kept.
            WaitTimeoutError: the deadline has passed.
        """
        while not self._events:
            if self.finished is not None:
                await self.close()
                raise StopAsyncIteration
            self._deadline.require()
            await self._open()
            if self._opened is not None:
                await self._receive(self._opened)
        event = self._events.popleft()
        if event["type"] == "run.finished":
            self.finished = event
        return event

    async def close(self) -> None:
        """Close its connection."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await self._exchange.close_answer(opened)

    async def read_to_end(self) -> RunEnd:
        """Read the rest, and return the end of the run. Fails as an iteration does."""
        async for _ in self:
            pass
        return self.end

    @property
    def end(self) -> RunEnd:
        """End of the run, after its last event."""
        assert self.finished is not None, "the stream ends with this event"
        status, code = self.finished.get("status"), self.finished.get("exit")
        return RunEnd(str(status), decode(Exit, code), self.finished)

    async def _open(self) -> None:
        """Connect unless connected; no event is missed from here on."""
        while self._opened is None and self.finished is None:
            self._limit = self._deadline.limit_wait(_SILENCE_SECONDS)
            headers = {"Accept": "text/event-stream"}
            if self.after is not None:
                headers["Last-Event-ID"] = str(self.after)
            request = OutgoingRequest("GET", events_path(self.after), None, headers, self._limit)
            try:
                opened = await self._exchange.open(request)
            except (NotListeningError, ConnectionLostError) as error:
                # A journal may be long: it is read at first, and before this is given up.
                is_asked = self._failures in {0, self._exchange.max_retries}
                ended = self._exchange.ended_run(self.after or 0) if is_asked else None
                if ended is not None:
                    self._events.extend(ended.events)
                    self.finished = ended.finished
                    return
                self._deadline.require()
                await self._pause_after(error)
                continue
            if opened.status == OK:
                self._opened, self._reader = opened, SseReader(_CAPS)
                return
            refusal = api_error(await self._exchange.rest(opened))
            if opened.status not in UNAVAILABLE:
                raise refusal
            self._deadline.require()
            await self._pause_after(refusal)

    async def _receive(self, opened: Opened) -> None:
        """Receive some bytes; close the connection if it is broken."""
        # How long nothing may come is fixed where a connection is opened.
        left = self._deadline.left
        if left < _PING_SECONDS and self._limit > left + _SLACK_SECONDS:
            await self.close()
            return
        try:
            data = await self._exchange.read(opened)
        except ConnectionLostError as error:
            await self.close()
            self._deadline.require()
            if not isinstance(error, SilentError):
                await self._pause_after(error)
            return
        if data:
            self._failures = 0
            for received in self._reader.feed(data):
                event = json_value(received.data.encode())
                if not isinstance(event, Mapping):
                    raise answer_error("an event is not an object")
                number = event.get("seq")
                if not isinstance(number, int) or not isinstance(event.get("type"), str):
                    raise answer_error("an event has no number or no type")
                self.after = number
                self._events.append(event)
        else:
            await self.close()
            message = "the stream of events ended before the run"
            await self._pause_after(ConnectionLostError(message))

    async def _pause_after(self, error: Exception) -> None:
        """Pause before another attempt, or raise the error after too many."""
        self._failures += 1
        if self._failures > self._exchange.max_retries:
            raise error
        await self._exchange.pause(self._deadline)


def run_ended(stream: AsyncEventStream) -> RunEndedError:
    """Return the error for a run that ended before the awaited condition."""
    end = stream.end
    message = f"the run has ended: exit {end.exit.code} ({end.exit.name})"
    return RunEndedError(message, end.event)


def events_path(after: int | None) -> str:
    query = "" if after is None else f"?{urlencode({'after': after})}"
    return f"{PREFIX}/events{query}"
