"""Time and chance for retries, so that tests need not wait."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import field

import anyio

from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.system.clock import SystemClock


@frozen
class Pace:
    """What retries need to know of the world; `chance` gives a number in [0, 1).

    `waits` is false in a replay, where nothing is to be waited for.
    """

    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], Awaitable[object]] = anyio.sleep
    chance: Callable[[], float] = random.random  # ruff: ignore[suspicious-non-cryptographic-random-usage] - no secret
    waits: bool = True
