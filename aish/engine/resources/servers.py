"""The tool servers of a plan, open. Imported only by runs that have any (docs/performance.md)."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aish.core.events import NOWHERE, Notice
from aish.core.frozen import frozen
from aish.core.protocols import Emit
from aish.engine.environment import RunEnvironment
from aish.engine.plan.credentials import ResolvedServer
from aish.engine.plan.plan import Plan, own_files
from aish.mcp.client.registry import Registry, open_registry
from aish.mcp.client.server_requests import Elicit
from aish.mcp.transports.settings import ServerConnection
from aish.system.process.reaper import Reaper

if TYPE_CHECKING:
    from aish.mcp.client.dynamic_registry import DynamicRegistry, OnSettled
    from aish.mcp.transports.adapter import CassetteAdapter
    from aish.packs.framework.server import Pack


@asynccontextmanager
async def open_servers(
    plan: Plan, environment: RunEnvironment, reaper: Reaper
) -> AsyncGenerator[Registry]:
    """Connect to the servers, all at once (M5); replayed ones are not contacted (C6).

    Raises:
        UsageError: two tools share a name, or a pack's root is not allowed.
        CassetteMissError: the cassette does not hold a request to a server.
    """
    adapter = None if environment.recorder is None else environment.recorder.server_adapter()
    replayed = adapter is not None and adapter.replays
    children = not replayed and any(server.entry.command for server in plan.servers)
    async with AsyncExitStack() as stack:
        connections: list[ServerConnection] = []
        for server in plan.servers:
            connections.append(
                connection := _connection(server, plan, environment, reaper, adapter)
            )
            if connection.let_go is not None:
                stack.push_async_callback(connection.let_go)
        yield await stack.enter_async_context(
            open_registry(
                connections,
                reaper=reaper,
                logs=environment.folder.logs if children else None,
                max_tool_name=_name_limit(plan),
                notice=_noticer(environment.emit),
                secrets=plan.secrets,
                adapter=adapter,
            )
        )


@frozen
class LiveServers:
    """The servers of a session; initially those of the plan."""

    dynamic_registry: "DynamicRegistry"
    plan: Plan
    environment: RunEnvironment
    reaper: Reaper
    adapter: "CassetteAdapter | None"

    def connection(self, server: ResolvedServer) -> ServerConnection:
        """A connector to the server; its registry closes what it opens.

        Raises:
            UsageError: a pack's root is not allowed.
        """
        return _connection(server, self.plan, self.environment, self.reaper, self.adapter)


@asynccontextmanager
async def open_live_servers(
    plan: Plan,
    environment: RunEnvironment,
    reaper: Reaper,
    elicit: Elicit | None,
    on_settled: "OnSettled",
) -> AsyncGenerator[LiveServers]:
    """A registry without servers; those added later are closed when the block ends."""
    adapter = None if environment.recorder is None else environment.recorder.server_adapter()
    from aish.mcp.client.dynamic_registry import open_dynamic_registry

    async with open_dynamic_registry(
        reaper=reaper,
        logs=environment.folder.logs,
        max_tool_name=_name_limit(plan),
        notice=_noticer(environment.emit),
        on_settled=on_settled,
        elicit=elicit,
        secrets=plan.secrets,
        adapter=adapter,
    ) as dynamic_registry:
        yield LiveServers(dynamic_registry, plan, environment, reaper, adapter)


def _name_limit(plan: Plan) -> int:
    """Of all models, so that `-m` and commands without a model see the same names (M4)."""
    return min((entry.max_tool_name for entry in plan.pipeline.models.values()), default=64)


def _connection(
    server: ResolvedServer,
    plan: Plan,
    environment: RunEnvironment,
    reaper: Reaper,
    adapter: "CassetteAdapter | None",
) -> ServerConnection:
    found = ServerConnection(entry=server.entry, token=server.token)
    if adapter is not None and adapter.replays:
        # A pack of a server that is only replayed would access the disk.
        return found
    pack: Pack | None = None
    if server.entry.pack:
        from aish.packs.framework.server import open_packs

        pack = open_packs(
            server.entry.pack,
            server.entry.root,
            allow_broad_root=plan.allow_broad_root,
            reaper=reaper,
            own_files=_own_files(plan, environment),
        )
    let_go = None if pack is None else pack.shutdown
    return replace(found, child_env=server.child_env, pack=pack, let_go=let_go)


def _own_files(plan: Plan, environment: RunEnvironment) -> frozenset[Path]:
    """The files that the whole run is made of (K19)."""
    recorded = frozenset() if environment.recorder is None else environment.recorder.files
    return own_files(plan) | environment.own_files | recorded


def _noticer(emit: Emit) -> Callable[[str, str, str], None]:
    def notice(alias: str, code: str, text: str) -> None:
        emit(Notice(NOWHERE, "warning", code, f"mcp {alias}: {text}"))

    return notice
