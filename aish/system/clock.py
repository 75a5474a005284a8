"""The real clock; tests inject their own."""

import time


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
