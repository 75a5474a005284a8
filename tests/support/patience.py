"""How long a test looks again for what another process or thread is about to do."""

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
