"""One server's time in a roster: a task that opens it, keeps what it needs, and closes it."""

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from aish.core.errors import AishError
from aish.mcp.server import Server


class Stay:
    """A server from when it is reached for to when it is gone.

    `settled` is set once it is known whether it came up. Everything that it starts lives in a task
    group of its own, which ends with it.
    """

    def __init__(
        self,
        server_in: Callable[[TaskGroup], Server],
        let_go: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._tasks = anyio.create_task_group()
        self.server = server_in(self._tasks)
        self.settled = anyio.Event()
        self._let_go = let_go
        self._opening = anyio.CancelScope()
        self._leaving = anyio.Event()
        self._gone = anyio.Event()

    async def live(self, on_settled: Callable[["Stay"], None] | None = None) -> None:
        """Open the server, wait until it is to leave, and close it."""
        try:
            async with self._tasks:
                try:
                    await self._come()
                    if on_settled is not None and not self.leaving:
                        on_settled(self)
                    self.settled.set()
                    if self.server.failure is None:
                        await self._leaving.wait()
                finally:
                    await self._go()
        finally:
            self.settled.set()
            self._gone.set()

    @property
    def leaving(self) -> bool:
        """Whether it is to be closed, or is."""
        return self._leaving.is_set()

    def leave(self) -> None:
        """Have the server closed, also while it is still reached for."""
        self._leaving.set()
        self._opening.cancel()

    async def end(self) -> None:
        """Have it closed, and wait until it is gone."""
        self.leave()
        await self._gone.wait()

    async def _come(self) -> None:
        with self._opening:
            try:
                await self.server.open()
            except AishError as error:
                # A replay missed what it was asked.
                await self.server.fail(error.message)

    async def _go(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.server.close()
            if self._let_go is not None:
                await self._let_go()
        self._tasks.cancel_scope.cancel()
