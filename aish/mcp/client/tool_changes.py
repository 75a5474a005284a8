"""Replay of a server's word that its tools changed, when its time has come (C5).

What a server says unasked is played as soon as it may have been said, though it led to what stands
further on in the recording: the list of tools that was asked for again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from aish.mcp.protocol.messages import Asked, Noted

if TYPE_CHECKING:
    from aish.mcp.transports.adapter import CassetteAdapter

TOOLS_CHANGED = "notifications/tools/list_changed"


class Replay:
    """What one server said, held back until `hear` may take it."""

    def __init__(
        self,
        adapter: "CassetteAdapter",
        origin: str,
        hear: Callable[[Asked | Noted, int | None], None],
    ) -> None:
        self._adapter = adapter
        self._origin = origin
        self._hear = hear
        self._changes: list[Noted] = []
        self._has_list = False
        self._released = 0
        adapter.on_played(self._release)

    def holds_back(self, message: Asked | Noted) -> bool:
        """Keep a message whose time has to come; whether it is one."""
        if not isinstance(message, Noted) or message.method != TOOLS_CHANGED:
            return False
        self._changes.append(message)
        self._release()
        return True

    def answered(self, method: str) -> None:
        """A request has its answer."""
        if method == "tools/list":
            self._has_list = True
            self._release()

    def end(self) -> None:
        """Nobody hears any more."""
        self._changes.clear()

    def _release(self) -> None:
        if not self._changes or not self._has_list:
            return
        number = self._adapter.next_list(self._origin)
        # One word for each list, however often this is looked at before it is asked for.
        if number is not None and number != self._released:
            self._released = number
            self._hear(self._changes.pop(0), None)
