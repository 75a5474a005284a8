"""The terminal device: shows text and reads one line that was typed after it (P2).

Waits through the event loop, so that Ctrl-C and time limits work while a person thinks, and uses
`/dev/tty`, so that pipes on stdin and stdout do not get in the way and cannot answer.
"""

import os
import termios
from collections.abc import Generator
from contextlib import contextmanager

import anyio

LONGEST_LINE = 4096
_CHUNK = 512
_DEFAULT_WIDTH = 80


class Terminal:
    """A terminal by its file descriptors; whoever opened them closes them."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def width(self) -> int:
        """Cells in a row."""
        try:
            return os.get_terminal_size(self._writer).columns or _DEFAULT_WIDTH
        except OSError:
            return _DEFAULT_WIDTH

    async def ask(self, text: str) -> str | None:
        """Show `text` and return the line typed after it, or `None` at the end of input.

        What was typed before is thrown away, so that it cannot answer a question unseen.
        """
        await self._write(text)
        termios.tcflush(self._reader, termios.TCIFLUSH)
        answered = False
        try:
            line = await self._line()
            answered = line is not None
            return line
        finally:
            if not answered:
                # The cursor is left behind the prompt: what comes next begins a line.
                self._write_at_once("\n")

    async def _write(self, text: str) -> None:
        waiting = memoryview(text.encode("utf-8", "backslashreplace"))
        while waiting:
            await anyio.wait_writable(self._writer)
            try:
                # Small pieces: a blocking device that says it has room has room for these.
                waiting = waiting[os.write(self._writer, waiting[:_CHUNK]) :]
            except BlockingIOError:
                continue

    def _write_at_once(self, text: str) -> None:
        try:
            os.write(self._writer, text.encode())
        except OSError:
            # A terminal that went away, or is stopped, needs no line end.
            return

    async def _line(self) -> str | None:
        line = b""
        while not line.endswith((b"\n", b"\r")):
            await anyio.wait_readable(self._reader)
            try:
                typed = os.read(self._reader, LONGEST_LINE)
            except BlockingIOError:
                continue
            except OSError:
                return None
            line += typed
            if not typed or len(line) > LONGEST_LINE:
                return None
        return line.decode("utf-8", "replace")


def is_terminal(reader: int, writer: int) -> bool:
    """Whether a person could sit at both ends."""
    try:
        return os.isatty(reader) and os.isatty(writer)
    except OSError:
        return False


def has_terminal() -> bool:
    """Whether this process has a terminal at all."""
    try:
        with controlling_terminal():
            return True
    except OSError:
        return False


@contextmanager
def controlling_terminal() -> Generator[Terminal, None, None]:
    """The terminal this process belongs to; an `OSError` where it belongs to none."""
    # Opened anew each time, so that `O_NONBLOCK` is ours alone.
    device = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield Terminal(device, device)
    finally:
        os.close(device)
