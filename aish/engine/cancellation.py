"""Ctrl-C, SIGTERM and SIGHUP; whether a run still begins new work; work in flight."""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import field
from functools import partial
from typing import NoReturn

import anyio

from aish.core.errors import ExitCode
from aish.core.frozen import slotted
from aish.core.phrases import counted
from aish.system.computation import add_signal_handler
from aish.system.guest import is_guest

INTERRUPTED = "interrupted"
"""The code of the notice that a run, or a server, is being ended; its page shows that."""
GRACE_SECONDS = 10.0
"""How long items in flight may go on after a Ctrl-C."""
_ONE_WISH = 1.0
"""Seconds within which several signals are one wish: a terminal and a parent process send both."""
_ONE_PRESS = 0.1
"""The same for Ctrl-C of a person, who may press it twice."""


@slotted
class Cancellation:
    """Shared by all units of work of a run: the plain steps and the items.

    `why` is empty while the run continues; then it is the reason for the end, for units that were
    not begun. `items` counts the items in flight, which after a Ctrl-C have some seconds left.
    `apart` is set for an item's sub-pipeline: units in flight continue, and so does the item.
    """

    why: str = ""
    items: int = 0
    plain: set[anyio.CancelScope] = field(default_factory=set)
    above: "Cancellation | None" = None
    apart: bool = False

    def child(self, *, apart: bool) -> "Cancellation":
        """The cancellation of a sub-pipeline, which may stop while the rest continues."""
        return Cancellation(above=self, apart=apart)

    @property
    def stopped(self) -> bool:
        """True if no new work is begun."""
        return bool(self.reason)

    @property
    def reason(self) -> str:
        """Why the run, or this part of it, ended; empty while it continues."""
        return self.why or ("" if self.above is None or self.apart else self.above.reason)

    def stop(self, why: str) -> None:
        """Begin nothing new; work in flight continues."""
        self.why = self.why or why

    @contextmanager
    def plain_unit(self) -> Generator[None]:
        """A step in flight: a signal ends it at once, unless it is a part of an item.

        Raises:
            CutOffError: it was ended by a signal.
        """
        if self.in_item:
            yield
            return
        root = self.root()
        with anyio.CancelScope() as scope:
            root.plain.add(scope)
            try:
                yield
            finally:
                root.plain.discard(scope)
        if scope.cancelled_caught:
            raise CutOffError

    def root(self) -> "Cancellation":
        """The cancellation of the whole run."""
        return self if self.above is None else self.above.root()

    def check_whole(self, *, ended: bool) -> None:
        """Check that a sub-pipeline was completed: all of it has `ended`, or it stopped itself.

        Raises:
            CutOffError: the run around it was stopped before that.
        """
        if not ended and not self.why and self.stopped:
            raise CutOffError

    @property
    def in_item(self) -> bool:
        """True if the unit belongs to one item."""
        return self.apart or (self.above is not None and self.above.in_item)

    def interrupt(self, whole: anyio.CancelScope, code: ExitCode) -> None:
        """A signal arrived: cancel `whole` in the appropriate way."""
        self.stop("the run was interrupted")
        if code is not ExitCode.INTERRUPTED or not self.items:
            whole.cancel()
            return
        whole.deadline = min(whole.deadline, anyio.current_time() + GRACE_SECONDS)
        for scope in tuple(self.plain):
            scope.cancel()


async def until_cancelled() -> NoReturn:
    """Wait for the cancellation of this task, after a signal or deadline stopped its template.

    Raises:
        RuntimeError: it is not cancelled.
    """
    await anyio.sleep(GRACE_SECONDS * 2)
    raise RuntimeError("a template was stopped, and its task goes on")


class CutOffError(Exception):
    """A step was ended by a signal while the items of another one continue."""


def last_words(items: int) -> str:
    """The message after the first Ctrl-C."""
    has = "has" if items == 1 else "have"
    under_way = f"{counted(items, 'item')} under way {has} {GRACE_SECONDS:g} s to end"
    return f"nothing new is started, {under_way}; Ctrl-C again exits at once"


# A closed terminal (SIGHUP) ends a run as SIGTERM does.
_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.TERMINATED,
}


