"""Asking the person at the terminal about a tool call: a plain `[y/N]` (P2)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import anyio

from aish.terminal.question import question_text
from aish.terminal.tty import (
    Terminal,
    controlling_terminal,
    has_terminal,
    is_terminal,
    terminal_of,
)
from aish.vocab.protocols import Answer, Question

YES = frozenset({"y", "yes"})


class TerminalApprover:
    """Asks one question at a time; only `y` or `yes` is yes.

    Talks to `/dev/tty`, or to the descriptors given. `pause` is entered while a question stands
    on the screen: whoever draws there stops meanwhile.
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

    async def ask(self, question: Question) -> Answer:
        """Anything but `no` only where it was typed after the question was shown."""
        async with self._one_at_a_time:
            if not self.attended:
                return "no"
            try:
                with self._pause(), self._terminal() as terminal:
                    answer = await terminal.ask(question_text(question, terminal.width))
            except OSError:
                # A terminal that goes away has not said yes.
                return "no"
        return "yes" if answer is not None and answer.strip().lower() in YES else "no"

    def _terminal(self) -> AbstractContextManager[Terminal]:
        return terminal_of(*self._streams) if self._streams else controlling_terminal()
