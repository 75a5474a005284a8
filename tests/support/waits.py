"""How long an event loop was to wait: the delays of the timers that ran out, and no clock read.

A timer that is cancelled, such as a time-out that was not reached, is none of them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

import anyio

_Ts = TypeVarTuple("_Ts")


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, waited: list[float]) -> None:
        super().__init__()
        self._waited = waited

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


def longest_wait(main: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """What `main` returns, and the longest wait that its loop sat out, in seconds."""
    waited = [0.0]
    value = anyio.run(main, backend_options={"loop_factory": lambda: _Loop(waited)})
    return value, max(waited)
