"""The tools of all servers in one registry: implements `core.protocols.Tools`.

Also operations on several servers at the same time.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio

from aish.core.errors import UnavailableError, UsageError, did_you_mean
from aish.core.events import ServerInfo
from aish.core.json import JsonObject
from aish.core.protocols import Progress, Sampler
from aish.core.tools import (
    Capability,
    Part,
    PromptMessage,
    Resource,
    ServerPromptInfo,
    Tool,
    ToolName,
    ToolResult,
)
from aish.mcp.client.connection import Server
from aish.mcp.client.server_requests import Call, Elicit
from aish.mcp.protocol.convert import clash, denial_result, loss_result, readable_row, tool_of
from aish.mcp.transports.factory import (
    Notify,
    ServerEnvironment,
    TransportFactory,
    close_supervisors,
)
from aish.mcp.transports.settings import ServerConnection
from aish.system.process.reaper import Reaper
from aish.system.secrets.secrets import Secrets
from aish.system.task_group import task_group

if TYPE_CHECKING:
    from aish.mcp.transports.adapter import CassetteAdapter


async def together(actions: Iterable[Callable[[], Coroutine[None, None, None]]]) -> None:
    async with anyio.create_task_group() as group:
        for action in actions:
            group.start_soon(action)


Offer = TypeVar("Offer")


class Registry:
    """Every tool of every connected server, by wire name and by pair."""

    def __init__(self, max_tool_name: int, notify: Notify) -> None:
        self._limit = max_tool_name
        self._notify = notify
        self._servers: dict[str, Server] = {}
        self._by_name: dict[ToolName, Tool] = {}
        self._by_wire: dict[str, Tool] = {}
        self._hear: Callable[[], None] = lambda: None
        self.on_change: Callable[[], None] = lambda: None
        """Hears of each change of tools, after `hold_to` has."""
        self.on_note: Callable[[Server, str, JsonObject], None] = lambda *_note: None
        """Takes notifications of servers that belong to no request: method and params."""
        self._offers: Callable[[Tool], bool] = lambda _tool: True

    @property
    def servers(self) -> tuple[ServerInfo, ...]:
        return tuple(server.info for server in self._servers.values())

    def server(self, alias: str) -> Server | None:
        server = self._servers.get(alias)
        return server if server is not None and server.state == "ready" else None

    @property
    def has_failed(self) -> bool:
        return any(server.failure is not None for server in self._servers.values())

    def failure(self, alias: str) -> str | None:
        """Why a server failed to start, with the tail of its stderr; `None` if it is connected."""
        server = self._servers.get(alias)
        return server.failure if server is not None else None

    def instructions(self) -> Mapping[str, str]:
        """Instructions of servers for their use, by alias, where the file wants them."""
        instructions = ((alias, server.instructions) for alias, server in self._servers.items())
        return {alias: text for alias, text in instructions if text}

    def listed(self) -> tuple[Tool, ...]:
        """Every tool that is shown, in the order of the file's servers and their own."""
        return tuple(self._by_name.values())

    def by_wire_name(self, wire: str) -> Tool | None:
        return self._by_wire.get(wire)

    def by_name(self, name: ToolName) -> Tool | None:
        """The tool a file or a person named, or `None`; older names of built-in ones count."""
        tool = self._by_name.get(name)
        server = self._servers.get(name.server)
        if tool is not None or server is None or not server.entry.pack:
            return tool
        from aish.packs.catalogue import own_name

        return self._by_name.get(ToolName(name.server, own_name(server.entry.pack, name.name)))

    def omission_reason(self, name: ToolName) -> str | None:
        server = self._servers.get(name.server)
        if server is None or name.name not in server.ambiguous:
            return None
        return f"`{name.server}` lists two different tools of that name"

    async def call(
        self,
        tool: Tool,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None = None,
        limit: float = inf,
    ) -> ToolResult:
        """Call a tool; every failure is a result. Only cancellation propagates.

        `limit` are seconds, where the server's entry allows more.
        """
        server = self._callable(tool)
        if isinstance(server, ToolResult):
            return server
        return await server.call(tool.name.name, arguments, on_progress, sample, limit)

    async def forward(
        self, tool: Tool, arguments: JsonObject, call: Call, own: Server | None = None
    ) -> JsonObject | ToolResult:
        """The same for who passes the answer on: as the server gave it; a failure is a result.

        `own` is the caller's own connection to the server, if it has one.
        """
        server = self._callable(tool)
        if isinstance(server, ToolResult):
            return server
        if own is not None:
            name = tool.name.name
            if own.failure is None and own.definitions.get(name) != server.definitions.get(name):
                return denial_result(f"{tool.name} has changed")
            server = own
        return await server.forward(tool.name.name, arguments, call)

    def _callable(self, tool: Tool) -> Server | ToolResult:
        """The server that a call of a tool goes to, or why there is none."""
        alias = tool.name.server
        server = self._servers.get(alias)
        if server is None:
            return loss_result(f"the server `{alias}` is not connected", sent=False)
        if server.failure is None and self._by_name.get(tool.name) != tool:
            # A call is for the tool that was approved, however long that took.
            return denial_result(f"{tool.name} has changed")
        return server

    def row(self, tool: Tool) -> JsonObject:
        """Return a tool's row in the list of its server, as clients can read it."""
        return readable_row(self._servers[tool.name.server].rows[tool.name.name], tool)

    async def close(self) -> None:
        await together(server.close for server in tuple(self._servers.values()))

    async def aliases_with(self, capability: Capability) -> tuple[str, ...]:
        servers = tuple(self._servers.values())
        for server in servers:
            await server.wait_until_settled()
        return tuple(
            one.alias for one in servers if one.failure is None and one.declares(capability)
        )

    async def resources(self) -> tuple[Resource, ...]:
        """The resources of all servers that have any; a failed listing is reported."""
        from aish.mcp.client.resource_list import resources_of

        return await self._gather(resources_of)

    async def read_resource(self, server: str, uri: str) -> tuple[Part, ...]:
        """The contents of a resource.

        Raises:
            UsageError: there is no such server.
            UnavailableError: the server cannot be reached.
            StepFailedError: the server refused, or what it sent cannot be used.
        """
        from aish.mcp.client.resource_list import read_resource

        return await read_resource(await self._find_ready(server), uri)

    async def prompts(self) -> tuple[ServerPromptInfo, ...]:
        """The prompts of all servers that have any; a failed listing is reported."""
        from aish.mcp.client.resource_list import prompts_of

        return await self._gather(prompts_of)

    async def get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str]
    ) -> tuple[PromptMessage, ...]:
        """The messages of a server's prompt.

        Raises:
            UsageError: there is no such server.
            UnavailableError: the server cannot be reached.
            StepFailedError: the server refused, or what it sent cannot be used.
        """
        from aish.mcp.client.resource_list import get_prompt

        return await get_prompt(await self._find_ready(server), name, arguments)

    def add(self, server: Server) -> None:
        self._servers[server.alias] = server

    def name_tools(self) -> None:
        """Give every tool its wire name.

        Raises:
            UsageError: two tools share a name.
        """
        self._name(self._servers, self._refuse)

    def admit(self, server: Server) -> None:
        """Add a server together with its tools, or change nothing.

        Raises:
            UsageError: two tools share a name.
        """

        def refuse(tool: Tool, taken: Tool) -> None:
            if server.alias in {tool.name.server, taken.name.server}:
                self._refuse(tool, taken)

        servers = {**self._servers, server.alias: server}
        self._name(servers, refuse)
        self._servers = servers
        self._hear()
        self.on_change()

    def remove(self, alias: str) -> None:
        del self._servers[alias]
        self.withdraw_tools()

    def withdraw_tools(self) -> None:
        # What a change had to leave out has been reported.
        self._name(self._servers, lambda _tool, _taken: None)
        self._hear()
        self.on_change()

    def exchange(self, servers: Sequence[Server], max_tool_name: int) -> Callable[[], None]:
        """Take these servers for those that there were; what undoes it.

        Raises:
            UsageError: two tools share a name, one of them of a server that is new here; nothing
                has changed.
        """
        old, limit = self._servers, self._limit
        new = {server.alias: server for server in servers}
        added = {alias for alias, server in new.items() if old.get(alias) is not server}

        def refuse(tool: Tool, taken: Tool) -> None:
            if not added.isdisjoint({tool.name.server, taken.name.server}):
                self._refuse(tool, taken)

        def undo() -> None:
            self._servers, self._limit = old, limit
            self.withdraw_tools()

        self._limit = max_tool_name
        try:
            self._name(new, refuse)
        except UsageError:
            self._limit = limit
            raise
        self._servers = new
        self.on_change()
        return undo

    def rename_tools(self, server: Server) -> None:

        def leave_out(tool: Tool, taken: Tool) -> None:
            text = f"`{tool.name.name}` is left out: `{taken.name}` has its name"
            self._notify(server.alias, "tool_name_taken", text)

        self._name(self._servers, leave_out)
        self._hear()
        self.on_change()

    def hold_to(self, hear: Callable[[], None], offers: Callable[[Tool], bool]) -> None:
        """Call `hear` when a server has changed its tools, and only tools it `offers`."""
        self._hear, self._offers = hear, offers

    def may_call(self, server: Server, name: str) -> bool:
        tool = self._by_name.get(ToolName(server.alias, name))
        return tool is None or self._offers(tool)

    async def _find_ready(self, alias: str) -> Server:
        server = self._servers.get(alias)
        where = f"mcp server `{alias}`"
        if server is None:
            hint = did_you_mean(alias, self._servers)
            raise UsageError("there is no such server", where=where, hint=hint)
        await server.wait_until_settled()
        if server.failure is not None:
            raise UnavailableError(server.failure, where=where)
        return server

    async def _gather(
        self, ask: Callable[[Server, Notify], Coroutine[None, None, tuple[Offer, ...]]]
    ) -> tuple[Offer, ...]:
        offers: dict[str, tuple[Offer, ...]] = {}

        async def one(server: Server) -> None:
            await server.wait_until_settled()
            if server.failure is None:
                offers[server.alias] = await ask(server, self._notify)

        servers = tuple(self._servers.values())
        async with anyio.create_task_group() as group:
            for server in servers:
                group.start_soon(one, server)
        return tuple(offer for server in servers for offer in offers.get(server.alias, ()))

    def _name(self, servers: Mapping[str, Server], on_clash: Callable[[Tool, Tool], None]) -> None:
        by_name: dict[ToolName, Tool] = {}
        by_wire: dict[str, Tool] = {}
        for server in servers.values():
            # The offers of a server that is not connected yet are incomplete.
            for definition in server.definitions.values() if server.state == "ready" else ():
                tool = tool_of(server.entry, definition, self._limit)
                if tool.wire in by_wire:
                    on_clash(tool, by_wire[tool.wire])
                    continue
                by_name[tool.name] = by_wire[tool.wire] = tool
        self._by_name, self._by_wire = by_name, by_wire

    @staticmethod
    def _refuse(tool: Tool, taken: Tool) -> None:
        raise clash(tool.wire, taken.name, tool.name)


