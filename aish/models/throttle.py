"""Adaptive limit on concurrent requests to an endpoint.

Unlimited until the endpoint reports overload: then half of the requests in flight, and one more for
each round of successful answers. All clients of one endpoint share the limit, whatever their model,
step or item.
"""

import asyncio
import math
from collections import deque
from contextlib import suppress
from dataclasses import field

from aish.core.frozen import slotted
from aish.core.messages import StreamNotice

QUIET_SECONDS = 10.0
"""How long it says nothing new of its limit after it has said something."""

_WORTH_TELLING = 1.25


class Slot:
    """The right to have one request at the endpoint; `free` releases it."""

    __slots__ = ("_answers", "_cuts", "_held", "_is_out", "_throttle")

    def __init__(self, throttle: "Throttle") -> None:
        self._throttle = throttle
        self._held = True
        self._is_out = False
        self._cuts = throttle.cuts
        self._answers = throttle.answers

    def mark_sent(self) -> None:
        """Note that the request is sent now: reports of overload count from here."""
        self._cuts = self._throttle.cuts
        self._answers = self._throttle.answers
        if not self._is_out:
            self._is_out = True
            self._throttle.out += 1

    def mark_answered(self) -> None:
        self._throttle.grow(self._cuts)

    def mark_refused(self) -> None:
        self._throttle.cut(self._cuts)

    def is_unfinished_again(self) -> bool:
        """The answer has no end: whether the endpoint has sent such a one before."""
        self._throttle.unfinished += 1
        return self._throttle.unfinished > 1

    @property
    def beside_others(self) -> bool:
        """True if the endpoint has other requests, or had since this was sent."""
        return self._throttle.answers > self._answers or self._throttle.out > self._is_out

    def free(self) -> None:
        """Release the slot for the next request; a second call does nothing."""
        if self._held:
            self._held = False
            self._throttle.out -= self._is_out
            self._throttle.give_back()


class Throttle:
    """An endpoint's limit, and the time until which requests wait (`until`, monotonic).

    `adaptive` is false in a replay: then there is no limit.
    """

    def __init__(self, origin: str, *, adaptive: bool = True) -> None:
        self._origin = origin
        self._adaptive = adaptive
        self._limit: float = math.inf
        self._credit = 0
        self._is_used = False
        self._in_flight = 0
        self._peak = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._told = math.inf
        self._quiet_until = -math.inf
        self.cuts = 0
        self.answers = 0
        self.out = 0
        self.unfinished = 0
        self.until = 0.0

    @property
    def limit(self) -> int | None:
        return None if self._limit == math.inf else int(self._limit)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiting)

    def hold(self, until: float) -> None:
        self.until = max(self.until, until)

    def take(self) -> Slot | None:
        """A slot, if there is one at once: without a limit there always is."""
        self._peak = max(self._peak, self._in_flight + len(self._waiting) + 1)
        if self._waiting or self._in_flight >= self._limit:
            return None
        self._take()
        return Slot(self)

    async def slot(self) -> Slot:
        """Wait for a slot, in the order of requests."""
        if (slot := self.take()) is not None:
            return slot
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.cancelled():
                with suppress(ValueError):
                    self._waiting.remove(waiter)
            else:
                # It was handed over just before the receiver was cancelled.
                self.give_back()
            raise
        return Slot(self)

    def give_back(self) -> None:
        """A request has ended, successfully or not."""
        self._in_flight -= 1
        self._hand_over()

    def cut(self, sent_at: int) -> None:
        """Halve the limit; only once for all requests that were in flight together."""
        if sent_at != self.cuts or not self._adaptive:
            return
        self.cuts += 1
        self._credit = 0
        self._is_used = False
        self._limit = max(1, min(self._limit, self._in_flight) // 2)

    def grow(self, sent_at: int) -> None:
        """An answer was received: a round of them raises the limit by one."""
        if not self._adaptive:
            return
        self.answers += 1
        if sent_at != self.cuts or not self._is_used:
            # It was sent before the last cut; or the limit was not reached.
            return
        self._credit += 1
        if self._credit >= self._limit:
            self._credit = 0
            self._is_used = False
            self._limit = self._limit + 1 if self._limit + 1 < self._peak else math.inf
            self._hand_over()

    def news(self, now: float) -> StreamNotice | None:
        """A message about a change of the limit; rarely one."""
        limit = self._limit
        low, high = sorted((limit, self._told))
        if low == high or high < low * _WORTH_TELLING or now < self._quiet_until:
            return None
        if self._peak == 1:
            # There are no concurrent requests, so there is nothing to report.
            return None
        was, self._told = self._told, limit
        self._quiet_until = now + QUIET_SECONDS
        if limit == math.inf:
            message = f"{self._origin}: no limit to requests at a time any more"
            return StreamNotice("unthrottled", message)
        why = "it has too many" if limit < was else "it answers again"
        message = f"{self._origin}: {limit:.0f} at a time from now on; {why}"
        return StreamNotice("throttled", message)

    def _hand_over(self) -> None:
        while self._waiting and self._in_flight < self._limit:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._take()
                waiter.set_result(None)

    def _take(self) -> None:
        self._in_flight += 1
        if self._in_flight >= self._limit:
            self._is_used = True


@slotted
class Throttles:
    """The throttles of a run, by origin: two aliases of one endpoint share one."""

    adaptive: bool = True
    by_origin: dict[str, Throttle] = field(default_factory=dict)

    def of(self, origin: str) -> Throttle:
        throttle = self.by_origin.get(origin)
        if throttle is None:
            throttle = self.by_origin[origin] = Throttle(origin, adaptive=self.adaptive)
        return throttle
