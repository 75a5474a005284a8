"""The worker's end of the way to the driver: what it says, asks, and waits for (P7)."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from aish.run.cluster.letters import (
    GATHERING,
    Answer,
    Asked,
    FromWorker,
    Orders,
    Parcel,
    Question,
)
from aish.run.cluster.pickles import packed

Put = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class Link:
    """One session's letters to the driver, in their order, and the answers to its questions."""

    session: str
    put: Put
    acked: int = 0
    _sent: int = 0
    _outbox: list[FromWorker] = field(default_factory=list)
    _waiting: anyio.Event = field(default_factory=anyio.Event)
    _progress: anyio.Event = field(default_factory=anyio.Event)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _open: "dict[int, _Reply]" = field(default_factory=dict)

    def post(self, letter: FromWorker) -> None:
        """Say something; nobody waits for it."""
        self._outbox.append(letter)
        self._waiting.set()

    async def ask(self, question: Question, ticket: int | None = None) -> Any:
        """The driver's answer.

        Raises:
            AishError: the answer is one.
        """
        number = next(self._numbers)
        reply = self._open[number] = _Reply()
        self.post(Asked(number, ticket, question))
        try:
            await reply.came.wait()
        finally:
            del self._open[number]
        assert reply.answer is not None
        if reply.answer.error is not None:
            raise reply.answer.error
        return reply.answer.value

    async def flushed(self) -> None:
        """Wait until the driver has written down all that was said until now."""
        wanted = self._sent + bool(self._outbox)
        while self.acked < wanted:
            await self._progress.wait()

    async def send(self) -> None:
        """Send what is said, all that has gathered at once, for ever."""
        while True:
            await self._waiting.wait()
            # A message costs both ends more than the wait for what is said next costs an item.
            await anyio.sleep(GATHERING)
            self._waiting = anyio.Event()
            letters, self._outbox = tuple(self._outbox), []
            if letters:
                self._sent += 1
                await self.put(packed(Parcel(self.session, self._sent, letters)))

    def heard(self, orders: Orders) -> None:
        """Take what the driver says: how far it has come, and answers."""
        if orders.acked > self.acked:
            self.acked = orders.acked
            self._progress.set()
            self._progress = anyio.Event()
        for letter in orders.letters:
            if isinstance(letter, Answer) and letter.number in self._open:
                reply = self._open[letter.number]
                reply.answer = letter
                reply.came.set()


@dataclass(slots=True)
class _Reply:
    came: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None
