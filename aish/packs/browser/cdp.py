"""The Chrome DevTools Protocol: commands, replies and events, over a pipe or a WebSocket.

Our own browser is connected by two pipes, which no other process can open: a debugging port would
let every process of the machine drive it. WebSockets are for browsers that another program started.
Incoming data comes from pages: its size is limited, and anything but a message of the protocol ends
the connection.
"""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup

from aish.core.frozen import frozen
from aish.system.process.child import PipeReader, PipeWriter

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

MAX_MESSAGE: Final = 32 * 1024 * 1024
"""Bytes of one message; a screenshot of the largest size is 7 MiB of base64."""
NO_MESSAGE: Final = "the browser has sent what is not a message"
"""Says a `BrowserLostError` of a peer that does not speak the protocol."""
_HEAD: Final = 64
_READ: Final = 1 << 18
_CLOSING_SECONDS: Final = 1.0

Event = Callable[[str, str, Mapping[str, Any]], None]
"""Is called with the session, the name and the parameters of each event; must not wait."""


class CdpError(Exception):
    """The browser answered a command with an error."""


class BrowserLostError(Exception):
    """The connection to the browser is lost."""


class NoReplyError(Exception):
    """The browser did not answer a command in time."""


class ReplyTooLargeError(Exception):
    """The reply to a command is larger than the limit."""


@frozen
class Oversized:
    """The beginning of a message that was too large to read."""

    head: bytes


class CdpChannel(Protocol):
    """A transport for messages: a pipe or a WebSocket."""

    async def send(self, text: str) -> None:
        """Send one message.

        Raises:
            ConnectionLostError: the other side is closed.
        """

    async def receive(self) -> "bytes | str | Oversized":
        """Receive the next message.

        Raises:
            ConnectionLostError: the other side is closed, or sent too much.
        """

    async def aclose(self) -> None:
        """Close it."""


