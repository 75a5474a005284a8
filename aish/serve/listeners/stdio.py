"""A client over standard streams: a JSON message a line; end of input ends it (H14).

Nothing else reaches standard output: from the first moment it is the client's alone, and what
prints prints to standard error.
"""

import os
import select
from collections.abc import Generator
from contextlib import contextmanager

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.serve.hub import Hub
from aish.serve.listeners.line_connection import (
    CHUNK,
    LineReader,
    LineWriter,
    converse,
)
from aish.serve.session import Session
from aish.system.user import login_name

CLIENT = "stdio"
_ALWAYS_FITS = 4096
"""Bytes that a pipe takes at once, without waiting, where it says that it takes any (PIPE_BUF)."""


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


class DescriptorStream:
    """One end of a pipe, a terminal or a file; the mode of the descriptor is not changed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._input, self._output = select.poll(), select.poll()
        self._input.register(descriptor, select.POLLIN)
        self._output.register(descriptor, select.POLLOUT)

    def read(self) -> bytes | None:
        """What is there; nothing at the end, `None` if more may come."""
        if not self._input.poll(0):
            return None
        try:
            return os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return None
        except OSError:  # the terminal or the peer is gone
            return b""

    def write(self, data: memoryview) -> int:
        """Write what the reader takes at once; how many bytes.

        Raises:
            OSError: the reader is gone.
        """
        if not self._output.poll(0):
            return 0
        try:
            return os.write(self._descriptor, data[:_ALWAYS_FITS])
        except BlockingIOError:  # the client has made it non-blocking
            return 0

    async def wait_readable(self) -> None:
        """Wait until something may be there."""
        await anyio.wait_readable(self._descriptor)

    async def wait_writable(self) -> None:
        """Wait until something may be taken."""
        await anyio.wait_writable(self._descriptor)


async def serve_stdio(hub: Hub, streams: Streams) -> None:
    """Serve the client at the standard streams until it ends the input.

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
    session = Session(hub, CLIENT, peer, writer.send)
    lines = LineReader(DescriptorStream(streams.input), limits.message).lines()
    await converse(hub, session, lines, writer)
