"""2024-11-05's HTTP+SSE: one event stream for incoming messages, POSTs for outgoing ones.

Used only after a POST to the server's url was answered with 404 or 405 (M2).
"""

import anyio
from anyio.abc import TaskGroup

from aish.mcp.protocol import messages
from aish.mcp.protocol.messages import (
    Answer,
    HttpStatusError,
    NotAMessageError,
    NotSentError,
    ServerEndedError,
    TransportError,
)
from aish.mcp.transports.http import HttpOrigin
from aish.mcp.transports.pending_requests import Pending
from aish.mcp.transports.streamable import FAILED, Events
from aish.mcp.transports.transport import Headers, Inbox, Outgoing, hears_already


class HttpEvents:
    """The transport of 2024-11-05; its stream is read by a task of `tasks`."""

    over_http = False
    """No header of the later revisions, and closing an answer cancels nothing."""
    has_session = False
    listen = staticmethod(hears_already)

    def __init__(self, door: HttpOrigin, tasks: TaskGroup) -> None:
        self._door = door
        self._tasks = tasks
        self._pending = Pending()
        self._scope = anyio.CancelScope()
        self._ready = anyio.Event()
        self._address: str | None = None
        self._failure: TransportError = ServerEndedError("the stream of events ended")

    async def open(self, inbox: Inbox) -> None:
        """Open the stream and wait for the address for outgoing messages."""
        self._scope.cancel()
        self._scope, self._ready = anyio.CancelScope(), anyio.Event()
        self._address = None
        self._tasks.start_soon(self._read, inbox, self._scope, self._ready)
        await self._ready.wait()
        if self._address is None:
            raise self._failure

    async def exchange(self, outgoing: Outgoing) -> Answer:
        """POST a request; its answer arrives on the stream."""
        if self._address is None:
            raise NotSentError(self._failure.message)
        self._pending.open(outgoing.number)
        try:
            await self.send(messages.request(outgoing.number, outgoing.method, outgoing.params))
            return await self._pending.wait(outgoing.number)
        finally:
            self._pending.forget(outgoing.number)

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        """POST a message to the address the server named."""
        async with self._door.post(headers, body, self._address) as reply:
            if reply.status >= FAILED:
                raise HttpStatusError(reply.status, await reply.read_start())
            await reply.drain()

    async def close(self) -> None:
        """Close the stream and the connections."""
        self._scope.cancel()
        await self._door.close()

    async def _read(self, inbox: Inbox, scope: anyio.CancelScope, ready: anyio.Event) -> None:
        with scope:
            try:
                await self._stream(inbox, ready)
            except TransportError as error:
                self._failure = error
            self._address = None
            self._pending.fail(self._failure)
        ready.set()

    async def _stream(self, inbox: Inbox, ready: anyio.Event) -> None:
        async with self._door.open("GET") as reply:
            if reply.status >= FAILED:
                raise HttpStatusError(reply.status, await reply.read_start())
            if not reply.is_events:
                raise TransportError("GET is not answered with a stream of events")
            events = Events(reply)
            while (event := await events.next()) is not None:
                if event.event == "endpoint" and self._address is None:
                    self._address = self._door.within(event.data.strip())
                    ready.set()
                elif event.event in {None, "message"}:
                    self._take(event.data, inbox)

    def _take(self, data: str, inbox: Inbox) -> None:
        try:
            found = messages.decode(data)
        except NotAMessageError:
            return  # an event that is not JSON-RPC is ignored
        for message in found:
            if isinstance(message, Answer):
                self._pending.settle(message)
            else:
                inbox(message, None)