class PipeWire:
    """Messages that end with a NUL, over two pipes (`--remote-debugging-pipe`)."""

    def __init__(self, reader: PipeReader, writer: PipeWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sending = anyio.Lock(fast_acquire=True)
        self._chunk = b""

    async def send(self, text: str) -> None:
        """Send one message; messages do not overlap."""
        try:
            async with self._sending:
                # A message that was sent by half would spoil those behind it.
                with anyio.CancelScope(shield=True):
                    await self._writer.write(text.encode() + b"\0")
        except BrokenPipeError as error:
            raise BrowserLostError("the browser has ended") from error

    async def receive(self) -> bytes | Oversized:
        """Receive the next message; of a too large one only its beginning.

        Raises:
            ConnectionLostError: the other side is closed, or does not send messages.
        """
        pieces: list[bytes] = []
        size, head = 0, b""
        while True:
            piece, end, rest = self._chunk.partition(b"\0")
            size += len(piece)
            head = (head + piece)[:_HEAD] if len(head) < _HEAD else head
            if head and not head.startswith(b"{"):
                raise BrowserLostError(NO_MESSAGE)
            if size <= MAX_MESSAGE:
                pieces.append(piece)
            else:
                pieces.clear()
            if end:
                self._chunk = rest
                return b"".join(pieces) if size <= MAX_MESSAGE else Oversized(head)
            self._chunk = await self._reader.read(_READ)
            if not self._chunk:
                raise BrowserLostError("the browser has ended")

    async def aclose(self) -> None:
        """Close both pipes, which ends the browser."""
        self._writer.close()
        self._reader.close()


class WebSocketWire:
    """Messages over the WebSocket of a browser that another program started."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket

    async def send(self, text: str) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._socket.send(text)
        except ConnectionClosed as error:
            raise BrowserLostError("the browser has closed the connection") from error

    async def receive(self) -> str | bytes:
        """Receive the next message; one that is too large closes the connection."""
        from websockets.exceptions import ConnectionClosed

        try:
            return await self._socket.recv()
        except ConnectionClosed as error:
            sent = error.sent
            if sent is not None and sent.code == _TOO_BIG:
                raise BrowserLostError("the browser has sent too large a message") from error
            raise BrowserLostError("the browser has closed the connection") from error

    async def aclose(self) -> None:
        """Close the connection without waiting for a peer that does not answer."""
        with anyio.move_on_after(_CLOSING_SECONDS):
            await self._socket.close()


_TOO_BIG: Final = 1009


async def connect_websocket(url: str, seconds: float) -> WebSocketWire:
    """Connect to the debugging address of a browser.

    Raises:
        ConnectionLostError: it fails.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake

    try:
        socket = await connect(
            url,
            proxy=None,
            compression=None,
            max_size=MAX_MESSAGE,
            open_timeout=seconds,
            close_timeout=_CLOSING_SECONDS,
            ping_interval=None,
            user_agent_header=None,
        )
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise BrowserLostError("nothing there speaks the DevTools protocol") from error
    return WebSocketWire(socket)


class _PendingCommand:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.result: Mapping[str, Any] = {}
        self.error: Exception | None = None


class CdpClient:
    """Commands to a browser and its events; `run` reads until the connection ends."""

    def __init__(self, wire: CdpChannel, tasks: TaskGroup, on_event: Event) -> None:
        self._wire, self._tasks, self._on_event = wire, tasks, on_event
        self._pending: dict[int, _PendingCommand] = {}
        self._count = 0
        self.lost: BrowserLostError | None = None

    async def run(self) -> None:
        """Read until the connection ends; pending commands then fail."""
        try:
            while True:
                self._take(await self._wire.receive())
        except BrowserLostError as error:
            self._end(error)
        finally:
            self._end(BrowserLostError("the browser is closed"))

    async def call(
        self,
        method: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        session: str = "",
        seconds: float = math.inf,
    ) -> Mapping[str, Any]:
        """Send a command, and return its result.

        Raises:
            CdpError: the browser answers with an error.
            ConnectionLostError: the connection is lost.
            NoReplyError: there is no reply in time.
            ReplyTooLargeError: the reply is too large.
        """
        pending = _PendingCommand()
        self._count += 1
        id = self._count
        self._pending[id] = pending
        try:
            with anyio.fail_after(seconds):
                await self._send(id, method, parameters, session)
                await pending.done.wait()
        except TimeoutError:
            raise NoReplyError(method) from None
        finally:
            self._pending.pop(id, None)
        if pending.error is not None:
            raise pending.error
        return pending.result

    def post(
        self, method: str, parameters: Mapping[str, Any] | None = None, *, session: str = ""
    ) -> None:
        """Send a command without waiting, and ignore its reply."""
        self._count += 1
        self._tasks.start_soon(self._send_if_connected, self._count, method, parameters, session)

    async def _send_if_connected(
        self, id: int, method: str, parameters: Mapping[str, Any] | None, session: str
    ) -> None:
        with suppress(BrowserLostError):  # `run` reports it
            await self._send(id, method, parameters, session)

    async def _send(
        self, id: int, method: str, parameters: Mapping[str, Any] | None, session: str
    ) -> None:
        if self.lost is not None:
            raise self.lost
        message: dict[str, Any] = {"id": id, "method": method, "params": dict(parameters or {})}
        if session:
            message["sessionId"] = session
        try:
            await self._wire.send(json.dumps(message))
        except BrowserLostError as error:
            self._end(error)
            raise

    def _take(self, message: bytes | str | Oversized) -> None:
        if isinstance(message, Oversized):
            self._take_oversized(message.head)
            return
        try:
            value = json.loads(message)
        except (ValueError, RecursionError) as error:
            raise BrowserLostError(NO_MESSAGE) from error
        if not isinstance(value, dict):
            raise BrowserLostError(NO_MESSAGE)
        if "id" in value:
            self._take_reply(value)
            return
        method, parameters = value.get("method"), value.get("params", {})
        session = value.get("sessionId", "")
        if not (
            isinstance(method, str) and isinstance(parameters, dict) and isinstance(session, str)
        ):
            raise BrowserLostError(NO_MESSAGE)
        self._on_event(session, method, parameters)

    def _take_oversized(self, head: bytes) -> None:
        """Fail the command that it replies to; a too large event is dropped."""
        number = head.removeprefix(b'{"id":').split(b",", 1)[0]
        pending = self._pending.get(int(number)) if number.isdigit() else None
        if pending is not None:
            pending.error = ReplyTooLargeError("the reply is too large")
            pending.done.set()

    def _take_reply(self, reply: Mapping[str, Any]) -> None:
        id, result, error = reply["id"], reply.get("result", {}), reply.get("error")
        pending = self._pending.get(id) if isinstance(id, int) else None
        if pending is None:  # of `post`, or of a command that nobody waits for any more
            return
        if error is not None:
            message = error.get("message") if isinstance(error, dict) else error
            pending.error = CdpError(str(message))
        elif isinstance(result, dict):
            pending.result = result
        else:
            raise BrowserLostError(NO_MESSAGE)
        pending.done.set()

    def _end(self, error: BrowserLostError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        for pending in self._pending.values():
            pending.error = error
            pending.done.set()