@slotted
class Interrupt:
    """The signal that arrived, if any; `arrive` does what it does.

    `farewell` is written to stderr if a second one exits at once, unless it does `again` instead.
    """

    code: ExitCode | None = None
    farewell: str = ""
    arrive: Callable[[ExitCode], None] = field(default=lambda _: None)
    again: Callable[[], None] | None = None
    at: float = 0.0
    """When it arrived, by the clock of the event loop."""

    def repeat(self, code: ExitCode, now: float) -> None:
        """Do what a second signal does, if it is one."""
        first, pressed = self.code or code, self.again is None
        if is_same_wish(code, first, now - self.at, pressed=pressed):
            return
        self.at = now
        if self.again is not None:
            self.again()
            return
        with suppress(OSError):
            os.write(2, self.farewell.encode("utf-8", "replace"))
        os._exit(int(first))


def is_same_wish(code: ExitCode, first: ExitCode, seconds: float, *, pressed: bool = True) -> bool:
    """Return true if a signal this long after the first one belongs to it.

    `pressed` is for programs that people start at a terminal.
    """
    is_key = pressed and code is first is ExitCode.INTERRUPTED
    return seconds < (_ONE_PRESS if is_key else _ONE_WISH)


End = Callable[[ExitCode], None]
Lend = Callable[[End], AbstractContextManager[Interrupt]]
_LENT: ContextVar[Lend | None] = ContextVar("lent", default=None)


@contextmanager
def borrow_signals(lend: Lend) -> Generator[None]:
    """Within the block signals are received through `lend`, which already handles them."""
    token = _LENT.set(lend)
    try:
        yield
    finally:
        _LENT.reset(token)


class ShutdownRequests:
    """Ends runs as a signal would; one that begins afterwards ends at its start."""

    def __init__(self) -> None:
        self.code: ExitCode | None = None
        self._ends: list[End] = []

    def arrive(self, code: ExitCode) -> None:
        """End the runs; only the first time counts."""
        if self.code is None:
            self.code = code
            for end in tuple(self._ends):
                end(code)

    @contextmanager
    def lend(self, end: End) -> Generator[Interrupt]:
        """Yield an interrupt for a run in the place of signals."""
        interrupt = Interrupt(self.code, arrive=self.arrive)

        def end_run(code: ExitCode) -> None:
            interrupt.code = code
            end(code)

        self._ends.append(end_run)
        if self.code is not None:
            end_run(self.code)
        try:
            yield interrupt
        finally:
            self._ends.remove(end_run)


@contextmanager
def interruptible(end: End, on_hangup: Callable[[], None] | None = None) -> Generator[Interrupt]:
    """Call `end` when SIGINT, SIGTERM or SIGHUP arrives; each SIGHUP may mean `on_hangup` instead.

    A second one, other than SIGHUP, exits without waiting; the reaper then ends the children.
    Several at the same time are one.
    """
    lend = _LENT.get()
    if lend is None and is_guest():
        # The owner of the process decides what a signal does; an interrupted loop cancels this
        # task.
        yield Interrupt()
        return
    with _take_signals(end, on_hangup) if lend is None else lend(end) as interrupt:
        yield interrupt


@contextmanager
def _take_signals(end: End, on_hangup: Callable[[], None] | None = None) -> Generator[Interrupt]:
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()

    def arrive(code: ExitCode) -> None:
        if interrupt.code is None:
            interrupt.code, interrupt.at = code, loop.time()
            end(code)

    interrupt.arrive = arrive

    def on_signal(number: signal.Signals) -> None:
        if number is signal.SIGHUP and on_hangup is not None:
            on_hangup()
        elif interrupt.code is None:
            arrive(_CODES[number])
        elif number is not signal.SIGHUP:
            interrupt.repeat(_CODES[number], loop.time())

    installed = []
    # Signals that the parent ignored (`nohup`, a background job) stay ignored; a SIGHUP that ends
    # nothing is taken as by any program that runs in the background.
    taken = [n for n in _CODES if signal.getsignal(n) is not signal.SIG_IGN]
    if on_hangup is not None and signal.SIGHUP not in taken:
        taken.append(signal.SIGHUP)
    for number in taken:
        # Only the main thread can handle signals; elsewhere (a test) they are left to their owner.
        with suppress(ValueError, RuntimeError, NotImplementedError):
            add_signal_handler(loop, number, partial(on_signal, number))
            installed.append(number)
    try:
        yield interrupt
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
