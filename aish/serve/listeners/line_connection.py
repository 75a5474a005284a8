"""A connection with one JSON message per line, over any pair of streams.

Reads are limited in size and, on sockets, in time. Writes never wait for the reader.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from aish.core.frozen import slotted
from aish.mcp.protocol.messages import RpcError, json_object
from aish.mcp.protocol.requests import (
    INVALID_REQUEST,
    ClientRequest,
    Invalid,
    Notification,
    Received,
    failure,
    read,
)
from aish.serve.hub import Hub
from aish.serve.records.audit import AuditError
from aish.serve.session import ClientSession
from aish.system.task_group import task_group

TOKEN_KEY = "aish/token"  # ruff: ignore[hardcoded-password-string] - the name of a key
"""Where the first message over TCP has the token, in `_meta`."""
CHUNK = 65_536
"""Bytes that are read or written at a time."""
_FLUSH_SECONDS = 1.0


class LineRefusedError(Exception):
    """A client sent a line that is too long or too slow; the text says which."""


class ClientGoneError(Exception):
    """The client does not read its messages; `is_slow` if it is still connected."""

    def __init__(self, *, is_slow: bool) -> None:
        super().__init__("the client does not read")
        self.is_slow = is_slow


class ByteStream(Protocol):
    """A stream of bytes that never blocks."""

    def read(self) -> bytes | None:
        """Read available bytes; empty at the end, `None` if there are none yet."""

    def write(self, data: memoryview) -> int:
        """Write without waiting; return the number of bytes written.

        Raises:
            OSError: the reader is gone.
        """

    async def wait_readable(self) -> None:
        """Wait until there may be bytes to read."""

    async def wait_writable(self) -> None:
        """Wait until bytes may be written."""


@slotted
class _Line:
    """A line to be written; it replaces an unwritten one with the same `key`."""

    data: bytes
    key: str


class LineWriter:
    """Writes messages to a stream in order, as fast as the reader takes them."""

    def __init__(self, stream: ByteStream, most: int) -> None:
        self.lost = anyio.Event()
        """The reader is gone, or so slow that the queue is full."""
        self.is_slow = False
        self._stream = stream
        self._most = most
        self._queue: deque[_Line] = deque()
        self._filled = anyio.Event()
        self._emptied = anyio.Event()

    def send(self, message: bytes, key: str = "") -> None:
        """Write a message now or, if the reader is slow, later; never wait."""
        if self.lost.is_set():
            return
        data = message + b"\n"
        if not self._queue:
            data = self._write(data)
            if not data:
                return
            key = ""  # it may have begun
        elif key:
            for line in self._queue:
                if line.key == key:
                    line.data = data
                    return
        if len(self._queue) >= self._most:
            self.is_slow = True
            self.lost.set()
            return
        self._queue.append(_Line(data, key))
        self._filled.set()

    async def run(self) -> None:
        """Write queued messages until the reader is lost."""
        while not self.lost.is_set():
            while self._queue and not self.lost.is_set():
                await self._stream.wait_writable()
                line = self._queue[0]
                line.key = ""
                line.data = self._write(line.data)
                if not line.data and self._queue:
                    self._queue.popleft()
            self._emptied.set()
            self._filled = anyio.Event()
            await self._filled.wait()

    async def flush(self) -> None:
        """Wait briefly until everything is written."""
        with anyio.move_on_after(_FLUSH_SECONDS):
            while self._queue and not self.lost.is_set():
                self._emptied = anyio.Event()
                await self._emptied.wait()

    def _write(self, data: bytes) -> bytes:
        """Write without waiting; return the remaining bytes."""
        start, view = 0, memoryview(data)
        try:
            while start < len(data) and (count := self._stream.write(view[start:])):
                start += count
        except OSError:
            self._queue.clear()
            self.lost.set()
            return b""
        return data[start:] if start else data


class LineReader:
    """Reads lines from a stream, limited in length, and in time by `receive`."""

    def __init__(self, stream: ByteStream, most: int, receive: float | None = None) -> None:
        self._stream = stream
        self._most = most
        self._receive = receive

    async def lines(self) -> AsyncGenerator[bytes]:
        """Yield lines that are not empty, until the end of the input.

        Raises:
            LineRefusedError: a line is too long or too slow; the rest is not read.
        """
        held = bytearray()
        deadline: float | None = None
        while chunk := await self._chunk(deadline):
            start = 0
            while (end := chunk.find(b"\n", start)) >= 0:
                held += chunk[start:end]
                self._check(held)
                line = bytes(held)
                held.clear()
                deadline = None
                if start:
                    await checkpoint()  # a request that was in the same chunk begins first
                if line.strip():
                    yield line
                start = end + 1
            held += chunk[start:]
            self._check(held)
            if self._receive is not None and deadline is None and held:
                deadline = anyio.current_time() + self._receive
        if held.strip():
            yield bytes(held)

    def _check(self, held: bytearray) -> None:
        if len(held) > self._most:
            raise LineRefusedError(f"a message has more than {self._most:,} bytes")

    async def _chunk(self, deadline: float | None) -> bytes:
        has_waited = False
        while (chunk := self._stream.read()) is None:
            has_waited = True
            if deadline is None:
                await self._stream.wait_readable()
                continue
            with anyio.move_on_at(deadline) as scope:
                await self._stream.wait_readable()
            if scope.cancelled_caught:
                raise self._too_slow()
        if deadline is not None and anyio.current_time() >= deadline:
            raise self._too_slow()
        if not has_waited:
            await checkpoint()
        return chunk

    def _too_slow(self) -> LineRefusedError:
        return LineRefusedError(f"a message took longer than {self._receive:g} s to arrive")


async def converse(
    hub: Hub, session: ClientSession, lines: AsyncIterator[bytes], writer: LineWriter
) -> None:
    """Answer a client until it ends its input; then cancel running requests.

    Raises:
        AuditError: its session could not be recorded.
        LineRefusedError: it sent a line that is too long or too slow.
        ClientGoneError: it does not read.
    """
    try:
        hub.open_session(session.caller)
    except AuditError:
        session.close()
        raise
    hub.flushes.add(writer.flush)
    try:
        await _answer_lines(session, lines, writer)
    finally:
        hub.flushes.discard(writer.flush)
        hub.close_session(session.caller)


async def _answer_lines(
    session: ClientSession, lines: AsyncIterator[bytes], writer: LineWriter
) -> None:
    async with task_group() as tasks:
        tasks.start_soon(writer.run)
        tasks.start_soon(_until_lost, writer)
        try:
            async for line in lines:
                await _take(line, session, writer, tasks)
        except LineRefusedError as error:
            await refuse(writer, str(error))
            raise
        finally:
            session.close()
        await writer.flush()
        tasks.cancel_scope.cancel()


async def refuse(writer: LineWriter, reason: str) -> None:
    """Send the reason for closing a connection after invalid input."""
    writer.send(failure(None, RpcError(INVALID_REQUEST, reason)))
    await writer.flush()


async def _until_lost(writer: LineWriter) -> None:
    await writer.lost.wait()
    raise ClientGoneError(is_slow=writer.is_slow)


async def _take(line: bytes, session: ClientSession, writer: LineWriter, tasks: TaskGroup) -> None:
    message = read(line)
    if isinstance(message, Sequence):
        if session.takes_arrays:
            messages = [_without_token(item) for item in message]
            tasks.start_soon(_answer_all, messages, session, writer)
            return
        message = Invalid(RpcError(INVALID_REQUEST, "arrays of messages are not taken"))
    message = _without_token(message)
    if isinstance(message, ClientRequest):
        try:
            scope = session.admit(message)
        except RpcError as error:
            writer.send(failure(message.id, error))
            return
        if message.method == "initialize":
            # What follows on the input depends on it.
            await _answer(message, scope, session, writer)
        else:
            tasks.start_soon(_answer, message, scope, session, writer)
    elif isinstance(message, Invalid):
        writer.send(failure(message.id, message.error))
    else:
        session.take(message)


def token_in(message: Received) -> str:
    """Return the token in a message; empty if there is none."""
    if not isinstance(message, ClientRequest | Notification):
        return ""
    token = json_object(message.params.get("_meta")).get(TOKEN_KEY)
    return token if isinstance(token, str) else ""


def _without_token(message: Received) -> Received:
    """Return the message without the client's token, which nothing behind this server may see."""
    if not isinstance(message, ClientRequest | Notification):
        return message
    meta = json_object(message.params.get("_meta"))
    if TOKEN_KEY not in meta:
        return message
    rest = {key: value for key, value in meta.items() if key != TOKEN_KEY}
    return replace(message, params={**message.params, "_meta": rest})


async def _answer(
    request: ClientRequest, scope: anyio.CancelScope, session: ClientSession, writer: LineWriter
) -> None:
    answer = await session.answer(request, scope, writer.send)
    if answer is not None:
        writer.send(answer)


async def _answer_all(
    messages: Sequence[Received], session: ClientSession, writer: LineWriter
) -> None:
    answers = await session.answer_all(*session.admit_all(messages), writer.send)
    if answers is not None:
        writer.send(answers)
