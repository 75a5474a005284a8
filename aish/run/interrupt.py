"""Ctrl-C, SIGTERM and SIGHUP: the first ends the run in order.

A second one ends the process at once, but for SIGHUP: a terminal that goes away says so twice, the
kernel and the shell in it, and nobody is in a hurry.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial

from aish.core.errors import ExitCode
from aish.core.frozen import slotted
from aish.system.computation import add_signal_handler
from aish.system.guest import is_guest

# A terminal that goes away (SIGHUP) ends a run as SIGTERM does.
_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.TERMINATED,
}


@slotted
class Interrupt:
    """Which signal came, if one did."""

    code: ExitCode | None = None


End = Callable[[ExitCode], None]
Lend = Callable[[End], AbstractContextManager[Interrupt]]
_LENT: ContextVar[Lend | None] = ContextVar("lent", default=None)


@contextmanager
def lent_by(lend: Lend) -> Generator[None]:
    """Within the block whoever wants the signals gets them from `lend`, who has them already."""
    token = _LENT.set(lend)
    try:
        yield
    finally:
        _LENT.reset(token)


@contextmanager
def interruptible(end: End) -> Generator[Interrupt]:
    """Call `end` when SIGINT, SIGTERM or SIGHUP arrives.

    A second one, if it is no SIGHUP, leaves without waiting; the reaper then ends the children
    (M10).
    """
    lend = _LENT.get()
    if lend is None and is_guest():
        # Whose process it is decides what a signal does; an interrupted loop cancels us.
        yield Interrupt()
        return
    with _taken(end) if lend is None else lend(end) as seen:
        yield seen


@contextmanager
def _taken(end: End) -> Generator[Interrupt]:
    seen = Interrupt()
    loop = asyncio.get_running_loop()

    def arrived(number: signal.Signals) -> None:
        if seen.code is None:
            seen.code = _CODES[number]
            end(seen.code)
        elif number is not signal.SIGHUP:
            os._exit(int(seen.code))

    installed = []
    # What whoever started us had ignored (`nohup`, a job in the background) stays so.
    for number in (n for n in _CODES if signal.getsignal(n) is not signal.SIG_IGN):
        # Only the main thread can take signals; elsewhere (a test) they stay with their owner.
        with suppress(ValueError, RuntimeError, NotImplementedError):
            add_signal_handler(loop, number, partial(arrived, number))
            installed.append(number)
    try:
        yield seen
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
