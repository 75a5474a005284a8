"""Replay of what a server says of its own accord, when its time has come (C5).

A stream that the server is heard on is replayed at once, though what came on it led to what stands
further on in the recording: a list of changed tools that is asked for again, an answer of ours.
"""

from collections.abc import Callable

from aish.mcp.border import Border
from aish.mcp.messages import Asked, Noted

TOOLS_CHANGED = "notifications/tools/list_changed"
SAMPLING = "sampling/createMessage"


class Replay:
    """What one server said, held back until `hear` may take it."""

    def __init__(
        self, border: Border, origin: str, hear: Callable[[Asked | Noted, int | None], None]
    ) -> None:
        self._border = border
        self._origin = origin
        self._hear = hear
        self._changes: list[Noted] = []
        self._questions: list[Asked] = []
        self._has_list = False
        self._released = 0
        border.on_played(self._release)

    def holds_back(self, message: Asked | Noted, *, has_sampler: bool) -> bool:
        """Keep a message whose time has not come; whether it is one."""
        if isinstance(message, Asked):
            if message.method != SAMPLING or has_sampler:
                return False
            self._questions.append(message)
        elif message.method == TOOLS_CHANGED:
            self._changes.append(message)
            self._release()
        else:
            return False
        return True

    def answered(self, method: str) -> None:
        """A request has its answer."""
        if method == "tools/list":
            self._has_list = True
            self._release()

    def begun(self, number: int) -> None:
        """A call is under way that can be asked for a model."""
        questions, self._questions = self._questions, []
        for question in questions:
            self._hear(question, number)

    def end(self) -> None:
        """Nobody hears any more."""
        self._changes.clear()
        self._questions.clear()

    def _release(self) -> None:
        if not self._changes or not self._has_list:
            return
        number = self._border.next_list(self._origin)
        # One word for each list, however often this is looked at before it is asked for.
        if number is not None and number != self._released:
            self._released = number
            self._hear(self._changes.pop(0), None)
