"""Time and chance for retries, so that tests need not wait."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import field

import anyio

from aish.system.clock import SystemClock
from aish.vocab.frozen import frozen
from aish.vocab.protocols import Clock


@frozen
class Pace:
    """What retries need to know of the world; `chance` gives a number in [0, 1).

    `waits` is false in a replay, where nothing is to be waited for.
    """

    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], Awaitable[object]] = anyio.sleep
    chance: Callable[[], float] = random.random  # ruff: ignore[suspicious-non-cryptographic-random-usage] - no secret
    waits: bool = True
