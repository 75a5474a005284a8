"""Resources and prompts of servers for completion: requested, but never waited for."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from aish.core.errors import AishError

if TYPE_CHECKING:
    from aish.mcp.client.registry import Registry

Aside = Callable[[Callable[[], Coroutine[None, None, None]]], None]
"""Has something done beside everything else, and given up when the session ends."""


class Offers:
    """The resources and prompts of servers, as of the last request."""

    def __init__(self, registry: "Registry", aside: Aside, refresh: Callable[[], None]) -> None:
        self._registry = registry
        self._aside = aside
        self._refresh = refresh
        self._asked: frozenset[str] = frozenset()
        self._names: tuple[str, ...] = ()

    def names(self) -> Sequence[str]:
        """Return what is known now; servers that have connected since are queried."""
        ready = frozenset(one.alias for one in self._registry.servers if one.state == "ready")
        if ready != self._asked:
            self._asked = ready
            self._aside(self._ask)
        return self._names

    async def _ask(self) -> None:
        try:
            resources = await self._registry.resources()
            prompts = await self._registry.prompts()
        except (AishError, ExceptionGroup):
            return
        uris = (resource.uri for resource in resources if not resource.template)
        named = (f"{prompt.server}__{prompt.name}" for prompt in prompts)
        self._names = tuple(dict.fromkeys((*uris, *named)))
        self._refresh()
