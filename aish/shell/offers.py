"""What servers have to attach, as completion knows it: asked for, and never waited for."""

from collections.abc import Callable, Coroutine, Sequence

from aish.core.errors import AishError
from aish.engine.resources.toolbox import Servers

Aside = Callable[[Callable[[], Coroutine[None, None, None]]], None]
"""Has something done beside everything else, and given up when the session ends."""


class Offers:
    """The resources and prompts of servers, as they were when they were asked for last."""

    def __init__(self, registry: Servers, aside: Aside, refresh: Callable[[], None]) -> None:
        self._registry = registry
        self._aside = aside
        self._refresh = refresh
        self._asked: frozenset[str] = frozenset()
        self._names: tuple[str, ...] = ()

    def names(self) -> Sequence[str]:
        """What is known now; servers that have come up since are asked."""
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
        uris = (one.uri for one in resources if not one.template)
        named = (f"{one.server}__{one.name}" for one in prompts)
        self._names = tuple(dict.fromkeys((*uris, *named)))
        self._refresh()
