"""Ctrl-C stops what is running and not the session; SIGTERM and SIGHUP end it (S1)."""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import anyio

from aish.errors import ExitCode

_ENDS = (signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """What a signal does now. `attended` says that a person is there, who may press Ctrl-C.

    With nobody there Ctrl-C ends the session, as it ends a run.
    """

    def __init__(
        self, *, attended: bool, restore: Callable[[], None], forget: Callable[[], None]
    ) -> None:
        self.code: ExitCode | None = None
        self.count = 0
        """How often something was stopped by Ctrl-C."""
        self._attended = attended
        self._restore = restore
        self._forget = forget
        self._whole = anyio.CancelScope()
        self._running: anyio.CancelScope | None = None

    @contextmanager
    def session(self) -> Generator[None]:
        """Take the signals for as long as the block lasts, which they may end."""
        self._install()
        try:
            with self._whole:
                yield
        finally:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, *_ENDS):
                loop.remove_signal_handler(number)

    @contextmanager
    def lent(self) -> Generator[None]:
        """While somebody else takes the signals, as a run does; what they end stays ended."""
        try:
            yield
        finally:
            self._install()

    def _install(self) -> None:
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {signal.SIGINT: self.interrupt}
        for number in _ENDS:
            handlers[number] = lambda: self.end(ExitCode.TERMINATED)
        for number, handler in handlers.items():
            # What whoever started us had ignored (`nohup`) stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                with suppress(ValueError, RuntimeError, NotImplementedError):
                    loop.add_signal_handler(number, handler)

    @contextmanager
    def running(self) -> Generator[anyio.CancelScope]:
        """Let Ctrl-C end the block; `cancelled_caught` of the scope says that it did."""
        with anyio.CancelScope() as scope:
            self._running = scope
            try:
                yield scope
            finally:
                self._running = None

    def interrupt(self) -> None:
        """Ctrl-C: stop what is running. Once more, while that is being stopped: leave at once."""
        if not self._attended:
            self.end(ExitCode.INTERRUPTED)
        elif self._running is None:
            return
        elif self._running.cancel_called:
            self._leave(ExitCode.INTERRUPTED)
        else:
            self.count += 1
            self._running.cancel()
            # What was typed ahead was meant for what is stopped now.
            self._forget()

    def end(self, code: ExitCode) -> None:
        """End the session; a second time leaves without waiting, and the reaper ends children."""
        if self.code is not None:
            self._leave(self.code)
        self.code = code
        self._whole.cancel()

    def _leave(self, code: ExitCode) -> None:
        self._restore()
        os._exit(int(code))
