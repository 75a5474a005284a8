"""Ctrl-C stops what is running and not the session; SIGTERM and SIGHUP end it (S1)."""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Protocol

import anyio

from aish.core.errors import ExitCode
from aish.engine.cancellation import End, Interrupt, lent_by
from aish.system.computation import add_signal_handler


class _Borrower(Protocol):
    def __call__(self, code: ExitCode, *, again: bool = True) -> None: ...


class Interrupts:
    """What a signal does now. `attended` says that a person is there, who may press Ctrl-C.

    With nobody there Ctrl-C ends the session, as it ends a run.
    """

    def __init__(
        self, *, attended: bool, restore: Callable[[], None], forget: Callable[[], None]
    ) -> None:
        self.code: ExitCode | None = None
        self.stopped = False
        """Whether what runs, or ran last, was stopped by Ctrl-C."""
        self._pressed = False
        self._attended = attended
        self._restore = restore
        self._forget = forget
        self._whole = anyio.CancelScope()
        self._running: anyio.CancelScope | None = None
        self._borrower: _Borrower | None = None

    @contextmanager
    def taken(self) -> Generator[None]:
        """Take the signals for as long as the block lasts."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGINT: self.interrupt,
            signal.SIGTERM: lambda: self.end(ExitCode.TERMINATED),
            signal.SIGHUP: self.hang_up,
        }
        taken = []
        for number, handler in handlers.items():
            # What whoever started us had ignored (`nohup`) stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                with suppress(ValueError, RuntimeError, NotImplementedError):
                    add_signal_handler(loop, number, handler)
                    taken.append(number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    @contextmanager
    def session(self) -> Generator[None]:
        """The block that the end of the session ends, once; also one that came before it."""
        with self._whole:
            yield

    @contextmanager
    def lent(self) -> Generator[None]:
        """While a run is what signals end; one that ends the session does so after the run."""
        try:
            with lent_by(self._lend):
                yield
        finally:
            if self.code is not None:
                self._whole.cancel()

    @contextmanager
    def _lend(self, end: End) -> Generator[Interrupt]:
        seen = Interrupt()

        def arrived(code: ExitCode, *, again: bool = True) -> None:
            if seen.code is None:
                seen.code = code
                end(code)
            elif again:
                self._leave(seen.code)

        self._borrower = arrived
        try:
            yield seen
        finally:
            self._borrower = None

    @contextmanager
    def running(self) -> Generator[anyio.CancelScope]:
        """Let Ctrl-C end the block; `cancelled_caught` of the scope says that it did."""
        with anyio.CancelScope() as scope:
            self._running, self.stopped, self._pressed = scope, False, False
            try:
                yield scope
            finally:
                self._running = None

    def interrupt(self) -> None:
        """Ctrl-C: stop what is running. Once more, or where the session ends: leave at once."""
        if self.code is not None or not self._attended:
            self.end(ExitCode.INTERRUPTED)
        else:
            again, self._pressed = self._pressed, True
            self._stop(again=again)

    def stop(self) -> None:
        """Any key, where any key stops what runs: never more than the first Ctrl-C, nor one."""
        if self.code is None and not self.stopped:
            self._stop(again=False)

    def _stop(self, *, again: bool) -> None:
        if self._running is None:
            return
        self.stopped = True
        if self._borrower is not None:
            self._borrower(ExitCode.INTERRUPTED, again=again)
        elif again and self._running.cancel_called:
            self._leave(ExitCode.INTERRUPTED)
        else:
            self._running.cancel()
        # What was typed ahead was meant for what is stopped now.
        self._forget()

    def end(self, code: ExitCode) -> None:
        """End the session; a second time leaves without waiting, and the reaper ends children."""
        if self.code is not None:
            self._leave(self.code)
        self._end(code)

    def hang_up(self) -> None:
        """The terminal went away: end the session, and always in order.

        A second time is nobody's wish: the kernel says it, and the shell in that terminal too.
        """
        if self.code is None:
            self._end(ExitCode.TERMINATED, again=False)

    def _end(self, code: ExitCode, *, again: bool = True) -> None:
        self.code = code
        if self._borrower is not None:
            self._borrower(code, again=again)
        else:
            self._whole.cancel()

    def _leave(self, code: ExitCode) -> None:
        self._restore()
        os._exit(int(code))
