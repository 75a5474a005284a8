"""A client over standard streams: a JSON message a line; end of input ends it (H14).

Nothing else reaches standard output: from the first moment it is the client's alone, and what
prints prints to standard error.
"""

import errno
import os
import select
from collections import deque
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject
from aish.mcp.protocol.messages import RpcError
from aish.mcp.protocol.requests import (
    INVALID_REQUEST,
    Invalid,
    Notification,
    Received,
    Request,
    Response,
    failure,
    read,
)
from aish.serve.hub import Hub
from aish.serve.session import Session
from aish.system.task_group import task_group
from aish.system.user import login_name

_CHUNK = 65_536
_ALWAYS_FITS = 4096
"""Bytes that a pipe takes at once, without waiting, where it says that it takes any (PIPE_BUF)."""
_FLUSH_SECONDS = 1.0
CLIENT = "stdio"


@frozen
class Streams:
    """The descriptors of standard input and output, which nobody else reads or writes."""

    input: int
    output: int


@contextmanager
def own_streams() -> Generator[Streams]:
    """Take standard input and output for the client; others get an empty input, and stderr."""
    taken, given = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield Streams(taken, given)
    finally:
        for descriptor in (nothing, taken, given):
            os.close(descriptor)


class LineTooLongError(Exception):
    """A client sent a line that is longer than a message may be."""


class ClientGoneError(Exception):
    """The client does not read its output any more."""


@slotted
class _Line:
    """A line that waits to be written; one with the same `key` replaces it."""

    data: bytes
    key: str


class LineWriter:
    """Writes messages to a descriptor in order, as far as the reader takes them."""

    def __init__(self, descriptor: int, most: int) -> None:
        self.lost = anyio.Event()
        """The reader is gone, or so slow that the queue is full."""
        self._descriptor = descriptor
        self._most = most
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._queue: deque[_Line] = deque()
        self._filled = anyio.Event()
        self._emptied = anyio.Event()

    def send(self, message: bytes, key: str = "") -> None:
        """Write a message now if the reader takes it, else later; never waits."""
        if self.lost.is_set():
            return
        data = message + b"\n"
        if not self._queue:
            data = self._written(data)
            if not data:
                return
            key = ""  # it may have begun
        elif key:
            for line in self._queue:
                if line.key == key:
                    line.data = data
                    return
        if len(self._queue) >= self._most:
            self.lost.set()
            return
        self._queue.append(_Line(data, key))
        self._filled.set()

    async def run(self) -> None:
        """Write what waits, until the reader is lost."""
        while not self.lost.is_set():
            while self._queue and not self.lost.is_set():
                await anyio.wait_writable(self._descriptor)
                line = self._queue[0]
                line.key = ""
                line.data = self._written(line.data)
                if not line.data and self._queue:
                    self._queue.popleft()
            self._emptied.set()
            self._filled = anyio.Event()
            await self._filled.wait()

    async def flush(self) -> None:
        """Wait a moment until everything is written."""
        with anyio.move_on_after(_FLUSH_SECONDS):
            while self._queue and not self.lost.is_set():
                self._emptied = anyio.Event()
                await self._emptied.wait()

    def _written(self, data: bytes) -> bytes:
        """Write what the reader takes without waiting; what is left of it."""
        start = 0
        while start < len(data) and self._poll.poll(0):
            try:
                piece = data[start : start + _ALWAYS_FITS]
                start += os.write(self._descriptor, piece)
            except OSError as error:
                if error.errno == errno.EAGAIN:  # the client has made it non-blocking
                    break
                self._queue.clear()
                self.lost.set()
                return b""
        return data[start:]


