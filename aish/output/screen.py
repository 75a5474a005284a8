"""A terminal that is written to from top to bottom, with a moving part on its last lines.

That is a spinner or a pinned display. Both are drawn by a separate thread, never in the middle of a
line, and are removed before any other output. Other writers to the same terminal hold the screen
meanwhile.
"""

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TextIO

from aish.output.status import seconds_text
from aish.output.style import Look, rows_taken

_PERIOD = 0.1
_ERASE_ROW = "\x1b[2K"
_UP = "\x1b[1A"
_USUAL_HEIGHT = 24
# Frames for which a window has to keep its size before lines that it has folded are redrawn.
_STILL = 3
# The duration of a wait is shown only if it is longer than this.
_WORTH_COUNTING = 1.0

Draw = Callable[[int, int], Sequence[str]]
"""Lines for a display of a width and a height."""


class Screen:
    """Writes to a text stream; thread-safe; a thread draws a frame each `period` seconds."""

    def __init__(
        self,
        out: TextIO,
        look: Look,
        monotonic: Callable[[], float] = time.monotonic,
        size: Callable[[], tuple[int, int]] | None = None,
        period: float = _PERIOD,
    ) -> None:
        self.look = look
        self._out = out
        self._monotonic = monotonic
        self._size = size or self._terminal_size
        self._period = period
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._label: str | None = None
        self._pinned: Draw | None = None
        self._since = 0.0
        self._frame = 0
        self._drawn: tuple[str, ...] = ()
        self._drawn_at = (0, 0)
        self._drawn_width = 0
        self._last_size = (0, 0)
        self._still = 0
        self._held = 0
        self._later: list[str] = []
        self._closed = False
        self._fresh = True

    def now(self) -> float:
        return self._monotonic()

    @property
    def width(self) -> int:
        """The current number of cells of a line."""
        return self._size()[0]

    def line(self, text: str = "") -> None:
        """Write a whole line, on a line of its own."""
        self._write(f"{'' if self._fresh else chr(10)}{text}\n", fresh=True)

    def text(self, piece: str, *, elsewhere: bool = False) -> None:
        """Write a piece of text where the last one ended.

        `elsewhere`: something else writes it to this terminal, right after this.
        """
        if piece:
            self._write("" if elsewhere else piece, fresh=piece.endswith("\n"))

    def instead(self, piece: str) -> None:
        """Write a piece of text in place of what is pinned, which the next frame shows again."""
        self._write(piece, fresh=piece.endswith("\n"), keep=False)

    def end_line(self, *, elsewhere: bool = False) -> None:
        """Make sure that the next output begins a line."""
        if not self._fresh:
            self._write("" if elsewhere else "\n", fresh=True)

    def wait(self, label: str) -> None:
        """Show a spinner from now on, until something is written or `rest` is called."""
        if not self.look.animate:
            return
        with self._changed:
            if self._label is None:
                self._since = self._monotonic()
                self._begin()
            self._label = label

    def rest(self) -> None:
        if self._label is not None:
            with self._changed:
                self._label = None
                self._erase()

    def pin(self, draw: Draw | None) -> None:
        """Show the result of `draw` on the last lines from now on; `None` removes it."""
        if not self.look.animate:
            return
        with self._changed:
            self._erase()
            if draw is not None:
                self._begin()
            self._pinned = draw

    @contextmanager
    def hold(self) -> Generator[None]:
        """Draw nothing while something else uses the terminal, such as a question."""
        with self._changed:
            self._held += 1
            self._erase()
        try:
            yield
        finally:
            with self._changed:
                self._held -= 1
                if self._later and not self._held:
                    self._out.write("".join(self._later))
                    self._out.flush()
                    self._later.clear()

    def tick(self) -> None:
        """Draw the next frame; called by the thread."""
        with self._changed:
            if (self._label is None and self._pinned is None) or self._held or not self._fresh:
                return
            width, height = size = self._size()
            if self._drawn and self._is_restless(size):
                return
            lines: list[str] = []
            if self._pinned is not None:
                lines += self._pinned(width, height - 2)
            if self._label is not None:
                glyphs = self.look.glyphs
                waited = self._monotonic() - self._since
                long = f" {seconds_text(waited)}" if waited >= _WORTH_COUNTING else ""
                frame = glyphs.spinner[self._frame % len(glyphs.spinner)]
                self._frame += 1
                # One cell is left free: a terminal that wraps would leave a line behind.
                lines.append(
                    self.look.paint("dim", self.look.fit(f"{frame} {self._label}{long}", width - 1))
                )
            # Unchanged text is not written again; a new size may have folded it.
            if tuple(lines) != self._drawn or (lines and size != self._drawn_at):
                self._draw(tuple(lines), size)

    def close(self) -> None:
        """Remove what moves, permanently."""
        self.rest()
        self.pin(None)
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _is_restless(self, size: tuple[int, int]) -> bool:
        """Return true if the window became narrower a moment ago, and may do so again.

        While it is dragged, its size is sometimes known too late.
        """
        if size != self._last_size:
            self._still = 0 if size[0] < self._last_size[0] else _STILL
            self._last_size = size
        self._still += 1
        return self._still <= _STILL

    def _draw(self, lines: tuple[str, ...], size: tuple[int, int]) -> None:
        """Draw over the last frame, without a moment in which nothing is shown.

        Unchanged lines are not written again, and lines that only grew are appended to: a window
        that is being narrowed folds its lines before the new size is known, and moving the cursor
        up would then be too few rows.
        """
        before = self._drawn if size == self._drawn_at else ()
        same = _same(before, lines)
        last = len(before) - 1
        if before and same >= last and len(lines) > last and lines[last].startswith(before[last]):
            text = "\n".join([lines[last][len(before[last]) :], *lines[last + 1 :]])
        else:
            same = max(0, min(same, len(lines) - 1))
            rows = self._rows(self._drawn[same:], size[0])
            text = _over(lines[same:], rows)
        self._drawn = lines
        self._drawn_at, self._drawn_width = size, size[0]
        self._out.write(text)
        self._out.flush()

    def _write(self, text: str, *, fresh: bool, keep: bool = True) -> None:
        with self._changed:
            self._label = None
            self._fresh = fresh
            if self._held:
                self._later.append(text)
                return
            whole = self._erase_sequence() + text
            if text and fresh and keep and self._pinned is not None and self._drawn:
                # What is pinned remains, below the new line.
                whole += "\n".join(self._drawn)
                self._drawn_width = self._size()[0]
            else:
                self._drawn = ()
            if whole:
                self._out.write(whole)
                self._out.flush()

    def _erase(self) -> None:
        if self._drawn:
            self._out.write(self._erase_sequence())
            self._out.flush()
            self._drawn = ()

    def _erase_sequence(self) -> str:
        return _over((), self._rows(self._drawn, self._size()[0])) if self._drawn else ""

    def _rows(self, lines: Sequence[str], width: int) -> int:
        """Return how many rows these lines of the last frame occupy now.

        A window that was narrowed since has folded them, or has left each in its row.
        """
        width = width if self.look.reflows else self._drawn_width
        return sum(rows_taken(line, max(1, width)) for line in lines)

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spinner", daemon=True)
            self._thread.start()
        if self._label is None and self._pinned is None:
            # Only then does it sleep; waking it more often would delay the next frame.
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                if self._label is None and self._pinned is None:
                    self._changed.wait()
                elif not self._changed.wait(self._period):
                    try:
                        self.tick()
                    except OSError:
                        # The terminal was closed; the next event detects that by itself.
                        return

    def _terminal_size(self) -> tuple[int, int]:
        """The current size: the user may have changed it."""
        try:
            size = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            return self.look.width, _USUAL_HEIGHT
        columns = size.columns if self.look.follows else self.look.width
        return columns or self.look.width, size.lines or _USUAL_HEIGHT


def _same(before: Sequence[str], lines: Sequence[str]) -> int:
    pairs = zip(before, lines, strict=False)
    return next(
        (at for at, (old, new) in enumerate(pairs) if old != new), min(map(len, (before, lines)))
    )


def _over(lines: Sequence[str], rows: int) -> str:
    """Writes lines, starting `rows` rows above the cursor, and removes all else there.

    Each row is erased whole: tmux keeps the old length of a row that was erased in part, and keeps
    rows that are erased from the top of the screen down.
    """
    spare = max(0, rows - max(1, len(lines)))
    up = f"{_ERASE_ROW}{_UP}" * spare + _UP * (rows - 1 - spare)
    body = "\n".join(f"{_ERASE_ROW}{line}" for line in lines or ("",))
    return f"\r{up}{body}"
