"""The seam between this room and a cassette: `tape_border` where a run has one."""

from collections.abc import Callable
from typing import Protocol

from anyio.abc import TaskGroup

from aish.mcp.transports.http import HttpAdapter
from aish.mcp.transports.transport import Transport


class CassetteAdapter(HttpAdapter, Protocol):
    """What every message to and from a server passes."""

    def next_list(self, origin: str) -> int | None:
        """The number of what comes next in the recording, if it is the list of a server's tools."""
        ...

    def on_played(self, told: Callable[[], None]) -> None:
        """Have `told` called after each exchange that is replayed."""
        ...

    def wrap(
        self,
        uri: str,
        make: Callable[[], Transport],
        tasks: TaskGroup,
        on_noise: Callable[[str], None],
    ) -> "AdaptedTransport":
        """A transport that is not HTTP, behind the adapter; `make` gives the real one."""
        ...

    def last_words(self, uri: str, said: str) -> str:
        """What a server that failed said on stderr: now, or in the recording."""
        ...


class AdaptedTransport(Transport, Protocol):
    """A transport behind a adapter."""

    def noise(self, line: str) -> None:
        """Hear of what the server said that is not a message."""
        ...
