"""Time and chance for retries, so that tests need not wait; and the cool-down of an endpoint."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from aish.system.clock import SystemClock
from aish.vocab.frozen import frozen
from aish.vocab.protocols import Clock


@frozen
class Pace:
    """What retries need to know of the world; `chance` gives a number in [0, 1)."""

    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], Awaitable[object]] = anyio.sleep
    chance: Callable[[], float] = random.random  # ruff: ignore[suspicious-non-cryptographic-random-usage] - no secret


@dataclass(slots=True)
class Cooldown:
    """Until when every request to one endpoint waits, after a 429 (L8); monotonic seconds."""

    until: float = 0.0

    def hold(self, until: float) -> None:
        """Wait at least until then."""
        self.until = max(self.until, until)


@frozen
class Cooldowns:
    """The cool-downs of a run, by origin: two aliases of one endpoint share it."""

    by_origin: dict[str, Cooldown] = field(default_factory=dict)

    def of(self, origin: str) -> Cooldown:
        """The cool-down of an endpoint."""
        return self.by_origin.setdefault(origin, Cooldown())
