"""Ctrl-C stops the running line, not the session; SIGTERM and SIGHUP end the session."""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Protocol

import anyio

from aish.core.errors import ExitCode
from aish.engine.cancellation import End, Interrupt, borrow_signals, is_same_wish
from aish.system.computation import add_signal_handler


class _Borrower(Protocol):
    def __call__(self, code: ExitCode, *, again: bool = True) -> None: ...


class Interrupts:
    """Decides what a signal does now. `attended`: a person is present who may press Ctrl-C.

    In an unattended session Ctrl-C ends the session, as it ends a run.
    """

    def __init__(
        self, *, attended: bool, restore: Callable[[], None], forget: Callable[[], None]
    ) -> None:
        self.code: ExitCode | None = None
        self.stopped = False
        """Whether what runs, or ran last, was stopped by Ctrl-C."""
        self.tell: Callable[[], None] = lambda: None
        """Tells those who follow the session that it is being ended."""
        self._pressed = False
        self._ended_at = 0.0
        self._attended = attended
        self._restore = restore
        self._forget = forget
        self._whole = anyio.CancelScope()
        self._running: anyio.CancelScope | None = None
        self._borrower: _Borrower | None = None

    @contextmanager
    def handle_signals(self) -> Generator[None]:
        """Handle the signals for as long as the block lasts."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGINT: self.interrupt,
            signal.SIGTERM: lambda: self.end(ExitCode.TERMINATED),
            signal.SIGHUP: self.hang_up,
        }
        taken = []
        for number, handler in handlers.items():
            # A signal that the parent process ignores (`nohup`) stays ignored.
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
        """The block that is cancelled when the session ends, also if that was requested before."""
        with self._whole:
            yield

    @contextmanager
    def lend_to_run(self) -> Generator[None]:
        """Let signals end a run; one that also ends the session does so after the run."""
        try:
            with borrow_signals(self._lend):
                yield
        finally:
            if self.code is not None:
                self._whole.cancel()

    @contextmanager
    def _lend(self, end: End) -> Generator[Interrupt]:
        interrupt = Interrupt()

        def on_signal(code: ExitCode, *, again: bool = True) -> None:
            if interrupt.code is None:
                interrupt.code = code
                end(code)
            elif again:
                self._leave(interrupt.code)

        self._borrower = on_signal
        try:
            yield interrupt
        finally:
            self._borrower = None

    @contextmanager
    def cancellable(self) -> Generator[anyio.CancelScope]:
        """Let Ctrl-C cancel the block; `cancelled_caught` of the scope says whether it did."""
        with anyio.CancelScope() as scope:
            self._running, self.stopped, self._pressed = scope, False, False
            try:
                yield scope
            finally:
                self._running = None

    def interrupt(self) -> None:
        """Ctrl-C: stop what is running; a second one, or one while the session ends, exits."""
        if self.code is not None or not self._attended:
            self.end(ExitCode.INTERRUPTED)
        else:
            again, self._pressed = self._pressed, True
            self._stop(again=again)

    def stop(self) -> None:
        """Stop what is running on a key press; this never counts as a Ctrl-C."""
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
        # Typed-ahead input was meant for what is being stopped.
        self._forget()

    def end(self, code: ExitCode) -> None:
        """End the session; a second time leaves without waiting, and the reaper ends children."""
        now = asyncio.get_running_loop().time()
        if self.code is None:
            self._ended_at = now
            self._end(code)
        elif not is_same_wish(code, self.code, now - self._ended_at):
            self._leave(self.code)

    def hang_up(self) -> None:
        """The terminal was closed: end the session, always in order.

        A repeated SIGHUP is not a request to hurry: both the kernel and the shell in that terminal
        send it.
        """
        if self.code is None:
            self._end(ExitCode.TERMINATED, again=False)

    def _end(self, code: ExitCode, *, again: bool = True) -> None:
        self.code = code
        if self._borrower is not None:
            self._borrower(code, again=again)
        else:
            self._whole.cancel()
        self.tell()

    def _leave(self, code: ExitCode) -> None:
        self._restore()
        os._exit(int(code))
