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
_PIECE = 4096
_MOMENT = 0.01
_DEFAULT_WIDTH = 80


class Terminal:
    """A terminal by descriptors that do not block; whoever opened them closes them."""

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
                waiting = waiting[os.write(self._writer, waiting[:_PIECE]) :]
            except BlockingIOError:
                # There was room, for less than a line's end takes.
                await anyio.sleep(_MOMENT)

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
    with _device("/dev/tty") as device:
        yield Terminal(device, device)


@contextmanager
def terminal_of(reader: int, writer: int) -> Generator[Terminal, None, None]:
    """The terminal behind two descriptors; an `OSError` where they are none."""
    with _device(os.ttyname(reader)) as typed, _device(os.ttyname(writer)) as shown:
        yield Terminal(typed, shown)


@contextmanager
def _device(path: str) -> Generator[int, None, None]:
    # Opened anew each time, so that `O_NONBLOCK` is ours alone: a descriptor that came from
    # somewhere is shared, and a write to a terminal that was stopped would hold everything up.
    device = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield device
    finally:
        os.close(device)
