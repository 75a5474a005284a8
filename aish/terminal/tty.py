"""The terminal device: shows text and reads one line that was typed after it.

Waits through the event loop, so that Ctrl-C and time limits work while a question is open, and uses
`/dev/tty`, so that pipes on stdin and stdout neither interfere nor can answer. Sets the terminal
modes for reading a line, and lets one question at a time use the terminal.
"""

import os
import select
import termios
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import Any

import anyio

from aish.terminal.visible_text import words

_IN, _OUT, _LOCAL, _KEYS = 0, 1, 3, 6
_KEY_OFF = b"\x00"
_USUAL_KEYS = ((termios.VINTR, b"\x03"), (termios.VEOF, b"\x04"), (termios.VERASE, b"\x7f"))
CTRL_C = b"\x03"


@contextmanager
def line_mode(device: int, *, interrupts: bool = True) -> Generator[None, None, None]:
    """Line input with echo; the previous modes are restored at the end.

    Without `interrupts` Ctrl-C sends no signal: it ends the line, as its last character.

    Raises:
        OSError: the terminal is gone.
    """
    with _change_modes(device, lambda before: _for_lines(before, interrupts=interrupts)):
        yield


@contextmanager
def every_key(device: int) -> Generator[None, None, None]:
    """Input can be read without waiting for the end of a line.

    Raises:
        OSError: the terminal is gone.
    """
    with _change_modes(device, _for_keys):
        yield


def drop_typed(device: int) -> None:
    """Discard input that was typed and not read.

    Raises:
        OSError: the terminal is gone.
    """
    try:
        termios.tcflush(device, termios.TCIFLUSH)
    except termios.error as gone:
        raise OSError(*gone.args) from gone


@contextmanager
def _change_modes(
    device: int, change: Callable[[list[Any]], list[Any]]
) -> Generator[None, None, None]:
    before = _modes(device)
    _set(device, change(before))
    try:
        yield
    finally:
        # After the terminal was closed there is nothing to set.
        with suppress(OSError):
            _set(device, before)


def _for_keys(before: list[Any]) -> list[Any]:
    modes = [*before]
    modes[_LOCAL] &= ~termios.ICANON
    keys = list(modes[_KEYS])
    keys[termios.VMIN], keys[termios.VTIME] = 1, 0
    modes[_KEYS] = keys
    return modes


def _for_lines(before: list[Any], *, interrupts: bool) -> list[Any]:
    modes = [*before]
    modes[_IN] |= termios.ICRNL
    modes[_IN] &= ~(termios.IGNCR | termios.INLCR | termios.ISTRIP)
    modes[_OUT] |= termios.OPOST | termios.ONLCR
    modes[_LOCAL] |= termios.ICANON | termios.ECHO | termios.ECHOE | termios.IEXTEN | termios.ISIG
    keys = list(modes[_KEYS])
    for key, usual in _USUAL_KEYS:
        keys[key] = usual if keys[key] == _KEY_OFF else keys[key]
    if not interrupts:
        modes[_LOCAL] &= ~termios.ISIG
        keys[termios.VEOL] = CTRL_C
    modes[_KEYS] = keys
    return modes


def _modes(device: int) -> list[Any]:
    try:
        return termios.tcgetattr(device)
    except termios.error as gone:
        raise OSError(*gone.args) from gone


def _set(device: int, modes: list[Any]) -> None:
    try:
        # At once: output that the user has stopped would block everything else.
        termios.tcsetattr(device, termios.TCSANOW, modes)
    except termios.error as gone:
        raise OSError(*gone.args) from gone


LONGEST_LINE = 4096
_PIECE = 4096
_MOMENT = 0.01
_PASTE_MOMENT = 0.05
_USUAL_SIZE = os.terminal_size((80, 24))
_MARK_PASTES = "\x1b[?2004h"
_LAST = 2
_LEAVE_PASTES = "\x1b[?2004l"
_UNABLE = frozenset({"", "dumb"})


