"""How long a test looks again for what another process or thread is about to do."""

import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

SECONDS = 60.0
_BETWEEN = 0.02


def rounds(missing: str) -> Iterator[None]:
    """Rounds to look in, until one is left with `break` or there is no more time.

    Raises:
        AssertionError: the time is over; `missing` says what did not come.
    """
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        yield
    raise AssertionError(missing)


class Signalled(Protocol):
    """A process, however it was started."""

    def send_signal(self, number: int) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


def signal_until_end(process: Signalled, number: int) -> None:
    """Signal a process until it ends, slowly enough for it to look at each signal.

    Two signals at once may be one to it, so another one may be needed; but a loop without a pause
    sends thousands.
    """
    for _ in rounds("it has not ended of signals"):
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_BETWEEN)
            return


def is_ready(descriptor: int, seconds: float | None, event: int = select.POLLIN) -> bool:
    """Whether it can be read or written, waiting for it so long; `select` ends at number 1,023."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))
