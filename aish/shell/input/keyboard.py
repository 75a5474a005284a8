"""Terminal input while no line is edited: collects typed-ahead input, or serves a question."""

import asyncio
import os
import select
import signal
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import Any

from aish.shell.input.lines import OnKey
from aish.system.computation import allow_full_wakeup

# Maximum size of typed-ahead input; a paste of 5,000 long lines is smaller.
_MOST = 1 << 22
_PIECE = 1 << 16
_PASTE = b"\x1b[200~"
_PASTED = b"\x1b[201~"
_INTERRUPT = b"\x03"
_PASTE_ON = "\x1b[?2004h"
_PASTE_OFF = "\x1b[?2004l"
_ALL_OFF = f"{_PASTE_OFF}\x1b[?7h\x1b[?25h\x1b[0m"
_INPUT, _LOCAL, _CHARACTERS = 0, 3, 6

Attributes = list[Any]


class Keyboard:
    """The input side of a terminal; typed-ahead input is in `typed`.

    From `take` to `restore` only an editor or a question echoes keys, so that no key garbles the
    output meanwhile. `show` writes our escape sequences. All of it runs in the event loop.
    """

    def __init__(self, descriptor: int, show: Callable[[str], None]) -> None:
        self.typed = bytearray()
        self._descriptor = descriptor
        self._show = show
        self._found: Attributes = termios.tcgetattr(descriptor)
        self._listening = False
        self._on_key: OnKey | None = None
        self._dropped: bytes | None = None

    def take(self) -> None:
        self._set(self._after(_quiet))

    @contextmanager
    def quiet(self, on_key: OnKey | None = None) -> Generator[None]:
        """No echo, and each key is available at once; typed keys are kept in `typed`."""
        self.take()
        before, listened = self._on_key, self._listening
        self._on_key = on_key
        try:
            with self._change(_quiet), _call_on_continue(self._go_on):
                self._listen()
                try:
                    yield
                finally:
                    if not listened:
                        self._rest()
                    if self._dropped is not None:
                        # The rest of that paste is handled as a paste, and not as keys.
                        self._dropped = None
                        self.typed[:0] = _PASTE
        finally:
            self._on_key = before

    @contextmanager
    def restore_mode(self) -> Generator[None]:
        """Restore the original terminal mode for code that reads a line from it."""
        listened = self._listening
        if listened:
            self._rest()
        try:
            with self._change(_set_cooked):
                yield
        finally:
            if listened:
                self._listen()

    @contextmanager
    def message(self) -> Generator[None]:
        """The mode while a message is typed.

        After the message Ctrl-C is a key, which `quiet` handles: until then no handler would get a
        signal.
        """
        self._set(self._after(_without_signals))
        try:
            yield
        except BaseException:
            # No message was entered.
            self.take()
            raise

    def forget(self) -> None:
        self.typed.clear()
        with suppress(termios.error):
            termios.tcflush(self._descriptor, termios.TCIFLUSH)

    def throw_away(self, notice: Callable[[str], None], read: str = "") -> None:
        """Drop input typed before a question, which it cannot answer, and report that.

        `read` are keys that other code has read already.
        """
        typed = self.typed.strip() or read.strip() or self._unread().strip()
        self.forget()
        if typed:
            notice("input typed before the question was discarded")

    def _unread(self) -> bytes:
        with suppress(OSError):
            if select.select([self._descriptor], [], [], 0)[0]:
                return os.read(self._descriptor, _PIECE)
        return b""

    def restore(self) -> None:
        self._set(self._found)
        with suppress(OSError):
            self._show(_ALL_OFF)

    @contextmanager
    def _change(self, change: Callable[[Attributes], None]) -> Generator[None]:
        before = self._get()
        self._set(self._after(change))
        try:
            yield
        finally:
            self._set(before)

    def _get(self) -> Attributes:
        try:
            return termios.tcgetattr(self._descriptor)
        except termios.error:
            return self._found

    def _set(self, attributes: Attributes) -> None:
        # A closed terminal has no attributes.
        with suppress(termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSANOW, attributes)

    def _after(self, change: Callable[[Attributes], None]) -> Attributes:
        changed = [*self._found]
        changed[_CHARACTERS] = [*changed[_CHARACTERS]]
        change(changed)
        return changed

    def _go_on(self) -> None:
        """Set our terminal mode again, which the parent shell has changed while we were stopped."""
        if self._listening:
            self.take()
            self._show(_PASTE_ON)

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
            # A paste is one message, also during an answer.
            self._show(_PASTE_ON)

    def _rest(self) -> None:
        if self._listening:
            self._listening = False
            asyncio.get_running_loop().remove_reader(self._descriptor)
            with suppress(OSError):
                self._show(_PASTE_OFF)

    def _read(self) -> None:
        try:
            if not select.select([self._descriptor], [], [], 0)[0]:
                return
            piece = os.read(self._descriptor, _PIECE)
        except OSError:
            piece = b""
        if not piece:
            # The terminal was closed; the next reader finds that out.
            asyncio.get_running_loop().remove_reader(self._descriptor)
            return
        if _INTERRUPT in piece and self._dropped is None:
            # Ctrl-C was pressed right after the Enter, when it was not a signal yet.
            piece = piece.rpartition(_INTERRUPT)[2]
            self.typed.clear()
            # It stops what is running; if it also counted as a key, it would exit at once.
            self._on_key = None
            signal.raise_signal(signal.SIGINT)
        if self._on_key is not None:
            on_key, self._on_key = self._on_key, None
            begun = piece.rfind(_PASTE)
            self._dropped = piece if begun >= 0 and piece.find(_PASTED, begun) < 0 else None
            on_key()
        else:
            self.typed += self._after_dropped(piece)[: _MOST - len(self.typed)]

    def _after_dropped(self, piece: bytes) -> bytes:
        """The input without the rest of a paste that was handled as a key."""
        if self._dropped is None:
            return piece
        buffer = self._dropped[-len(_PASTED) :] + piece
        end = buffer.find(_PASTED)
        self._dropped = None if end >= 0 else buffer
        return buffer[end + len(_PASTED) :] if end >= 0 else b""


def _quiet(attributes: Attributes) -> None:
    attributes[_LOCAL] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    attributes[_LOCAL] |= termios.ISIG | termios.NOFLSH
    attributes[_INPUT] &= ~(
        termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR
    )
    attributes[_CHARACTERS][termios.VMIN] = 1
    attributes[_CHARACTERS][termios.VTIME] = 0


def _without_signals(attributes: Attributes) -> None:
    _quiet(attributes)
    attributes[_LOCAL] &= ~termios.ISIG


def _set_cooked(attributes: Attributes) -> None:
    attributes[_LOCAL] |= termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG
    attributes[_INPUT] |= termios.ICRNL


@contextmanager
def _call_on_continue(again: Callable[[], None]) -> Generator[None]:
    """Call `again` when the process continues after Ctrl-Z."""
    if current_thread() is not main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCONT, again)
    allow_full_wakeup()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGCONT)
