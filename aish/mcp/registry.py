"""The tools of all servers under one roof (M4, M5): implements `vocab.protocols.Tools`."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from aish.mcp.border import Border
from aish.mcp.connection import ServerConnection
from aish.mcp.convert import Definition
from aish.mcp.naming import clash, wire_name
from aish.mcp.opening import Notify, Opening, Surroundings
from aish.mcp.requests_from_server import Elicit
from aish.mcp.server import Server
from aish.system.children import Reaper
from aish.system.secrets import Secrets
from aish.vocab.json import JsonObject
from aish.vocab.protocols import Progress, Sampler
from aish.vocab.run_parts import ServerInfo
from aish.vocab.tools import Tool, ToolName, ToolResult


class Registry:
    """Every tool of every server that came up, by wire name and by pair."""

    def __init__(self, max_tool_name: int, notify: Notify) -> None:
        self._limit = max_tool_name
        self._notify = notify
        self._servers: dict[str, Server] = {}
        self._by_name: dict[ToolName, Tool] = {}
        self._by_wire: dict[str, Tool] = {}
        self._hear: Callable[[], None] = lambda: None
        self._offers: Callable[[Tool], bool] = lambda _tool: True

    @property
    def servers(self) -> tuple[ServerInfo, ...]:
        """Every server of the file, in its order, and whether it came up."""
        return tuple(
            ServerInfo(
                alias=server.alias,
                transport=server.transport,
                state="ready" if server.failure is None else "failed",
                tools=sum(not one.unlisted for one in server.definitions.values()),
                error=server.failure,
            )
            for server in self._servers.values()
        )

    def failure(self, alias: str) -> str | None:
        """Why a server did not come up, with the tail of its stderr; `None` if it did."""
        server = self._servers.get(alias)
        return server.failure if server is not None else None

    def listed(self) -> tuple[Tool, ...]:
        """Every tool that is shown, in the order of the file's servers and their own."""
        return tuple(tool for tool in self._by_name.values() if not tool.unlisted)

    def by_wire_name(self, wire: str) -> Tool | None:
        """The tool a model named, or `None`."""
        return self._by_wire.get(wire)

    def by_name(self, name: ToolName) -> Tool | None:
        """The tool a file or a person named, or `None`; unlisted older names included."""
        return self._by_name.get(name)

    async def call(
        self,
        tool: Tool,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None = None,
    ) -> ToolResult:
        """Call a tool; every failure is a result (M8). Only cancellation passes through."""
        server = self._servers[tool.name.server]
        return await server.call(tool.name.name, arguments, on_progress, sample)

    def add(self, server: Server) -> None:
        """Take a server in; its tools come with `name_tools`."""
        self._servers[server.alias] = server

    def name_tools(self) -> None:
        """Give every tool its wire name.

        Raises:
            UsageError: two tools share a name.
        """
        for server in self._servers.values():
            if server.ambiguous is not None:
                name = ToolName(server.alias, server.ambiguous)
                raise clash(wire_name(name, self._limit), name, name)
        self._name(self._refuse)

    def rename_tools(self, server: Server) -> None:
        """Take in the changed tools of a server; one whose name is taken is left out."""

        def leave_out(tool: Tool, taken: Tool) -> None:
            text = f"`{tool.name.name}` is left out: `{taken.name}` has its name"
            self._notify(server.alias, "tool_name_taken", text)

        self._name(leave_out)
        self._hear()

    def hold_to(self, hear: Callable[[], None], offers: Callable[[Tool], bool]) -> None:
        """Call `hear` each time a server has changed its tools, and only tools it `offers` (P8)."""
        self._hear, self._offers = hear, offers

    def may_call(self, server: Server, name: str) -> bool:
        """Whether a tool, as its server has it now, may still be called."""
        tool = self._by_name.get(ToolName(server.alias, name))
        return tool is None or self._offers(tool)

    def _name(self, on_clash: Callable[[Tool, Tool], None]) -> None:
        by_name: dict[ToolName, Tool] = {}
        by_wire: dict[str, Tool] = {}
        for server in self._servers.values():
            for one in server.definitions.values():
                tool = self._tool(server, one)
                if tool.wire in by_wire:
                    on_clash(tool, by_wire[tool.wire])
                    continue
                by_name[tool.name] = by_wire[tool.wire] = tool
        self._by_name, self._by_wire = by_name, by_wire

    def _tool(self, server: Server, one: Definition) -> Tool:
        name = ToolName(server.alias, one.name)
        return Tool(
            name=name,
            wire=wire_name(name, self._limit),
            description=one.description,
            input_schema=one.input_schema,
            output_schema=one.output_schema,
            annotations=one.annotations,
            parallel=one.parallel,
            unlisted=one.unlisted,
            older_of=one.older_of,
            trusted=server.entry.trust,
        )

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
    border: Border | None = None,
) -> AsyncGenerator[Registry]:
    """Connect to all servers at the same time (M5); they are let go when the block ends.

    A server that does not come up is no error here: it is in `Registry.servers` with its reason.
    `secrets` are masked in what is kept of a child's stderr. `border` is what a cassette puts
    between us and the servers.

    Raises:
        UsageError: two tools share a name.
        AishError: a replay missed what a server was asked.
    """
    registry = Registry(max_tool_name, notice)
    problem: Exception | None = None
    async with anyio.create_task_group() as tasks:
        around = Surroundings(reaper, logs, tasks, notice, secrets, border)
        servers = [_server(one, around, registry, elicit) for one in connections]
        try:
            await _all(server.open for server in servers)
            for server in servers:
                registry.add(server)
            registry.name_tools()
            yield registry
        except Exception as error:  # ruff: ignore[blind-except] - it is raised below: a task group would wrap it
            problem = _single(error)
        finally:
            with anyio.CancelScope(shield=True):
                await _all(server.close for server in servers)
            tasks.cancel_scope.cancel()
    if problem is not None:
        raise problem


def _server(
    connection: ServerConnection, around: Surroundings, registry: Registry, elicit: Elicit | None
) -> Server:
    return Server(
        connection,
        Opening(connection, around),
        around.tasks,
        elicit=elicit,
        on_change=registry.rename_tools,
        may_call=registry.may_call,
    )


async def _all(actions: Iterable[Callable[[], Coroutine[None, None, None]]]) -> None:
    """Do all at the same time."""
    async with anyio.create_task_group() as group:
        for action in actions:
            group.start_soon(action)


def _single(error: Exception) -> Exception:
    """The first of those that servers failed with at the same time."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
