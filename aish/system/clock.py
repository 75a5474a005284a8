"""The real clock; tests inject their own."""

import time


class SystemClock:
    """`vocab.protocols.Clock` over the machine's clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()
