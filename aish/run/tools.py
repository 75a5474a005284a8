"""All tools of a run behind one face: the servers' and the reserved alias `shell`."""

from collections.abc import Callable
from typing import Protocol

from aish.run.local_command import SHELL_RUN, LocalCommands
from aish.vocab.events import ServerInfo
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject
from aish.vocab.protocols import Progress, Sampler, Tools
from aish.vocab.tools import Tool, ToolName, ToolResult


class Servers(Tools, Protocol):
    """The tools of the servers, and how each server is."""

    @property
    def servers(self) -> tuple[ServerInfo, ...]:
        """One row a server, in the order of the file."""
        ...


@frozen
class AllTools:
    """`vocab.protocols.Tools` over the servers, if there are any, and local commands."""

    servers: Servers | None
    local: LocalCommands

    def listed(self) -> tuple[Tool, ...]:
        """The servers' tools; `shell__run` is for steps, never for a model."""
        return self.servers.listed() if self.servers else ()

    def by_wire_name(self, wire: str) -> Tool | None:
        """The tool a model named."""
        return self.servers.by_wire_name(wire) if self.servers else None

    def by_name(self, name: ToolName) -> Tool | None:
        """The tool a file or a person named."""
        if name == SHELL_RUN.name:
            return SHELL_RUN
        return self.servers.by_name(name) if self.servers else None

    async def call(
        self,
        tool: Tool,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None = None,
    ) -> ToolResult:
        """Call a tool; every failure is a result (M8)."""
        if tool.name == SHELL_RUN.name:
            return await self.local.run(arguments)
        assert self.servers is not None, "a tool of a server comes from a server"
        return await self.servers.call(tool, arguments, on_progress, sample)