@asynccontextmanager
async def open_registry(
    connections: Sequence[ServerConnection],
    *,
    reaper: Reaper,
    logs: Path | None,
    max_tool_name: int,
    notice: Notify,
    elicit: Elicit | None = None,
    secrets: Secrets | None = None,
    adapter: "CassetteAdapter | None" = None,
) -> AsyncGenerator[Registry]:
    """Connect to all servers at the same time; they are closed when the block ends.

    A server that cannot be connected raises nothing: it is in `Registry.servers` with its reason.
    `secrets` are masked in what is kept of a child's stderr. `adapter` connects the servers to a
    cassette.

    Raises:
        UsageError: two tools share a name.
        AishError: a replay did not find a request to a server.
    """
    registry = Registry(max_tool_name, notice)
    async with task_group() as tasks:
        around = ServerEnvironment(reaper, logs, tasks, notice, secrets, adapter)
        servers = [server_of(connection, around, registry, elicit) for connection in connections]
        for server in servers:
            registry.add(server)
        try:
            await together(
                partial(server.open, waits=bool(server.entry.required)) for server in servers
            )
            registry.name_tools()
            yield registry
        finally:
            with anyio.CancelScope(shield=True):
                await registry.close()
                await close_supervisors(around.supervisors)
            tasks.cancel_scope.cancel()


def server_of(
    connection: ServerConnection,
    around: ServerEnvironment,
    registry: Registry,
    elicit: Elicit | None,
    *,
    restarts: bool = True,
) -> Server:
    """A server that notifies the registry of its changes."""
    server = Server(
        connection,
        TransportFactory(connection, around),
        around.tasks,
        elicit=elicit,
        on_change=registry.rename_tools,
        may_call=registry.may_call,
        restarts=restarts,
    )
    server.on_note = registry.on_note
    return server
