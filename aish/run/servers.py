"""The tool servers of a plan, open. Imported only by runs that have any (docs/performance.md)."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from aish.mcp.border import Border
from aish.mcp.connection import ServerConnection
from aish.mcp.registry import Registry, open_registry
from aish.packs.pack import Pack, open_packs
from aish.run.credentials import ResolvedServer
from aish.run.plan import Plan
from aish.run.surroundings import AnyTape, Surroundings
from aish.system.children import Reaper
from aish.vocab.event_parts import NOWHERE
from aish.vocab.events import Notice
from aish.vocab.protocols import Emit


@asynccontextmanager
async def open_servers(
    plan: Plan, around: Surroundings, reaper: Reaper
) -> AsyncGenerator[Registry]:
    """Connect to the servers, all at once (M5); where they are replayed, to none of them (C6).

    Raises:
        UsageError: two tools share a name, or a pack's root is not allowed.
        CassetteMissError: the cassette does not hold what a server was asked.
    """
    border = _border(around.tape)
    replayed = border is not None and border.replays
    children = not replayed and any(server.entry.command for server in plan.servers)
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(
            open_registry(
                [
                    _bare(server) if replayed else _connection(server, plan, reaper, stack)
                    for server in plan.servers
                ],
                reaper=reaper,
                logs=around.folder.logs if children else None,
                # Of all models, so that `-m` and commands without a model see the same names (M4).
                max_tool_name=min(
                    (entry.max_tool_name for entry in plan.pipeline.models.values()), default=64
                ),
                notice=_noticer(around.emit),
                secrets=plan.secrets,
                border=border,
            )
        )


def _border(tape: AnyTape | None) -> Border | None:
    if tape is None:
        return None
    from aish.mcp.tape_border import TapeBorder
    from aish.run.taping.borders import tape_of

    found = tape_of(tape)
    return None if found.way("mcp") == "live" else TapeBorder(found)


def _bare(server: ResolvedServer) -> ServerConnection:
    """A server that is only replayed: a pack of it would touch the disk."""
    return ServerConnection(entry=server.entry, token=server.token)


def _connection(
    server: ResolvedServer, plan: Plan, reaper: Reaper, stack: AsyncExitStack
) -> ServerConnection:
    pack: Pack | None = None
    if server.entry.pack:
        pack = open_packs(
            server.entry.pack,
            server.entry.root,
            allow_broad_root=plan.allow_broad_root,
            reaper=reaper,
        )
        stack.push_async_callback(pack.shutdown)
    return ServerConnection(
        entry=server.entry, token=server.token, child_env=server.child_env, pack=pack
    )


def _noticer(emit: Emit) -> Callable[[str, str, str], None]:
    def notice(alias: str, code: str, text: str) -> None:
        emit(Notice(NOWHERE, "warning", code, f"mcp {alias}: {text}"))

    return notice
