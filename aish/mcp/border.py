"""The seam between this room and a cassette: `tape_border` where a run has one."""

from collections.abc import Callable
from typing import Protocol

from anyio.abc import TaskGroup

from aish.mcp.http import OpenHttp
from aish.mcp.transport import Transport


class Border(Protocol):
    """What every message to and from a server passes."""

    @property
    def replays(self) -> bool:
        """Whether nothing goes live: no server is reached (C6)."""
        ...

    @property
    def hurries(self) -> bool:
        """Whether what took its time in the recording takes none now."""
        ...

    def next_list(self, origin: str) -> int | None:
        """The number of what comes next in the recording, if it is the list of a server's tools."""
        ...

    def on_played(self, told: Callable[[], None]) -> None:
        """Have `told` called after each exchange that is replayed."""
        ...

    @property
    def open_http(self) -> OpenHttp:
        """What puts the httpx transport of a server behind the border."""
        ...

    def wrap(
        self,
        uri: str,
        make: Callable[[], Transport],
        tasks: TaskGroup,
        on_noise: Callable[[str], None],
    ) -> "Bordered":
        """A transport that is not HTTP, behind the border; `make` gives the real one."""
        ...

    def last_words(self, uri: str, said: str) -> str:
        """What a server that failed said on stderr: now, or in the recording."""
        ...


class Bordered(Transport, Protocol):
    """A transport behind a border."""

    def noise(self, line: str) -> None:
        """Hear of what the server said that is no message."""
        ...
