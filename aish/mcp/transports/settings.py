"""The resolved settings for connecting to one MCP server.

Also the time limit for a server's answer.
"""

import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import anyio

from aish.config.model import ServerEntry
from aish.core.frozen import frozen
from aish.mcp.protocol.messages import LeftError, TransportError
from aish.net.oauth.settings import Credentials

if TYPE_CHECKING:
    from aish.mcp.transports.http import MadeHeaders
    from aish.mcp.transports.package_store import PackageUse
    from aish.packs.framework.server import OpenPacks


@frozen
class ServerConnection:
    """A server entry with every `${VAR}` in it expanded.

    `token` is the bearer token, `login` how one is got from an authorization server, `made` makes
    the values of headers, `child_env` is the whole environment of a child process,
    `pack` the opened pack where the entry names one. A registry calls `let_go` once the server is
    closed. `own_files` are what the run is made of, and `runs` is the folder of runs: a confined
    server changes neither. `given` are the paths of its sandbox, resolved before any server runs.
    `package` is what the launcher of a child would fetch.
    """

    entry: ServerEntry
    token: str | None = None
    login: Credentials | None = None
    child_env: Mapping[str, str] = field(default_factory=dict)
    made: "MadeHeaders" = field(default_factory=dict)
    pack: "OpenPacks | None" = None
    let_go: Callable[[], Awaitable[None]] | None = None
    own_files: frozenset[Path] = frozenset()
    runs: Path | None = None
    given: Mapping[Path, Path] = field(default_factory=dict)
    package: "PackageUse | None" = None
    fetched: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The words that start a child: those of the entry, or of what was fetched for it."""
        return self.fetched or self.entry.command

    @property
    def transport(self) -> str:
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
    """The time of a request: `seconds`, after each progress anew, and no more than `most` in all.

    Without `most` progress does not count. The time stands still while the client of a hub is
    asked. `raised_by` is the key that gives a request more of it.
    """

    def __init__(
        self, seconds: float, most: float | None = None, raised_by: str = "timeout.call"
    ) -> None:
        self.seconds = seconds
        self._most = most
        self._raised_by = raised_by
        self._scope = anyio.CancelScope()
        self._progress = -math.inf
        self._end = self._left = 0.0
        self._stops = 0

    @property
    def timeout_message(self) -> str:
        message = f"no answer within {self.seconds:g} s"
        if self._progress == -math.inf:
            return message
        if self._most is not None:
            return f"{message} of its last progress, or within {self._most:g} s"
        advice = f"raise `{self._raised_by}`, or set `timeout.call_max`"
        return f"{message}, though it reports progress: {advice}"

    def start(self) -> anyio.CancelScope:
        """Let the time run; returns the scope that ends with it."""
        now = anyio.current_time()
        self._end = now + (self.seconds if self._most is None else self._most)
        self._scope.deadline = now + self.seconds
        return self._scope

    def note_progress(self, progress: float) -> None:
        """Take progress for a sign of life, if there is more of it than before."""
        if progress <= self._progress:
            return
        self._progress = progress
        if self._most is None:
            return
        if self._stops:
            self._left = min(self.seconds, self._end)
        else:
            self._scope.deadline = min(anyio.current_time() + self.seconds, self._end)

    @contextmanager
    def pause(self) -> Generator[None]:
        """The time of the call stands still; what is left of it is kept."""
        if not self._stops:
            now = anyio.current_time()
            self._left, self._end = self._scope.deadline - now, self._end - now
            self._scope.deadline = math.inf
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops:
                now = anyio.current_time()
                self._scope.deadline, self._end = now + self._left, self._end + now


Answer = TypeVar("Answer")


async def in_time(time: CallTime, answer: Awaitable[Answer]) -> Answer:
    """An answer that arrives within its time.

    Raises:
        TransportError: it does not arrive.
    """
    try:
        with time.start():
            return await answer
    except LeftError:
        if anyio.current_effective_deadline() < anyio.current_time() + time.seconds:
            # A limit of the run ended the wait, and does so again.
            await anyio.sleep_forever()
    raise TransportError(time.timeout_message)
