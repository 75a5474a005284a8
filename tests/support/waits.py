"""How long an event loop was to wait: by a clock that only its waits move, and no other clock read.

Whatever a machine is busy with takes no time here. A timer that is cancelled, such as a time-out
that was not reached, is no wait, and neither is one for a socket or a child. A test of a
time-out lets it run out (`MovedClock`) once that has come which has to come before.
"""

import asyncio
import os
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from pathlib import Path
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

    def put_forward(self, seconds: float) -> None:
        self._waits.passed += seconds

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


def put_forward(seconds: float) -> None:
    """Put the clock of the running loop, one of this module, forward: its time-outs run out."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Loop)
    loop.put_forward(seconds)


def forward_after(pipe: Path, *seconds: float) -> Callable[[], Coroutine[Any, Any, None]]:
    """What puts the clock forward once a process has written to a named pipe, which this makes.

    What is to be done after the first of several times is done before the clock goes on.
    """
    os.mkfifo(pipe)

    async def wait() -> None:
        descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        for one in seconds:
            put_forward(one)
            await anyio.wait_all_tasks_blocked()

    return wait


def waits_of(main: Callable[[], Awaitable[Any]]) -> tuple[Any, list[float]]:
    """What `main` returns, and the waits that its loop sat out, in seconds."""
    waited: list[float] = []
    value = anyio.run(main, backend_options={"loop_factory": lambda: _Loop(waited)})
    return value, waited


def longest_wait(main: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """What `main` returns, and the longest of the waits that its loop sat out."""
    value, waited = waits_of(main)
    return value, max(waited, default=0.0)


def waiting_loop() -> asyncio.AbstractEventLoop:
    """A loop on such a clock, for a program that runs another loop than its tests do."""
    return _Loop([])


class MovedClock:
    """The clock of a loop whose time-outs a test lets run out: nobody has to be quick, or to wait.

    clock = MovedClock()
    anyio.run(main, backend_options={"loop_factory": clock.loop})
    """

    def __init__(self) -> None:
        self._loop: _MovedLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, once."""
        assert self._loop is None, "there is one loop on this clock"
        self._loop = _MovedLoop()
        return self._loop

    def put_forward(self, seconds: float) -> None:
        """Put the clock forward, whatever runs out; from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loop.put_forward, seconds)

    def run_out(self, seconds: float) -> None:
        """Let the time-out of so many seconds run out, now or once it is set; from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loop.run_out, seconds)


class _MovedLoop(_Loop):
    def __init__(self) -> None:
        self._ahead = 0.0
        self._wanted: float | None = None
        self._timers: list[tuple[float, asyncio.TimerHandle]] = []
        super().__init__([])

    def time(self) -> float:
        return super().time() + self._ahead

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        now = self.time()
        self._timers = [one for one in self._timers if self._is_set(one[1])]
        self._timers.append((when - now, handle))
        if self._wanted is not None:
            self.run_out(self._wanted)
        return handle

    def run_out(self, seconds: float) -> None:
        self._wanted = seconds
        for delay, handle in self._timers:
            if self._is_set(handle) and abs(delay - seconds) < _NEAR:
                self._ahead += handle.when() - self.time()
                self._wanted = None
                return

    def _is_set(self, handle: asyncio.TimerHandle) -> bool:
        return not handle.cancelled() and handle.when() > self.time()


_NEAR = 0.3
"""Seconds that a time-out may be shorter than it was meant to be: some begin a moment later."""