class Terminal:
    """A terminal by non-blocking descriptors; whoever opened them closes them."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self._writer = writer
        # Terminals that can do so mark pasted text: marked input is no answer.
        self._marks = os.environ.get("TERM", "") not in _UNABLE

    @property
    def width(self) -> int:
        return self._size.columns or _USUAL_SIZE.columns

    @property
    def height(self) -> int:
        return self._size.lines or _USUAL_SIZE.lines

    async def show(self, rows: Iterable[str]) -> None:
        await self._write("".join(f"{row}\n" for row in rows))

    def show_at_once(self, rows: Iterable[str]) -> None:
        """Write rows without waiting, also where the question on the screen is cancelled."""
        self._write_at_once("".join(f"{row}\n" for row in rows))

    async def ask(self, prompt: str) -> str | None:
        """Show a prompt, one space after it, and return the line typed after it.

        `None` at the end of input, and if the input was pasted, or more followed. Earlier input is
        discarded, so that it cannot answer an unseen question.
        """
        marks = self._marks
        try:
            if marks:
                self._write_at_once(_MARK_PASTES)
            line = await self._read_line(prompt)
            if line is not None and await self._more_came():
                drop_typed(self.reader)
                return None
            return line
        finally:
            if marks:
                self._write_at_once(_LEAVE_PASTES)

    async def fill(self, prompt: str) -> str | None:
        """The same for a text that may be pasted; `None` at the end of input and at Ctrl-C."""
        return await self._read_line(prompt)

    async def _read_line(self, prompt: str) -> str | None:
        text = "\n".join(words(prompt, self.width)) + " "
        # Whoever sees the prompt to its end can answer: nothing is discarded after that.
        await self._write(text[:-_LAST])
        drop_typed(self.reader)
        await self._write(text[-_LAST:])
        line: str | None = None
        try:
            line = await self._line()
        finally:
            if line is None:
                # The cursor remains after the prompt: the next output begins a line. What was
                # typed so far was meant for this question.
                self._write_at_once("\n")
                with suppress(OSError):
                    drop_typed(self.reader)
        return line

    @property
    def _size(self) -> os.terminal_size:
        try:
            return os.get_terminal_size(self._writer)
        except OSError:
            return _USUAL_SIZE

    async def _write(self, text: str) -> None:
        waiting = memoryview(text.encode("utf-8", "backslashreplace"))
        while waiting:
            await anyio.wait_writable(self._writer)
            try:
                waiting = waiting[os.write(self._writer, waiting[:_PIECE]) :]
            except BlockingIOError:
                # There was room, but for less than a line end.
                await anyio.sleep(_MOMENT)

    def _write_at_once(self, text: str) -> None:
        try:
            os.write(self._writer, text.encode())
        except OSError:
            # A terminal that is closed or stopped needs no line end.
            return

    async def _line(self) -> str | None:
        line = b""
        while not line.endswith((b"\n", b"\r", CTRL_C)):
            await anyio.wait_readable(self.reader)
            try:
                typed = os.read(self.reader, LONGEST_LINE)
            except BlockingIOError:
                continue
            except OSError:
                return None
            line += typed
            if not typed or len(line) > LONGEST_LINE:
                return None
        if CTRL_C in line:
            return None
        return line.decode("utf-8", "replace")

    async def _more_came(self) -> bool:
        """Return true if more input, however little, follows sooner than a person types."""
        with every_key(self.reader):
            with anyio.move_on_after(_PASTE_MOMENT):
                await anyio.wait_readable(self.reader)
                return True
            # On a busy machine the moment may be over before the first look.
            now = select.poll()  # takes descriptors of any number
            now.register(self.reader, select.POLLIN)
            return bool(now.poll(0))


def is_terminal(reader: int, writer: int) -> bool:
    try:
        return os.isatty(reader) and os.isatty(writer)
    except OSError:
        return False


def has_terminal() -> bool:
    try:
        with open_terminal():
            return True
    except OSError:
        return False


@contextmanager
def open_terminal() -> Generator[Terminal, None, None]:
    """The terminal of this process; an `OSError` if it has none."""
    with _device("/dev/tty") as device:
        yield Terminal(device, device)


@contextmanager
def terminal_of(reader: int, writer: int) -> Generator[Terminal, None, None]:
    """The terminal of two descriptors; an `OSError` if they have none."""
    with _device(os.ttyname(reader)) as typed, _device(os.ttyname(writer)) as shown:
        yield Terminal(typed, shown)


@contextmanager
def _device(path: str) -> Generator[int, None, None]:
    # Opened anew each time, so that `O_NONBLOCK` applies only here: inherited descriptors are
    # shared, and writing to a stopped terminal would block everything.
    device = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield device
    finally:
        os.close(device)


class Turns:
    """The terminal of this process, or of two descriptors, for questions to the user.

    `pause` is entered while a question is on the screen: other drawing stops.
    """

    def __init__(
        self,
        *,
        reader: int | None = None,
        writer: int | None = None,
        pause: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._streams = None if reader is None or writer is None else (reader, writer)
        self._pause = pause
        self._one_at_a_time = anyio.Lock()

    @property
    def attended(self) -> bool:
        return is_terminal(*self._streams) if self._streams else has_terminal()

    @asynccontextmanager
    async def take(self, *, interrupts: bool = True) -> AsyncGenerator[Terminal, None]:
        """The terminal, for one question, in line input mode.

        Without `interrupts` Ctrl-C is the end of the input and no signal.

        Raises:
            OSError: there is no terminal, or it was closed.
        """
        async with self._one_at_a_time:
            with (
                self._pause(),
                terminal_of(*self._streams) if self._streams else open_terminal() as terminal,
                line_mode(terminal.reader, interrupts=interrupts),
            ):
                yield terminal
