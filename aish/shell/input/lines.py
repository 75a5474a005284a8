"""Sources of the messages of a session: a person's editor, or a pipe.

The interface of editors and of their completion, and `PipedLines` for sessions without a terminal.
The editors for terminals are in `aish.shell.input.editor`.
"""

import os
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TextIO

import anyio
import anyio.lowlevel

from aish.core.errors import UsageError

LONGEST_LINE = 1 << 20
_PIECE = 1 << 16
_NO_UTF8 = "a line of stdin is not valid UTF-8; invalid bytes were replaced"

OnKey = Callable[[], None]
INTERRUPTED = ""
"""What `Lines.next` returns after `Lines.interrupt`, for no message is empty."""


class Words(Protocol):
    """The words for completion; called each time, in the event loop, so they have to be fast."""

    def commands(self) -> Mapping[str, str]: ...

    def arguments(self, command: str) -> Sequence[str]:
        """Possible next words after these of a line, such as `mcp` or `mcp tool`, without colon."""

    def paths(self, command: str) -> bool:
        """Return true if a path may come next after these words."""

    def tools(self) -> Sequence[str]:
        """The tools as `alias__name`, for lines that are sent to the model."""


class Lines(Protocol):
    """A sequence of messages; every wait can be cancelled."""

    @property
    def out(self) -> TextIO:
        """The stream for people; while a line is edited, its text appears above that."""

    async def next(self) -> str | None:
        """The next message; `INTERRUPTED` after `interrupt`, and `None` at the end of input."""

    def interrupt(self) -> None:
        """Make `next` return at once, now or when it is called; typed text is kept."""

    async def edit(self, text: str, label: str) -> str | None:
        """A text as a person has changed it; `None` if that was cancelled."""

    def busy(self, on_key: OnKey | None = None) -> AbstractContextManager[None]:
        """Used while something runs: input is not echoed, and kept for the next prompt.

        `on_key` is called once, at the first key, and that key is not kept. Ctrl-C remains a
        signal.
        """

    def question(self) -> AbstractContextManager[None]:
        """Used while other code asks at this terminal; within `busy`, `next` or neither.

        Typed-ahead input is discarded: it cannot answer a question that was not shown yet.
        """

    def refresh(self) -> None: ...

    def forget(self) -> None:
        """Drop typed-ahead input, as on a Ctrl-C during an answer."""

    def restore(self) -> None:
        """Restore the terminal now; for exits without unwinding."""


class PipedLines:
    """The lines of a descriptor that is not a terminal; empty ones are skipped."""

    def __init__(
        self, descriptor: int | None, notice: Callable[[str], None], out: TextIO | None = None
    ) -> None:
        """Read `descriptor`, which is `None` if stdin was closed; its flags are not changed."""
        self._descriptor = descriptor
        self._notice = notice
        self._out = out
        self._waiting = bytearray()
        self._searched = 0
        self._number = 0
        self._skipping = False
        self._replaced = False
        self._interrupted = False
        self._reading: anyio.CancelScope | None = None

    @property
    def out(self) -> TextIO:
        return self._out or sys.stdout

    def go_on(self, notice: Callable[[str], None]) -> None:
        """Another session reads from here on, and gets the warnings about invalid lines."""
        self._notice = notice

    async def next(self) -> str | None:
        """The next line without its end; see `Lines`.

        Raises:
            UsageError: the line is too long or stdin cannot be read; the line after it may be.
        """
        while not self._interrupted:
            # What is read stays: nothing is taken out of it before the line is whole.
            with anyio.CancelScope() as self._reading:
                line = await self._line()
                if line is None:
                    return None
                self._number += 1
                text = self._text(line)
                if text.strip():
                    return text
        self._interrupted = False
        return INTERRUPTED

    def interrupt(self) -> None:
        self._interrupted = True
        if self._reading is not None:
            self._reading.cancel()

    async def edit(self, text: str, label: str) -> str | None:  # ruff: ignore[unused-method-argument, no-self-use] - nobody is there to edit
        await anyio.lowlevel.checkpoint()
        return None

    def busy(self, on_key: OnKey | None = None) -> AbstractContextManager[None]:  # ruff: ignore[unused-method-argument, no-self-use] - there are no keys
        return nullcontext()

    def question(self) -> AbstractContextManager[None]:  # ruff: ignore[no-self-use] - see `Lines`
        return nullcontext()

    def refresh(self) -> None:
        """Nothing is drawn."""

    def forget(self) -> None:
        """Nothing is typed ahead: the content of the pipe is intended input."""

    def restore(self) -> None:
        """Nothing was changed."""

    async def _line(self) -> bytes | None:
        """A line without its end, or the rest after the last one; `None` at the end of input."""
        while True:
            end = self._waiting.find(b"\n", self._searched)
            if end >= 0:
                line = self._take(end + 1)[:-1]
                if self._skipping:
                    self._skipping = False
                    continue
                return self._short(line.removesuffix(b"\r"))
            self._searched = len(self._waiting)
            if self._skipping:
                self._take(self._searched)
            elif self._searched > LONGEST_LINE + 1:  # a `\r` may be its last byte
                self._skipping = True
                raise self._too_long()
            if not await self._more():
                rest = self._take(len(self._waiting))
                return self._short(rest) if rest and not self._skipping else None

    async def _more(self) -> bool:
        """Read available data, or wait for it; false at the end."""
        if self._descriptor is None:
            return False
        try:
            await self._readable(self._descriptor)
            piece = os.read(self._descriptor, _PIECE)
        except OSError as error:
            self._descriptor = None
            raise UsageError(f"stdin cannot be read: {error.strerror}") from error
        if not piece:
            self._descriptor = None
        self._waiting += piece
        return bool(piece)

    @staticmethod
    async def _readable(descriptor: int) -> None:
        # The descriptor is shared with the parent process, so `O_NONBLOCK` must not be set.
        try:
            await anyio.wait_readable(descriptor)
        except PermissionError:
            # A regular file or `/dev/null` cannot be waited for, and never needs it.
            await anyio.lowlevel.checkpoint()

    def _take(self, size: int) -> bytes:
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        self._searched = 0
        return taken

    def _short(self, line: bytes) -> bytes:
        if len(line) > LONGEST_LINE:
            raise self._too_long()
        return line

    def _too_long(self) -> UsageError:
        self._number += 1
        return UsageError(
            f"line {self._number} of stdin is longer than {LONGEST_LINE:,} bytes",
            hint="put longer text into a file and use `:attach PATH`",
        )

    def _text(self, line: bytes) -> str:
        if self._number == 1:
            if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                self._descriptor = None
                self._take(len(self._waiting))
                raise UsageError("stdin is UTF-16, and only UTF-8 is read")
            line = line.removeprefix(BOM_UTF8)
        try:
            return line.decode()
        except UnicodeDecodeError:
            if not self._replaced:
                self._replaced = True
                self._notice(_NO_UTF8)
            return line.decode("utf-8", "replace")
