"""A run's tape as the border of this room; imported only by runs that have one (C2)."""

from collections.abc import Callable

from anyio.abc import TaskGroup

from aish.cassettes.http import taped
from aish.cassettes.interaction import Request
from aish.cassettes.rpc import message_of
from aish.cassettes.tape import Tape
from aish.mcp.http import OpenHttp
from aish.mcp.messages import json_object
from aish.mcp.taped import Taped
from aish.mcp.transport import Transport

_STDERR = "STDERR"


class TapeBorder:
    """A tape as the border of this room."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    @property
    def replays(self) -> bool:
        """Whether nothing goes live."""
        return self._tape.way("mcp") == "replay"

    @property
    def hurries(self) -> bool:
        """Whether what took its time in the recording takes none now."""
        return not self._tape.rules.paced and self._tape.way("mcp") in {"replay", "extend"}

    def on_played(self, told: Callable[[], None]) -> None:
        """Have `told` called after each exchange that is replayed."""
        self._tape.on_played.append(told)

    def next_list(self, origin: str) -> int | None:
        """The number of what comes next in the recording, if it is a list of a server's tools."""
        found = self._tape.next_unused()
        if found is None:
            return None
        number, request = found
        message = message_of(request.body) or {}
        is_list = message.get("method") == "tools/list"
        is_first = "cursor" not in json_object(message.get("params"))
        here = f"{self._tape.shown(origin)}/"
        return number if is_list and is_first and f"{request.uri}/".startswith(here) else None

    @property
    def open_http(self) -> OpenHttp:
        """What puts the httpx transport of a server behind the border."""
        return lambda make: taped(self._tape, "mcp", make)

    def wrap(
        self,
        uri: str,
        make: Callable[[], Transport],
        tasks: TaskGroup,
        on_noise: Callable[[str], None],
    ) -> "Taped":
        """A transport that is not HTTP, behind the border; `make` gives the real one."""
        return Taped(self._tape, uri, make, tasks, on_noise)

    def last_words(self, uri: str, said: str) -> str:
        """What a server that failed said on stderr: now, or in the recording."""
        request = Request(_STDERR, uri)
        if self._tape.holds(request) and self._tape.way("mcp") in {"replay", "extend"}:
            found = self._tape.recorded("mcp", request, fresh=True)
            if found is not None:
                return found.body.decode("utf-8", "replace")
        take = self._tape.begin("mcp", request)
        if take is not None:
            take.chunk(said.encode("utf-8", "replace"))
            take.end()
        return said
