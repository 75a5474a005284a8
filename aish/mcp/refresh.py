"""A server's tools, listed again each time it says that they changed (M6)."""

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

MAX_REFRESHES = 50


class Refresh:
    """Has the tools listed `again`; many words of the server lead to one new list.

    `again` says whether that worked.
    """

    def __init__(self, tasks: TaskGroup, again: Callable[[], Awaitable[bool]]) -> None:
        self._tasks = tasks
        self._again = again
        self._times = 0
        self._stale = False
        self._over = anyio.Event()
        self.under_way = False

    def changed(self) -> None:
        """Hear that the tools changed."""
        self._stale = True
        if not self.under_way and self._times < MAX_REFRESHES:
            self.under_way = True
            self._over = anyio.Event()
            self._tasks.start_soon(self._refresh)

    async def over(self) -> None:
        """Wait until what was said of changes is known."""
        while self.under_way:
            await self._over.wait()

    async def _refresh(self) -> None:
        try:
            while self._stale and self._times < MAX_REFRESHES:
                self._stale = False
                self._times += 1
                if not await self._again():
                    break
        finally:
            # Also where the server is let go meanwhile: a call may wait for this.
            self.under_way = False
            self._over.set()
