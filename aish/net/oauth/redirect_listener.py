"""The address of this machine to which a browser returns after a login.

It answers one path of one port on loopback, until an answer is the one that was waited for.
"""

import errno
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.stapled import MultiListener

from aish.net.oauth.failure import LoginError, quote

PATH: Final = "/callback"
_MOST_BYTES: Final = 16 * 1024
_SECONDS: Final = 10.0
_HEAD: Final = (
    "HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {length}\r\n"
    "connection: close\r\ncache-control: no-store\r\nreferrer-policy: no-referrer\r\n"
    "content-security-policy: default-src 'none'\r\nx-content-type-options: nosniff\r\n\r\n"
)
_PAGE: Final = "<!doctype html><title>aish</title><p>{text}</p>\n"
_TAKEN: Final = "aish has the answer: see the terminal. This page can be closed."
_OTHER: Final = "This is not the answer that aish waits for: see the terminal."


class PortTakenError(Exception):
    """Another program listens on the port."""


class RedirectListener:
    """Listens at `url` for what a browser brings."""

    def __init__(self, listener: MultiListener[SocketStream], host: str, path: str) -> None:
        self._listener = listener
        self._path = path
        port = listener.extra(SocketAttribute.local_port)  # ruff: ignore[django-extra] - of anyio
        self.url = f"http://{host}:{port}{path}"

    async def wait(self, take: Callable[[str], bool]) -> None:
        """Wait until `take` accepts the query of a request; a `LoginError` of it ends the wait.

        Raises:
            LoginError: that of `take`.
        """
        failures: list[LoginError] = []

        async def handle(stream: SocketStream) -> None:
            is_over = False
            try:
                async with stream:
                    with anyio.move_on_after(_SECONDS):
                        is_over = await self._answer(stream, take)
            except LoginError as error:
                failures.append(error)
                is_over = True
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # a browser that has gone asks again, or never
            if is_over:
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            await self._listener.serve(handle)
        if failures:
            raise failures[0]

    async def _answer(self, stream: SocketStream, take: Callable[[str], bool]) -> bool:
        """Answer one request; return true if it was the one that is waited for."""
        head = b""
        while b"\r\n\r\n" not in head and len(head) <= _MOST_BYTES:
            try:
                head += await stream.receive()
            except anyio.EndOfStream:
                return False
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        path, _, query = (words[1] if len(words) > 1 else "").partition("?")
        if words[0] != "GET" or path != self._path or not query:
            await _send(stream, "404 Not Found", _OTHER)
            return False
        try:
            is_taken = take(query)
        except LoginError:
            with suppress(OSError, anyio.BrokenResourceError):
                await _send(stream, "200 OK", _TAKEN)
            raise
        with suppress(OSError, anyio.BrokenResourceError):
            await _send(stream, *(("200 OK", _TAKEN) if is_taken else ("400 Bad Request", _OTHER)))
        return is_taken


@asynccontextmanager
async def open_listener(url: str | None, port: int) -> AsyncGenerator[RedirectListener]:
    """Listen where `url` says, else on a port of 127.0.0.1; 0 is any that is free.

    Raises:
        PortTakenError: another program has the port.
        LoginError: it cannot be listened on for another reason.
    """
    parts = urlsplit(url or f"http://127.0.0.1:{port}{PATH}")
    host = parts.hostname or ""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        listener = await anyio.create_tcp_listener(
            local_host=address, local_port=parts.port or port
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError from error
        message = error.strerror or str(error)
        raise LoginError(f"cannot listen on `{quote(parts.netloc)}`: {message}") from error
    async with listener:
        shown = f"[{host}]" if ":" in host else host
        yield RedirectListener(listener, shown, parts.path or "/")


async def _send(stream: SocketStream, status: str, text: str) -> None:
    page = _PAGE.format(text=text).encode()
    await stream.send(_HEAD.format(status=status, length=len(page)).encode() + page)
    await stream.send_eof()
