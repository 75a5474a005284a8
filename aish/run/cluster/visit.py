"""One session of a worker, as the driver sees it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from aish.core.protocols import Hold
from aish.run.cluster.letters import GATHERING, Orders, ToWorker
from aish.run.cluster.pickles import packed
from aish.run.cluster.scopes import Scopes

HEARTBEAT = 2.0
"""Seconds after which a session is told that the driver is still there."""

Put = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Visit:
    """What is said to a session, and what it holds; `places` bounds what it runs at a time."""

    id: str
    address: str
    places: anyio.CapacityLimiter
    alive: bool = True
    heard: int = 0
    holds: dict[int, Hold] = field(default_factory=dict)
    work: Scopes = field(default_factory=Scopes)
    _count: int = 0
    _outbox: list[ToWorker] = field(default_factory=list)
    _waiting: anyio.Event = field(default_factory=anyio.Event)

    def order(self, *letters: ToWorker) -> None:
        """Say something to it; without a letter only how much of its own was written down."""
        self._outbox += letters
        self._waiting.set()

    async def send(self, put: Put, stopped: Callable[[], bool]) -> None:
        """Send what is said, and now and then that we are there, for ever."""
        while True:
            with anyio.move_on_after(HEARTBEAT):
                await self._waiting.wait()
            await anyio.sleep(GATHERING)
            self._waiting = anyio.Event()
            letters, self._outbox = tuple(self._outbox), []
            await put(packed(Orders(self.heard, stopped(), letters)))

    def lend(self, hold: Hold) -> int:
        """The number that it calls a hold by."""
        self._count += 1
        self.holds[self._count] = hold
        return self._count

    def lose(self) -> None:
        """It is gone: nothing it says counts any more, and what it had begun is spent."""
        self.alive = False
        self.work.cancel()
        for hold in self.holds.values():
            hold.close(begun=True)
        self.holds.clear()
