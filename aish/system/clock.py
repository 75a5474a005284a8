"""The real clock; tests inject their own."""

import time
from collections.abc import Callable

from aish.system.platform.processes import own_age


class SystemClock:
    """`core.protocols.Clock` over the machine's clocks."""

    @staticmethod
    def now() -> float:
        return time.time()

    @staticmethod
    def monotonic() -> float:
        return time.monotonic()


def process_began() -> float | None:
    """Return the start of this process in seconds since the epoch; `None` if unknown."""
    ago = own_age()
    return None if ago is None else time.time() - ago


def call_every(seconds: float, tell: Callable[[], None]) -> Callable[[], None]:
    """Call `tell` at this interval until the returned function is called."""
    import asyncio  # imported late: not needed to read the time

    loop = asyncio.get_running_loop()
    waiting: asyncio.TimerHandle

    # It does not name itself: then it is freed at once, with all that `tell` holds.
    def again(itself: Callable[..., None]) -> None:
        nonlocal waiting
        waiting = loop.call_later(seconds, itself, itself)
        tell()

    def stop() -> None:
        waiting.cancel()

    waiting = loop.call_later(seconds, again, again)
    return stop
