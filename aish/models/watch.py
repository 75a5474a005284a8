"""The deadlines of one request: first token, idle, whole turn (L10).

A cancel scope per network chunk would cost more than the chunk. One timer is enough: it is armed
for the nearest deadline, and when it fires it looks whether that deadline has moved since.
"""

import asyncio

import anyio

from aish.config.models import ModelTimeout
from aish.models.intake import Intake

_SOON = 1.0


class Watch:
    """Cancels a scope when the endpoint keeps it waiting too long; `expired` then says which."""

    __slots__ = (
        "_intake",
        "_last",
        "_loop",
        "_scope",
        "_started",
        "_timeout",
        "_timer",
        "_turn_ends",
        "expired",
    )

    def __init__(
        self, scope: anyio.CancelScope, intake: Intake, timeout: ModelTimeout, turn_ends: float
    ) -> None:
        self._scope = scope
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._turn_ends = turn_ends
        self._started = self._loop.time()
        self._last: float | None = None
        self.expired: str | None = None
        self._timer = self._loop.call_at(self._due()[0], self._fire)

    def progressed(self) -> None:
        """The answer has grown. Comments and pings are no reason to call this (L4)."""
        first = self._last is None
        self._last = self._loop.time()
        if first:
            # From now on the idle deadline counts, which may be the nearer one.
            self._rearm()

    def end_within(self, seconds: float) -> None:
        """Everything has been said: wait no longer than this for the end of the body."""
        self._turn_ends = min(self._turn_ends, self._loop.time() + seconds)
        self._rearm()

    def expire(self, name: str) -> None:
        """A deadline passes now: in a replay nobody waits for it a second time."""
        self.expired = name
        self._scope.cancel()

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _rearm(self) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_at(self._due()[0], self._fire)

    def _due(self) -> tuple[float, str]:
        """The nearest deadline and its name in the pipeline file."""
        if self._last is None:
            nearest = (self._started + self._timeout.first_token, "first_token")
        else:
            nearest = (self._last + self._timeout.idle, "idle")
        return min(nearest, (self._turn_ends, "turn"))

    def _fire(self) -> None:
        due, name = self._due()
        now = self._loop.time()
        if now < due:
            self._timer = self._loop.call_at(due, self._fire)
        elif name != "turn" and not self._intake.empty:
            # It is the consumer who takes its time.
            self._timer = self._loop.call_at(now + _SOON, self._fire)
        else:
            self.expired = name
            self._scope.cancel()
