"""From a server's entry to the transport that reaches it."""

from collections.abc import Callable
from pathlib import Path

from anyio.abc import TaskGroup

from aish.mcp.connection import ServerConnection
from aish.mcp.convert import Reading
from aish.mcp.events import HttpEvents
from aish.mcp.failures import TransportError
from aish.mcp.http import HttpDoor
from aish.mcp.inprocess import InProcess
from aish.mcp.stdio import Stdio
from aish.mcp.streamable import StreamableHttp
from aish.mcp.transport import Transport
from aish.system.children import Reaper
from aish.system.secrets import Secrets
from aish.vocab.frozen import frozen

Notify = Callable[[str, str, str], None]
"""Takes a server's alias, a code and a sentence."""
TAIL_LINES = 10


@frozen
class Surroundings:
    """What all servers of a run share; `logs` is the folder for what children say on stderr."""

    reaper: Reaper
    logs: Path | None
    tasks: TaskGroup
    notify: Notify
    secrets: Secrets | None


class Opening:
    """Makes the transports of one server, and knows what to say when they fail."""

    def __init__(self, connection: ServerConnection, around: Surroundings) -> None:
        self._connection = connection
        self._around = around
        self._door: HttpDoor | None = None
        self._stdio: Stdio | None = None

    @property
    def transport(self) -> str:
        """`http`, `stdio` or `pack`."""
        return self._connection.transport

    @property
    def probe_seconds(self) -> float | None:
        """How long a child may leave the first question unanswered, before `initialize`.

        Half of its time to connect: what then remains is for a server of the handshake era that
        ignores what it does not know. Over HTTP such a question is always answered.
        """
        return self._connection.entry.timeout.connect / 2 if self.transport == "stdio" else None

    def first(self) -> Transport:
        """The transport to try first.

        Raises:
            TransportError: the entry's url or headers are not legal.
        """
        entry = self._connection.entry
        if self._connection.pack is not None:
            return InProcess(self._connection.pack)
        if entry.url is not None:
            self._door = HttpDoor(
                entry.url,
                token=self._connection.token,
                headers=entry.headers,
                connect_seconds=entry.timeout.connect,
                verify_tls=entry.verify_tls,
            )
            return StreamableHttp(self._door)
        self._stdio = Stdio(
            self._connection,
            self._around.tasks,
            reaper=self._around.reaper,
            log=self._log(),
            secrets=self._around.secrets,
            on_noise=self._noise,
        )
        return self._stdio

    def older(self) -> Transport:
        """2024's transport, over the same door.

        Raises:
            TransportError: the server is not reached over HTTP.
        """
        if self._door is None:
            raise TransportError("only a server with a url can have an older transport")
        return HttpEvents(self._door, self._around.tasks)

    def reading(self, *, modern: bool) -> Reading:
        """How far to believe the server's list of tools."""
        return Reading(ours=self.transport == "pack", mirrors=modern and self.transport == "http")

    def notice(self, code: str, text: str) -> None:
        """Tell the person something about this server."""
        self._around.notify(self._connection.entry.alias, code, text)

    def explain(self, reason: str) -> str:
        """A reason, with the end of what a child said on stderr (M5)."""
        tail = self._stdio.stderr_tail if self._stdio is not None else ""
        tail = "\n".join(tail.strip().splitlines()[-TAIL_LINES:])
        return f"{reason}; its stderr ends with:\n{tail}" if tail else reason

    def _log(self) -> Path | None:
        logs = self._around.logs
        return None if logs is None else logs / f"{self._connection.entry.alias}.stderr.log"

    def _noise(self, line: str) -> None:
        self.notice("stdout_noise", f"ignores what is not JSON-RPC on its stdout: {line}")
