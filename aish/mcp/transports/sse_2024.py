"""2024-11-05's HTTP+SSE: one event stream for incoming messages, POSTs for outgoing ones.

Used only after a POST to the server's url was answered with 404 or 405.
"""

from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from aish.mcp.protocol import messages
from aish.mcp.protocol.messages import (
    NotAMessageError,
    NotSentError,
    RpcResponse,
    ServerEndedError,
    TransportError,
)
from aish.mcp.transports.http import HttpOrigin
from aish.mcp.transports.pending_requests import Pending
from aish.mcp.transports.streamable import FAILED, Events, refusal_of
from aish.mcp.transports.transport import Headers, Inbox, Outgoing


class HttpEvents:
    """The transport of 2024-11-05; its stream is read by a task of `tasks`."""

    over_http = False
    """No header of the later revisions, and closing an answer cancels nothing."""
    has_session = False

    def __init__(self, door: HttpOrigin, tasks: TaskGroup) -> None:
        self._door = door
        self._tasks = tasks
        self._pending = Pending()
        self._scope = anyio.CancelScope()
        self._ready, self._ended = anyio.Event(), anyio.Event()
        self._address: str | None = None
        self._failure: TransportError = ServerEndedError("the stream of events ended")

    async def open(self, inbox: Inbox) -> None:
        self._scope.cancel()
        self._scope = anyio.CancelScope()
        self._ready, self._ended = anyio.Event(), anyio.Event()
        self._address = None
        self._tasks.start_soon(self._read, inbox, self._scope, self._ready, self._ended)
        await self._ready.wait()
        if self._address is None:
            raise self._failure

    async def exchange(self, outgoing: Outgoing) -> RpcResponse:
        if self._address is None:
            raise NotSentError(self._failure.message)
        self._pending.open(outgoing.number)
        try:
            await self.send(messages.request(outgoing.number, outgoing.method, outgoing.params))
            return await self._pending.wait(outgoing.number)
        finally:
            self._pending.forget(outgoing.number)

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        async with self._door.post(headers, body, self._address) as reply:
            if reply.status >= FAILED:
                raise await refusal_of(reply, has_session=self._address is not None)
            await reply.drain()

    async def listen(self, on_open: Callable[[], None]) -> float | None:
        """Wait for the end of the stream, which carries all messages."""
        on_open()
        await self._ended.wait()
        raise ServerEndedError(self._failure.message)

    async def close(self) -> None:
        self._scope.cancel()
        await self._door.close()

    async def _read(
        self, inbox: Inbox, scope: anyio.CancelScope, ready: anyio.Event, ended: anyio.Event
    ) -> None:
        failure: TransportError = ServerEndedError("the stream of events ended")
        with scope:
            try:
                await self._stream(inbox, ready)
            except TransportError as error:
                failure = error
            # A stream that was opened meanwhile has an address of its own.
            if scope is self._scope:
                self._address, self._failure = None, failure
                self._pending.fail(failure)
        ready.set()
        ended.set()

    async def _stream(self, inbox: Inbox, ready: anyio.Event) -> None:
        async with self._door.open("GET") as reply:
            if reply.status >= FAILED:
                raise await refusal_of(reply, has_session=self._address is not None)
            if not reply.is_events:
                raise TransportError("GET is not answered with a stream of events")
            events = Events(reply)
            while (event := await events.next()) is not None:
                if event.event == "endpoint" and self._address is None:
                    self._address = self._door.within(event.data.strip())
                    ready.set()
                elif event.event in {None, "message"}:
                    with suppress(NotAMessageError):
                        self._pending.take(event.data, inbox)
