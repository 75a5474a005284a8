"""The resolved settings for connecting to one MCP server.

Also the time limit for a server's answer (M9).
"""

import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import anyio

from aish.config.model import ServerEntry
from aish.core.frozen import frozen
from aish.mcp.protocol.messages import LeftError, TransportError

if TYPE_CHECKING:
    from aish.packs.framework.server import OpenPacks


@frozen
class ServerConnection:
    """A server entry with every `${VAR}` in it expanded.

    `token` is the bearer token (M3), `child_env` the whole environment of a child process (M10),
    `pack` the opened pack where the entry names one. A registry calls `let_go` once the server is
    closed.
    """

    entry: ServerEntry
    token: str | None = None
    child_env: Mapping[str, str] = field(default_factory=dict)
    pack: "OpenPacks | None" = None
    let_go: Callable[[], Awaitable[None]] | None = None

    @property
    def transport(self) -> str:
        """`http`, `stdio` or `pack`."""
        if self.entry.url is not None:
            return "http"
        return "stdio" if self.entry.command else "pack"

    @property
    def address(self) -> str:
        """The URL without query and credentials, the command line, or the names of the packs."""
        if self.entry.url is not None:
            return _bare(self.entry.url)
        if self.entry.command:
            from shlex import join

            return join(self.entry.command)
        return f"pack {', '.join(self.entry.pack)}"


def _bare(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class CallTime:
    """The time that a call may take; it stands still while the client of a hub is asked (H8)."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self._stops = 0
        self._left = 0.0

    @contextmanager
    def stopped(self) -> Generator[None]:
        """The time of the call stands still."""
        if not self._stops:
            self._left = self.scope.deadline - anyio.current_time()
            self.scope.deadline = math.inf
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops:
                self.scope.deadline = anyio.current_time() + self._left


Answer = TypeVar("Answer")


async def in_time(
    seconds: float, answer: Awaitable[Answer], time: CallTime | None = None
) -> Answer:
    """An answer that arrives within `seconds`.

    Raises:
        TransportError: it does not arrive.
    """
    try:
        with anyio.CancelScope() if time is None else time.scope as scope:
            scope.deadline = anyio.current_time() + seconds
            return await answer
    except LeftError:
        if anyio.current_effective_deadline() < anyio.current_time() + seconds:
            # A limit of the run ended the wait, and does so again.
            await anyio.sleep_forever()
    raise TransportError(f"no answer within {seconds:g} s")
