"""The terminal for prompt_toolkit, and the stream that writes above an open line."""

import asyncio
import io
import os
import select
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TextIO

from prompt_toolkit.input.posix_utils import PosixStdinReader
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.output.vt100 import Vt100_Output

_PIECE = 1 << 16


class Unasked(Vt100_Output):
    """An output that never queries the terminal, because the answer could end up in a line."""

    @property
    def responds_to_cpr(self) -> bool:
        """False: the cursor position is not queried."""
        return False

    def flush(self) -> None:
        """Flush the output; a closed terminal shows nothing, which is not an error."""
        with suppress(OSError):
            super().flush()

    def get_rows_below_cursor_position(self) -> int:  # ruff: ignore[no-self-use] - what prompt_toolkit calls
        """Zero rows; a known number is what lets prompt_toolkit draw the toolbar."""
        return 0


class Typing(Vt100Input):
    """An input that reads typed-ahead input before that of the terminal."""

    def __init__(self, stdin: TextIO) -> None:
        super().__init__(stdin)
        self._ahead = _AheadReader(stdin.fileno())
        self.stdin_reader = self._ahead

    def put(self, data: bytes) -> None:
        self._ahead.ahead += data


class _AheadReader(PosixStdinReader):
    """Reads larger chunks, because a paste can have thousands of bytes."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.ahead = b""

    def read(self, count: int = _PIECE) -> str:
        if self.ahead:
            data, self.ahead = self.ahead, b""
        else:
            data = self._available(count)
        return self._stdin_decoder.decode(data)

    def _available(self, count: int) -> bytes:
        try:
            if self.closed or not select.select([self.stdin_fd], [], [], 0)[0]:
                return b""
            data = os.read(self.stdin_fd, count)
        except BlockingIOError:
            return b""
        except OSError:
            # The terminal was closed: the end of the input, and nothing to retry.
            data = b""
        self.closed = not data
        return data


class AboveStream(io.TextIOBase):
    """Stdout for all code except the editor: while a line is edited, text appears above that.

    A `Screen` made with it needs no knowledge of the editor. While a line is open, only whole lines
    are written; an incomplete one waits for its end, or for `release`. Other threads may write.
    """

    def __init__(
        self,
        under: TextIO,
        editing: Callable[[], bool],
        above: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__()
        self._under = under
        self._editing = editing
        self._above = above
        self._begun = ""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there, and not constant here
        return self._under.encoding

    def fileno(self) -> int:
        return self._under.fileno()

    def isatty(self) -> bool:
        return self._under.isatty()

    def writable(self) -> bool:  # ruff: ignore[no-self-use] - what streams are asked
        return True

    def write(self, text: str, /) -> int:
        if not self._editing():
            self._under.write(text)
        elif _event_loop() is self._loop or self._loop is None:
            whole, end, begun = (self._begun + text).rpartition("\n")
            self._begun = begun
            if end:
                with self._above():
                    self._under.write(whole + end)
                    self._under.flush()
        else:
            self._loop.call_soon_threadsafe(self.write, text)
        return len(text)

    def flush(self) -> None:
        self._under.flush()

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()

    def release(self) -> None:
        """The line is finished: write the text that waited."""
        begun, self._begun = self._begun, ""
        if begun:
            self._under.write(begun)
            self._under.flush()


def _event_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
