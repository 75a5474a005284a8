"""The line editor for terminals that know no escape sequences: the system's own."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TextIO

import anyio

from aish.core.text import for_line, for_terminal
from aish.shell.input.keyboard import Keyboard
from aish.shell.input.lines import OnKey

_PIECE = 1 << 16
_INTERRUPT = b"\x03"
_ENDS = (b"\n", b"\r", _INTERRUPT)


class DumbEditor:
    """Prompts, and reads lines as the terminal gives them; see `Lines`.

    A line that ends in a backslash goes on in the next one.
    """

    def __init__(
        self,
        prompt: Callable[[], str],
        notice: Callable[[str], None],
        stdin: TextIO,
        stdout: TextIO,
    ) -> None:
        self._prompt = prompt
        self._notice = notice
        self._descriptor = stdin.fileno()
        self._out = stdout
        self._keyboard = Keyboard(self._descriptor, _nothing, dumb=True)
        self._keyboard.take()

    @property
    def out(self) -> TextIO:
        """Stdout as it is: what is written ends up behind what is being typed."""
        return self._out

    async def next(self) -> str | None:
        """The next message; Ctrl-C begins it anew, Ctrl-D on an empty line ends it all."""
        while True:
            with self._keyboard.message():
                text = await self._message(f"{for_line(self._prompt())}> ")
            if text is None:
                self._keyboard.take()
                self._show("\n")
                return None
            if text.strip():
                return text

    async def edit(self, text: str, label: str) -> str | None:
        """The text is shown, to be typed anew; an empty line keeps it, Ctrl-C gives up."""
        waiting = bytes(self._keyboard.typed)
        self._keyboard.forget()
        self._show(f"{for_terminal(text)}\n(type it anew, or Enter to keep it)\n")
        try:
            with self._keyboard.lines():
                line = await self._line(for_line(label))
        finally:
            self._keyboard.typed[:0] = waiting
        if line is None or line.endswith(_INTERRUPT):
            self._show("\n")
            return None
        return _text(line).strip() or text.strip() or None

    def busy(self, on_key: OnKey | None = None) -> AbstractContextManager[None]:
        """See `Lines`."""
        return self._keyboard.quiet(on_key)

    def question(self) -> AbstractContextManager[None]:
        """See `Lines`."""
        self._keyboard.throw_away(self._notice)
        return self._keyboard.cooked()

    def refresh(self) -> None:
        """Nothing is drawn beside the line."""

    def forget(self) -> None:
        """Drop what was typed ahead."""
        self._keyboard.forget()

    def restore(self) -> None:
        """See `Lines`."""
        self._keyboard.restore()

    async def _message(self, prompt: str) -> str | None:
        """Lines up to one without a backslash; empty after Ctrl-C, `None` at the end."""
        lines: list[str] = []
        with self._keyboard.lines():
            while True:
                line = await self._line("" if lines else prompt)
                if line is None:
                    return "\n".join(lines) if lines else None
                if line.endswith(_INTERRUPT):
                    self._show("\n")
                    return ""
                text = _text(line)
                if not text.endswith("\\"):
                    return "\n".join([*lines, text])
                lines.append(text[:-1])

    async def _line(self, prompt: str) -> bytes | None:
        """A line with what ended it; what was typed ahead comes first, and is shown."""
        self._show(prompt)
        line = self._ahead()
        self._show(for_terminal(_text(line)) + ("\n" if line.endswith(_ENDS) else ""))
        while not line.endswith(_ENDS):
            await anyio.wait_readable(self._descriptor)
            try:
                piece = os.read(self._descriptor, _PIECE)
            except OSError:
                piece = b""
            if not piece:
                return line or None
            line += piece
        return line

    def _ahead(self) -> bytes:
        typed = self._keyboard.typed
        ends = [place + 1 for end in _ENDS if (place := typed.find(end)) >= 0]
        size = min(ends, default=len(typed))
        line = bytes(typed[:size])
        del typed[:size]
        return line

    def _show(self, text: str) -> None:
        # A terminal that is gone shows nothing; the next read tells that it is.
        with suppress(OSError):
            self._out.write(text)
            self._out.flush()


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n\x03").decode("utf-8", "replace")


def _nothing(text: str) -> None:
    """There are no escape sequences to show."""
