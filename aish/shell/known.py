"""The tools as far as they are known: servers may still be on their way (S5)."""

import anyio

from aish.core.tools import Tool
from aish.shell.session import Session

_SOON = 2.0
"""Seconds that a person waits for servers that still connect before what there is is shown."""


async def known_tools(session: Session) -> tuple[Tool, ...]:
    """What servers offer; with nobody there, each of them is waited for."""
    await servers_known(session)
    return session.tools()


async def servers_known(session: Session) -> None:
    """Wait a moment for servers that still connect; with nobody there, for as long as it takes."""
    with anyio.move_on_after(_SOON if session.open.attended else None):
        await session.open.servers.dynamic_registry.settled()


def still_connecting(session: Session) -> str:
    """What is to be said of servers that may have more; empty where all are known."""
    servers = session.open.servers.dynamic_registry.registry.servers
    names = [one.alias for one in servers if one.state == "connecting"]
    return f"still connecting: {', '.join(names)}" if names else ""
