"""One turn on its way to an answer: how often it was tried, and until when it may be (L8, L10)."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio

from aish.config.models import ModelEntry
from aish.core.protocols import ModelRequest
from aish.models.retry import Advice

SPARED = 4
"""How many refusals for load alone are forgiven for each try that the file allows."""

Got = TypeVar("Got")


class Turn:
    """What `client` keeps between the tries of one turn; `ends` is in the loop's time."""

    __slots__ = ("_loop", "_spared", "body", "ends", "failures", "request", "tries")

    def __init__(self, request: ModelRequest, body: bytes, entry: ModelEntry) -> None:
        self._loop = asyncio.get_running_loop()
        self._spared = SPARED * entry.retry.attempts
        self.request = request
        self.body = body
        self.ends = self._loop.time() + entry.timeout.turn
        self.tries = 0
        self.failures = 0

    async def waited(self, wanted: Awaitable[Got]) -> Got:
        """What is waited for, at no cost to the time of the turn."""
        since = self._loop.time()
        got = await wanted
        self.ends += self._loop.time() - since
        return got

    def is_too_late(self, delay: float) -> bool:
        """Whether a deadline, the step's or the turn's, would pass while waiting."""
        ends = min(self.ends, anyio.current_effective_deadline())
        return self._loop.time() + delay >= ends

    def failed(self, advice: Advice, *, beside_others: bool) -> None:
        """A try came to nothing.

        One that was turned away beside others says that the endpoint is busy, not that it is
        broken: up to a bound, such a try is not held against the turn.
        """
        if advice.cools and beside_others and self._spared:
            self._spared -= 1
        else:
            self.failures += 1
