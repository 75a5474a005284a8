"""Work that computes in this process and that a deadline or a signal can still stop (F6, B8, B14).

A computation holds the event loop: nothing that the loop would do, such as passing on a Ctrl-C or
a time limit, happens before it ends. `compute` ends it from outside: by a timer's signal in the
main thread, by a look at the clock every few lines in any other, and in a process that is somebody
else's. A signal is then handled at once, and what its handler leaves alone is computed again.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from math import inf
from time import monotonic
from types import FrameType
from typing import Any, TypeVar

from aish.system.guest import is_guest

Result = TypeVar("Result")

# A timer set to zero would be off; what is due already gets this long.
_SHORTEST = 0.001
# What catches everything may catch the first one.
_AGAIN = 0.05
_LINES = 256


class ComputationStoppedError(Exception):
    """A computation was stopped.

    `is_late` says that its own bound is over. Otherwise the task is going to be cancelled, by its
    deadline or by the handler of a signal.
    """

    def __init__(self, *, is_late: bool) -> None:
        super().__init__("the computation was stopped")
        self.is_late = is_late


class _Stop(BaseException):
    """Raised in the middle of the computation; no `except Exception` of it sees this."""


_is_computing = False
"""Whether the main thread is within `compute`."""
_signals: set[int] = set()
"""What has come and the event loop has not been able to look at yet."""
_handlers: dict[int, Callable[[], None]] = {}
_handled: set[int] = set()
"""What `compute` has handled and the event loop is still going to tell of."""


def add_signal_handler(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handler: Callable[[], None]
) -> None:
    """As the method of the loop, and the signal stops what the main thread computes.

    `handler` is called once for a signal, when the computation has been stopped.

    Raises:
        ValueError, RuntimeError: not in the main thread.
    """

    def arrived() -> None:
        _signals.discard(number)
        if number in _handled:
            _handled.discard(number)
            return
        handler()

    loop.add_signal_handler(number, arrived)
    # What an earlier loop has not told of any more is not for this handler.
    _signals.discard(number)
    _handled.discard(number)
    _handlers[number] = handler
    signal.signal(number, _stop)
    # As the loop does: a system call that a signal comes into goes on.
    signal.siginterrupt(number, False)


def _stop(number: int, _frame: FrameType | None) -> None:
    if number != signal.SIGALRM:
        _signals.add(number)
    if _is_computing:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
        raise _Stop


def compute(work: Callable[[], Result], seconds: float) -> Result:
    """What `work` returns, which does not await, within `seconds` and the deadline of the task.

    It is begun again, with all of its `seconds`, after a signal whose handler lets the task go on.

    Raises:
        ComputationStoppedError: it was stopped.
    """
    own_signals = threading.current_thread() is threading.main_thread() and not is_guest()
    if own_signals and _is_computing:
        return work()
    run = _timed if own_signals else _traced
    while True:
        own = monotonic() + seconds
        try:
            return run(work, min(own, _deadline()))
        except _Stop:
            is_signalled = own_signals and _handle()
            now, deadline = monotonic(), _deadline()
            if not is_signalled or deadline <= now:
                raise ComputationStoppedError(is_late=own <= now < deadline) from None


def _handle() -> bool:
    """Call the handlers of the signals that have come, whether there are any."""
    come = tuple(_signals)
    for number in come:
        _signals.discard(number)
        _handled.add(number)
        _handlers[number]()
    return bool(come)


def _deadline() -> float:
    """When the task is going to be cancelled, where there is one."""
    if "anyio" not in sys.modules:
        return inf
    import anyio

    try:
        return anyio.current_effective_deadline()
    except anyio.NoEventLoopError:
        return inf


def _timed(work: Callable[[], Result], ends: float) -> Result:
    """In the main thread, where signals are heard between any two steps of Python."""
    global _is_computing  # ruff: ignore[global-statement] - the signal handler has no other way to know
    before = signal.signal(signal.SIGALRM, _stop)
    try:
        try:
            _is_computing = True
            if _signals:
                raise _Stop
            signal.setitimer(signal.ITIMER_REAL, max(ends - monotonic(), _SHORTEST), _AGAIN)
            return work()
        finally:
            _is_computing = False
    finally:
        _is_computing = False  # the signal may have come in the line above
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _traced(work: Callable[[], Result], ends: float) -> Result:
    """In any other thread; where a debugger traces already, without a bound."""
    if sys.gettrace() is not None:
        return work()
    lines = 0

    def trace(_frame: FrameType, _event: str, _value: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines % _LINES == 0 and monotonic() >= ends:
            raise _Stop
        return trace

    sys.settrace(trace)
    try:
        return work()
    finally:
        sys.settrace(None)