class LineReader:
    """Reads lines from a descriptor, none of them longer than a message may be."""

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor = descriptor
        self._most = most
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    async def lines(self) -> AsyncGenerator[bytes]:
        """The lines that are not empty, until the end of the input.

        Raises:
            LineTooLongError: a line is too long; what follows is not read.
        """
        held = bytearray()
        while chunk := await self._chunk():
            start = 0
            while (end := chunk.find(b"\n", start)) >= 0:
                held += chunk[start:end]
                if len(held) > self._most:
                    raise LineTooLongError
                line = bytes(held)
                held.clear()
                if line.strip():
                    yield line
                start = end + 1
            held += chunk[start:]
            if len(held) > self._most:
                raise LineTooLongError
        if held.strip():
            yield bytes(held)

    async def _chunk(self) -> bytes:
        if self._poll.poll(0):
            await checkpoint()
        else:
            await anyio.wait_readable(self._descriptor)
        try:
            return os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return await self._chunk()
        except OSError:  # the terminal or the peer is gone
            return b""


async def serve_stdio(hub: Hub, streams: Streams) -> None:
    """Serve the client at the standard streams until it ends the input.

    Raises:
        LineTooLongError: it sent a line that is too long.
        ClientGoneError: it does not read.
    """
    limits = hub.settings.limits
    writer = LineWriter(streams.output, limits.queued)
    user = login_name()
    peer: JsonObject = {
        "transport": "stdio",
        "pid": os.getppid(),
        "uid": os.geteuid(),
        "user": user,
    }
    session = Session(hub, CLIENT, peer, writer.send)
    hub.opened(session.caller)
    hub.flushes.add(writer.flush)
    try:
        async with task_group() as tasks:
            tasks.start_soon(writer.run)
            tasks.start_soon(_until_lost, writer)
            try:
                async for line in LineReader(streams.input, limits.message).lines():
                    await _take(line, session, writer, tasks)
                    await _room(session)
            except LineTooLongError:
                said = f"a message has more than {limits.message:,} bytes"
                writer.send(failure(None, RpcError(INVALID_REQUEST, said)))
                await writer.flush()
                raise
            finally:
                session.close()
            await writer.flush()
            tasks.cancel_scope.cancel()
    finally:
        hub.flushes.discard(writer.flush)
        hub.closed(session.caller)


async def _room(session: Session) -> None:
    """Let the requests that were taken begin, before more of them are read."""
    if not session.is_idle:
        await checkpoint()


async def _until_lost(writer: LineWriter) -> None:
    await writer.lost.wait()
    raise ClientGoneError


async def _take(line: bytes, session: Session, writer: LineWriter, tasks: TaskGroup) -> None:
    found = read(line)
    if isinstance(found, Sequence):
        if session.takes_arrays:
            tasks.start_soon(_answer_all, found, session, writer)
            return
        found = Invalid(RpcError(INVALID_REQUEST, "arrays of messages are not taken"))
    if isinstance(found, Request):
        try:
            scope = session.admit(found)
        except RpcError as error:
            writer.send(failure(found.id, error))
            return
        if found.method == "initialize":
            # What follows on the input depends on it.
            await _answer(found, scope, session, writer)
        else:
            tasks.start_soon(_answer, found, scope, session, writer)
    elif (said := _said(found, session)) is not None:
        writer.send(said)


async def _answer(
    request: Request, scope: anyio.CancelScope, session: Session, writer: LineWriter
) -> None:
    found = await session.answer(request, scope, writer.send)
    if found is not None:
        writer.send(found)


async def _answer_all(messages: Sequence[Received], session: Session, writer: LineWriter) -> None:
    """Answer the messages of an array: each by itself, the answers together."""
    answers: list[bytes] = []

    async def one(request: Request, scope: anyio.CancelScope) -> None:
        found = await session.answer(request, scope, writer.send)
        if found is not None:
            answers.append(found)

    async with task_group() as tasks:
        for message in messages:
            if isinstance(message, Request):
                try:
                    tasks.start_soon(one, message, session.admit(message))
                except RpcError as error:
                    answers.append(failure(message.id, error))
            elif (said := _said(message, session)) is not None:
                answers.append(said)
    if answers:
        writer.send(b"[%b]" % b",".join(answers))


def _said(message: Notification | Response | Invalid, session: Session) -> bytes | None:
    """The answer to what is no request, if there is one."""
    if isinstance(message, Invalid):
        return failure(message.id, message.error)
    if isinstance(message, Notification):
        session.take(message)
    return None
