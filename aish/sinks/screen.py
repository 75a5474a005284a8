"""A terminal that is written to from top to bottom, with a spinner on its last line.

The spinner is drawn by a thread of its own, on an empty line only, and is gone before anything
else is written. Whoever else writes to the same terminal holds the screen meanwhile.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from aish.sinks.look import Look
from aish.sinks.tally import seconds_text

_PERIOD = 0.1
_ERASE = "\r\x1b[2K"
# A wait shorter than this says nothing of its length.
_WORTH_COUNTING = 1.0


class Screen:
    """Writes to a text stream; safe to use from the thread of the spinner too."""

    def __init__(
        self, out: TextIO, look: Look, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.look = look
        self._out = out
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._label: str | None = None
        self._since = 0.0
        self._frame = 0
        self._drawn = False
        self._held = 0
        self._closed = False
        self._fresh = True

    def line(self, text: str = "") -> None:
        """Write a whole line, on a line of its own."""
        self._write(f"{'' if self._fresh else chr(10)}{text}\n", fresh=True)

    def text(self, piece: str, *, elsewhere: bool = False) -> None:
        """Write a piece of text where the last one ended.

        `elsewhere` says that somebody else writes it to this terminal, right after this.
        """
        if piece:
            self._write("" if elsewhere else piece, fresh=piece.endswith("\n"))

    def end_line(self, *, elsewhere: bool = False) -> None:
        """Make sure that what comes next begins a line."""
        if not self._fresh:
            self._write("" if elsewhere else "\n", fresh=True)

    def wait(self, label: str) -> None:
        """Show a spinner from now on, until something is written or `rest` is called."""
        if not self.look.animate:
            return
        with self._changed:
            if self._label is None:
                self._since = self._monotonic()
            self._label = label
            if self._thread is None:
                self._thread = threading.Thread(target=self._spin, name="spinner", daemon=True)
                self._thread.start()
            self._changed.notify()

    def rest(self) -> None:
        """Take the spinner away."""
        if self._label is not None:
            with self._changed:
                self._label = None
                self._erase()

    @contextmanager
    def hold(self) -> Generator[None]:
        """Keep the spinner away while somebody else has the terminal, as a person's question."""
        with self._changed:
            self._held += 1
            self._erase()
        try:
            yield
        finally:
            with self._changed:
                self._held -= 1

    def tick(self) -> None:
        """Draw the spinner's next frame; called by its thread."""
        with self._changed:
            if self._label is None or self._held or not self._fresh:
                return
            glyphs = self.look.glyphs
            waited = self._monotonic() - self._since
            long = f" {seconds_text(waited)}" if waited >= _WORTH_COUNTING else ""
            frame = glyphs.spinner[self._frame % len(glyphs.spinner)]
            # One cell is left free: a terminal that wraps would leave a line behind.
            shown = self.look.fit(f"{frame} {self._label}{long}", self.look.width - 1)
            self._frame += 1
            self._out.write(_ERASE + self.look.paint("dim", shown))
            self._out.flush()
            self._drawn = True

    def close(self) -> None:
        """Take the spinner away for good."""
        self.rest()
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _write(self, text: str, *, fresh: bool) -> None:
        with self._changed:
            self._label = None
            self._erase()
            self._fresh = fresh
            if text:
                self._out.write(text)
                self._out.flush()

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            self._out.write(_ERASE)
            self._out.flush()

    def _spin(self) -> None:
        with self._changed:
            while not self._closed:
                if self._label is None:
                    self._changed.wait()
                elif not self._changed.wait(_PERIOD):
                    try:
                        self.tick()
                    except OSError:
                        # The terminal is gone; the next event finds that out by itself.
                        return
