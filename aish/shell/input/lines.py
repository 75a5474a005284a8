"""Where the messages of a session come from: a person's editor, or a pipe.

What an editor has to be able to do, what it may ask for completion, and `PipedLines` for sessions
without a terminal. The editors for terminals are in `aish.shell.editor`.
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


class Words(Protocol):
    """What completion knows; asked each time, in the event loop, so it has to be quick."""

    def commands(self) -> Mapping[str, str]:
        """The commands without their colon, each with a line that says what it does."""
        ...

    def arguments(self, command: str) -> Sequence[str]:
        """What may come next after these words of a line, as `mcp` or `mcp tool`, no colon."""
        ...

    def paths(self, command: str) -> bool:
        """Whether a path may come next after these words."""
        ...

    def tools(self) -> Sequence[str]:
        """The tools as `alias__name`, for lines that are for the model."""
        ...


class Lines(Protocol):
    """Messages one after the other; every wait can be cancelled."""

    @property
    def out(self) -> TextIO:
        """Where to write what people read: while a line is edited, it appears above that."""
        ...

    async def next(self) -> str | None:
        """The next message, never an empty one; `None` at the end of input."""
        ...

    async def edit(self, text: str, label: str) -> str | None:
        """A text as a person has changed it; `None` if it was given up."""
        ...

    def busy(self, on_key: OnKey | None = None) -> AbstractContextManager[None]:
        """While something runs: what is typed is not echoed, and kept for the next prompt.

        `on_key` is called once, at the first key, and that key is not kept. Ctrl-C stays a
        signal.
        """
        ...

    def question(self) -> AbstractContextManager[None]:
        """While somebody else asks at this terminal; within `busy`, `next` or neither.

        What was typed ahead is thrown away: it was not meant for a question nobody had seen (P2).
        """
        ...

    def refresh(self) -> None:
        """Draw again what is shown beside the line: the prompt, the toolbar."""
        ...

    def forget(self) -> None:
        """Drop what was typed ahead, as Ctrl-C in mid-answer should."""
        ...

    def restore(self) -> None:
        """Leave the terminal as it was found, now; for those who end without unwinding."""
        ...


class PipedLines:
    """The lines of a descriptor that is not a terminal; empty ones are skipped."""

    def __init__(
        self, descriptor: int | None, notice: Callable[[str], None], out: TextIO | None = None
    ) -> None:
        """Read `descriptor`, which is `None` where stdin was closed; it is left as it is."""
        self._descriptor = descriptor
        self._notice = notice
        self._out = out
        self._waiting = bytearray()
        self._searched = 0
        self._number = 0
        self._skipping = False
        self._replaced = False

    @property
    def out(self) -> TextIO:
        """Stdout."""
        return self._out or sys.stdout

    def go_on(self, notice: Callable[[str], None]) -> None:
        """Another session takes the lines from here on, and hears what is odd about them."""
        self._notice = notice

    async def next(self) -> str | None:
        """The next line without its end; `None` when there are no more.

        Raises:
            UsageError: the line is too long or stdin cannot be read; the line after it may be.
        """
        while (line := await self._line()) is not None:
            self._number += 1
            text = self._text(line)
            if text.strip():
                return text
        return None

    async def edit(self, text: str, label: str) -> str | None:  # ruff: ignore[unused-method-argument, no-self-use] - nobody is there to edit
        """Nobody is there: given up."""
        await anyio.lowlevel.checkpoint()
        return None

    def busy(self, on_key: OnKey | None = None) -> AbstractContextManager[None]:  # ruff: ignore[unused-method-argument, no-self-use] - there are no keys
        """Nothing to do."""
        return nullcontext()

    def question(self) -> AbstractContextManager[None]:  # ruff: ignore[no-self-use] - see `Lines`
        """Nothing to do."""
        return nullcontext()

    def refresh(self) -> None:
        """Nothing is drawn."""

    def forget(self) -> None:
        """Nothing is typed ahead: what the pipe holds was meant."""

    def restore(self) -> None:
        """Nothing was changed."""

    async def _line(self) -> bytes | None:
        """A line without its end, or what comes after the last end; `None` when all was read."""
        while True:
            end = self._waiting.find(b"\n", self._searched)
            if end >= 0:
                line = self._taken(end + 1)[:-1]
                if self._skipping:
                    self._skipping = False
                    continue
                return self._short(line.removesuffix(b"\r"))
            self._searched = len(self._waiting)
            if self._skipping:
                self._taken(self._searched)
            elif self._searched > LONGEST_LINE + 1:  # a `\r` may be its last byte
                self._skipping = True
                raise self._too_long()
            if not await self._more():
                rest = self._taken(len(self._waiting))
                return self._short(rest) if rest and not self._skipping else None

    async def _more(self) -> bool:
        """Take what is there, and wait for it; false at the end."""
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
        # The descriptor is shared with whoever started us, so `O_NONBLOCK` is not ours to set.
        try:
            await anyio.wait_readable(descriptor)
        except PermissionError:
            # A plain file, `/dev/null`: cannot be waited for, and never has to be.
            await anyio.lowlevel.checkpoint()

    def _taken(self, size: int) -> bytes:
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
                self._taken(len(self._waiting))
                raise UsageError("stdin is UTF-16, and only UTF-8 is read")
            line = line.removeprefix(BOM_UTF8)
        try:
            return line.decode()
        except UnicodeDecodeError:
            if not self._replaced:
                self._replaced = True
                self._notice(_NO_UTF8)
            return line.decode("utf-8", "replace")
