"""The real clock; tests inject their own."""

import os
import time
from collections.abc import Callable
from pathlib import Path

# Field index of the start time in `/proc/PID/stat`, after the process name.
_STARTED = 19


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
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        # The name of the program, in parentheses, may contain any character.
        ticks = int(stat.rpartition(")")[2].split()[_STARTED])
        since = ticks / os.sysconf("SC_CLK_TCK")
        ago = time.clock_gettime(time.CLOCK_BOOTTIME) - since
    except (OSError, ValueError, IndexError):
        return None
    # Some sandboxes report 0.
    return time.time() - max(0.0, ago) if ticks > 0 else None


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
