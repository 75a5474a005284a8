"""A proxy in front of a hub that adds its token: the conformance suite cannot send one.

Nothing else is changed. A connection carries one request: what the proxy does not have to read it
cannot spoil.
"""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

_LONGEST_HEAD = 65_536


class TokenProxy:
    """Listens on a port, and passes each request on to another one."""

    def __init__(self, port: int, target: int, token: str) -> None:
        self._port = port
        self._target = target
        self._token = token

    async def serve(self, ready: threading.Event, stopped: asyncio.Event) -> None:
        server = await asyncio.start_server(
            self._take, "127.0.0.1", self._port, limit=_LONGEST_HEAD
        )
        async with server:
            ready.set()
            await stopped.wait()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._pass_on(reader, writer)
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        kept = [line for line in lines if not line.lower().startswith(b"connection:")]
        kept += [f"Authorization: Bearer {self._token}".encode(), b"Connection: close"]
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        to_server.write(b"\r\n".join([first, *kept]) + b"\r\n\r\n")
        sent = asyncio.ensure_future(_copy(reader, to_server))
        try:
            await _copy(from_server, writer)
        finally:
            sent.cancel()
            to_server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
        await writer.drain()
    writer.close()


@contextmanager
def token_proxy(port: int, target: int, token: str) -> Generator[None]:
    """The proxy, in a thread, until the block ends."""
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(TokenProxy(port, target, token).serve(ready, stopped))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if not ready.wait(60):
        raise RuntimeError("the proxy did not begin to listen")
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(60)
