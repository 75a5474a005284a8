"""The real clock; tests inject their own."""

import time
from collections.abc import Callable


class SystemClock:
    """`vocab.protocols.Clock` over the machine's clocks."""

    @staticmethod
    def now() -> float:
        """Seconds since the epoch."""
        return time.time()

    @staticmethod
    def monotonic() -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()


def call_every(seconds: float, tell: Callable[[], None]) -> Callable[[], None]:
    """Call `tell` each time so many seconds have passed, until what this gives back is called."""
    import asyncio  # what only asks for the time does without

    loop = asyncio.get_running_loop()
    waiting: asyncio.TimerHandle

    def again() -> None:
        nonlocal waiting
        waiting = loop.call_later(seconds, again)
        tell()

    def stop() -> None:
        waiting.cancel()

    waiting = loop.call_later(seconds, again)
    return stop
