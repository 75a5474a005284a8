"""A client over standard streams: one JSON message per line; the end of input ends it.

Standard output belongs to the client from the start: whatever else is printed goes to standard
error.
"""

import asyncio
import os
import select
from collections.abc import Generator
from contextlib import contextmanager

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.serve.clients import AuthenticatedClient, HubClient
from aish.serve.hub import Hub
from aish.serve.listeners.line_connection import CHUNK, LineReader, LineWriter, converse
from aish.serve.session import ClientSession
from aish.system.user import login_name

CLIENT = "stdio"
_ALWAYS_FITS = 4096
"""Bytes that a pipe takes at once, without waiting, where it says that it takes any (PIPE_BUF)."""


@frozen
class Streams:
    """The descriptors of standard input and output, for the client alone."""

    input: int
    output: int


@contextmanager
def own_streams() -> Generator[Streams]:
    """Reserve standard input and output for the client; others get an empty input, and stderr."""
    taken, output = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield Streams(taken, output)
    finally:
        for descriptor in (nothing, taken, output):
            os.close(descriptor)


class DescriptorStream:
    """An end of a pipe, a terminal or a file; the mode of its descriptor is not changed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._input, self._output = select.poll(), select.poll()
        self._input.register(descriptor, select.POLLIN)
        self._output.register(descriptor, select.POLLOUT)
        self._watching: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._chunk: bytes | None = None

    def read(self) -> bytes | None:
        chunk, self._chunk = self._chunk, None
        return self._read() if chunk is None and self._watching is None else chunk

    def write(self, data: memoryview) -> int:
        if not self._output.poll(0):
            return 0
        try:
            return os.write(self._descriptor, data[:_ALWAYS_FITS])
        except BlockingIOError:  # the client has made it non-blocking
            return 0

    async def wait_readable(self) -> None:
        """Wait for the next chunk; the event loop keeps watching the descriptor between chunks."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        if self._watching is None:
            self._watching = loop
            loop.add_reader(self._descriptor, self._on_readable)
        try:
            await self._waiting
        finally:
            self._waiting = None

    async def wait_writable(self) -> None:
        await anyio.wait_writable(self._descriptor)

    def release(self) -> None:
        """Stop watching the descriptor."""
        if self._watching is not None:
            self._watching.remove_reader(self._descriptor)
            self._watching = None

    def _on_readable(self) -> None:
        if self._waiting is None:
            self.release()  # until somebody waits again
        elif self._chunk is None and (chunk := self._read()) is not None:
            self._chunk = chunk
            if not self._waiting.done():
                self._waiting.set_result(None)

    def _read(self) -> bytes | None:
        if not self._input.poll(0):
            return None
        try:
            return os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return None
        except OSError:  # the terminal or the peer is gone
            return b""


async def serve_stdio(hub: Hub, streams: Streams) -> None:
    """Serve the client at the standard streams until its input ends.

    Raises:
        LineRefusedError: it sent a line that is too long.
        ClientGoneError: it does not read.
    """
    limits = hub.settings.limits
    writer = LineWriter(DescriptorStream(streams.output), limits.queued)
    user = login_name()
    peer: JsonObject = {
        "transport": "stdio",
        "pid": os.getppid(),
        "uid": os.geteuid(),
        "user": user,
    }
    session = ClientSession(hub, AuthenticatedClient(HubClient(CLIENT), ""), peer, writer.send)
    stream = DescriptorStream(streams.input)
    try:
        await converse(hub, session, LineReader(stream, limits.message).lines(), writer)
    finally:
        stream.release()
