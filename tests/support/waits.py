"""How long an event loop was to wait: by a clock that only its waits move, and no other clock read.

Whatever a machine is busy with takes no time here. A timer that is cancelled, such as a time-out
that was not reached, is no wait, and neither is one for a socket or a child.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

import anyio

_Ts = TypeVarTuple("_Ts")


class _Selector(selectors.DefaultSelector):
    """Adds up the waits that were sat out to their end."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        if not ready and timeout is not None:
            self.passed += max(timeout, 0.0)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, waited: list[float]) -> None:
        self._waits = _Selector()
        self._waited = waited
        super().__init__(self._waits)

    def time(self) -> float:
        return self._waits.passed

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        delay = when - self.time()

        def run_out() -> None:
            self._waited.append(delay)
            callback(*args)

        return super().call_at(when, run_out, context=context)


def waits_of(main: Callable[[], Awaitable[Any]]) -> tuple[Any, list[float]]:
    """What `main` returns, and the waits that its loop sat out, in seconds."""
    waited: list[float] = []
    value = anyio.run(main, backend_options={"loop_factory": lambda: _Loop(waited)})
    return value, waited


def longest_wait(main: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """What `main` returns, and the longest of the waits that its loop sat out."""
    value, waited = waits_of(main)
    return value, max(waited, default=0.0)
