"""Whose turn it is at the terminal: one question at a time, and nobody draws meanwhile (P2)."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import anyio

from aish.terminal.modes import line_mode
from aish.terminal.tty import (
    Terminal,
    controlling_terminal,
    has_terminal,
    is_terminal,
    terminal_of,
)


class Turns:
    """The terminal of this process, or the one behind two descriptors, for who asks a person.

    `pause` is entered while a question stands on the screen: whoever draws there stops.
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
        """Whether there is a terminal; a pipe is not a person."""
        return is_terminal(*self._streams) if self._streams else has_terminal()

    @asynccontextmanager
    async def take(self, *, interrupts: bool = True) -> AsyncGenerator[Terminal, None]:
        """The terminal, for one question, in a state in which lines can be typed.

        Without `interrupts` Ctrl-C is the end of the input and no signal.

        Raises:
            OSError: there is no terminal, or it went away.
        """
        async with self._one_at_a_time:
            with (
                self._pause(),
                self._terminal() as terminal,
                line_mode(terminal.reader, interrupts=interrupts),
            ):
                yield terminal

    def _terminal(self) -> AbstractContextManager[Terminal]:
        return terminal_of(*self._streams) if self._streams else controlling_terminal()
