"""An endpoint that serves so many requests at once and turns everybody else away with a 429."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from model_endpoint import Part, Pause, Reply, json_reply, text_reply

TOO_MANY = json_reply(429, {"error": {"code": "rate_limit_exceeded"}})


class Busy:
    """Answers with the last text it was sent; `capacity` may depend on how many it has served."""

    def __init__(self, capacity: int | Callable[[int], int], *, seconds: float = 0.002) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._lock = threading.Lock()
        self.inside: list[int] = []
        self.refused = 0
        self.served: Counter[str] = Counter()
        self._now = 0

    def __call__(self, asked: Any) -> Reply:
        with self._lock:
            if self._now >= self.capacity:
                self.refused += 1
                return TOO_MANY
            self._now += 1
            self.inside.append(self._now)
        word = asked["messages"][-1]["content"]
        return text_reply(word).but(parts=self._parts(word))

    @property
    def capacity(self) -> int:
        """How many it serves at once now."""
        if callable(self._capacity):
            return self._capacity(self.served.total())
        return self._capacity

    def _parts(self, word: str) -> Iterator[Part]:
        yield Pause(self._seconds)
        *parts, last = text_reply(word).parts
        yield from parts
        # Counted before the client can know: after that, it may ask again or end at any time.
        with self._lock:
            self._now -= 1
            self.served[word] += 1
        yield last
