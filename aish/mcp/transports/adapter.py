"""The interface between MCP and a cassette, implemented by `cassette_adapter`."""

from collections.abc import Callable
from typing import Protocol

from anyio.abc import TaskGroup

from aish.mcp.transports.http import HttpAdapter
from aish.mcp.transports.transport import Transport


class CassetteAdapter(HttpAdapter, Protocol):
    """Intercepts every message to and from a server."""

    def next_list(self, origin: str) -> int | None:
        """The number of the next recorded exchange, if it is a server's tool list."""

    def on_played(self, told: Callable[[], None]) -> None: ...

    def wrap(
        self,
        uri: str,
        make: Callable[[], Transport],
        tasks: TaskGroup,
        on_noise: Callable[[str], None],
    ) -> "AdaptedTransport":
        """A transport other than HTTP, wrapped by the adapter; `make` creates the real one."""

    def last_words(self, uri: str, said: str) -> str:
        """Return what a failed server wrote to stderr: now, or in the recording."""


class AdaptedTransport(Transport, Protocol):
    def noise(self, line: str) -> None: ...
