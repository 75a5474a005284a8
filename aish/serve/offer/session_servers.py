"""Servers that are not shared: each session has a connection of its own (`share: false`).

The lists come from the common connection; calls go to the session's own one, which the first call
opens and the end of the session closes.
"""

from collections.abc import Callable, Collection

import anyio

from aish.core.errors import AishError
from aish.core.frozen import slotted
from aish.core.tools import ToolResult
from aish.engine.resources.servers import LiveServers
from aish.mcp.client.connection import Server
from aish.mcp.client.dynamic_registry import ServerTask
from aish.mcp.protocol.convert import loss_result

_MOST_ENDED = 10_000
_ENDED = "the session that had this server has ended"


@slotted
class _Connection:
    """The connection of a session to a server, once it exists."""

    opening: anyio.Lock
    stay: ServerTask | None = None


class SessionServers:
    """The connections of all sessions, by session and alias."""

    def __init__(self, live: Callable[[], LiveServers]) -> None:
        self._live = live
        self._connections: dict[str, dict[str, _Connection]] = {}
        self._ended: dict[str, None] = {}
        """The latest sessions that have ended: a task of theirs may still come to its call."""

    async def server(self, session: str, alias: str) -> Server | ToolResult | None:
        """Return the session's own server, `None` if it is shared, or why there is none."""
        servers = self._live().plan.servers
        found = (one for one in servers if one.entry.alias == alias and not one.entry.share)
        resolved = next(found, None)
        if resolved is None:
            return None
        if session in self._ended:
            return ToolResult("transport_error", f"[aish] {_ENDED}")
        of_session = self._connections.setdefault(session, {})
        connection = of_session.setdefault(alias, _Connection(anyio.Lock()))
        async with connection.opening:
            stay = connection.stay
            if stay is not None and stay.server.failure is not None:
                # It has ended by itself: the next call has a new one.
                stay.leave()
                stay = connection.stay = None
            if stay is None:
                live = self._live()
                try:
                    stay = await live.dynamic_registry.connect_apart(live.connection(resolved))
                except AishError as error:
                    return loss_result(error.message, sent=False)
                connection.stay = stay
                if self._connections.get(session, {}).get(alias) is not connection:
                    # The session has ended, or the server is another one since a reload.
                    live.dynamic_registry.retire(stay)
        return stay.server

    def end(self, session: str) -> None:
        """Close the connections of a session that has ended."""
        if not all(server.entry.share for server in self._live().plan.servers):
            self._ended[session] = None
            if len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]
        for connection in self._connections.pop(session, {}).values():
            if connection.stay is not None:
                connection.stay.leave()

    def drop(self, aliases: Collection[str]) -> None:
        """Close the connections to replaced servers, once their calls have ended."""
        for of_session in self._connections.values():
            for alias in aliases:
                connection = of_session.pop(alias, None)
                if connection is not None and connection.stay is not None:
                    self._live().dynamic_registry.retire(connection.stay)
