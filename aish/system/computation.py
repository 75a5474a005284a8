"""CPU-bound work in this process that a deadline or a signal can still stop.

A computation blocks the event loop: Ctrl-C and time limits are not handled before it ends.
`compute` interrupts it: by a timer signal in the main thread, by checking the clock every few lines
in any other thread and in a host process. A signal is then handled at once; if its handler does not
cancel the task, the computation is repeated.
"""

import asyncio
import os
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

# A timer set to zero would be disabled; this is the minimum.
_SHORTEST = 0.001
# A catch-all handler in the computation may swallow the first one.
_AGAIN = 0.05
_LINES = 256


class ComputationStoppedError(Exception):
    """A computation was stopped.

    `is_late` says that its own bound is exceeded. Otherwise the task is about to be cancelled, by
    its deadline or by a signal handler.
    """

    def __init__(self, *, is_late: bool) -> None:
        super().__init__("the computation was stopped")
        self.is_late = is_late


class _Stop(BaseException):
    """Raised in the middle of the computation; not caught by `except Exception`."""


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
    """Like the method of the loop, but the signal also stops a computation in the main thread.

    `handler` is called once per signal, after the computation has been stopped.

    Raises:
        ValueError, RuntimeError: not in the main thread.
    """

    def on_signal() -> None:
        _signals.discard(number)
        if number in _handled:
            _handled.discard(number)
            return
        handler()

    loop.add_signal_handler(number, on_signal)
    # Signals not delivered by an earlier loop are not for this handler.
    _signals.discard(number)
    _handled.discard(number)
    _handlers[number] = handler
    signal.signal(number, _stop)
    # As the loop does: an interrupted system call is restarted.
    signal.siginterrupt(number, False)
    allow_full_wakeup()


def allow_full_wakeup() -> None:
    """Do not let Python warn of signals that the loop's wake-up socket has no room for.

    The loop is awake then anyway, and the C handler takes a lock for the warning: a signal that
    arrives while this thread holds it would wait for itself.
    """
    known = set(_signals)
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    os.write(descriptor, bytes(_signals - known))  # what came in between


def _stop(number: int, _frame: FrameType | None) -> None:
    if number != signal.SIGALRM:
        _signals.add(number)
    if _is_computing:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
        raise _Stop


def compute(work: Callable[[], Result], seconds: float) -> Result:
    """The result of the synchronous `work`, within `seconds` and the deadline of the task.

    It is restarted, with all of its `seconds`, after a signal whose handler does not cancel the
    task.

    Raises:
        ComputationStoppedError: it was stopped.
    """
    own_signals = threading.current_thread() is threading.main_thread() and not is_guest()
    if own_signals and _is_computing:
        return work()
    run = _run_with_timer if own_signals else _run_with_trace
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
    """Call the handlers of the received signals; whether there were any."""
    come = tuple(_signals)
    for number in come:
        _signals.discard(number)
        _handled.add(number)
        _handlers[number]()
    return bool(come)


def _deadline() -> float:
    """Return the time at which the task is cancelled, if there is a deadline."""
    if "anyio" not in sys.modules:
        return inf
    import anyio

    try:
        return anyio.current_effective_deadline()
    except anyio.NoEventLoopError:
        return inf


def _run_with_timer(work: Callable[[], Result], ends: float) -> Result:
    """In the main thread, where signals are handled between any two bytecode instructions."""
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


def _run_with_trace(work: Callable[[], Result], ends: float) -> Result:
    """In any other thread; without a bound if a debugger is already tracing."""
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
