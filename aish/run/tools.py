"""All tools of a run behind one face: the servers' and the reserved alias `shell`."""

from collections.abc import Callable
from dataclasses import dataclass

from aish.run.local_command import SHELL_RUN, LocalCommands
from aish.vocab.json import JsonObject
from aish.vocab.protocols import Progress, Sampler, Tools
from aish.vocab.tools import Tool, ToolName, ToolResult


@dataclass(frozen=True, slots=True)
class AllTools:
    """`vocab.protocols.Tools` over the registry and local commands."""

    servers: Tools
    local: LocalCommands

    def listed(self) -> tuple[Tool, ...]:
        """The servers' tools; `shell__run` is for steps, never for a model."""
        return self.servers.listed()

    def by_wire_name(self, wire: str) -> Tool | None:
        """The tool a model named."""
        return self.servers.by_wire_name(wire)

    def by_name(self, name: ToolName) -> Tool | None:
        """The tool a file or a person named."""
        return SHELL_RUN if name == SHELL_RUN.name else self.servers.by_name(name)

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
        return await self.servers.call(tool, arguments, on_progress, sample)
