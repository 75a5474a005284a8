"""How long a test looks again for what another process or thread is about to do."""

import select
import time
from collections.abc import Iterator

SECONDS = 60.0


def rounds(missing: str) -> Iterator[None]:
    """Rounds to look in, until one is left with `break` or there is no more time.

    Raises:
        AssertionError: the time is over; `missing` says what did not come.
    """
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        yield
    raise AssertionError(missing)


def is_ready(descriptor: int, seconds: float | None, event: int = select.POLLIN) -> bool:
    """Whether it can be read or written, waiting for it so long; `select` ends at number 1,023."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))
