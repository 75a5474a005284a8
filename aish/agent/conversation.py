"""The one place that adds turns to a `History`, and checks that each is legal there (L12).

Also the buffer for output of local commands (L14). Each addition costs the same however long the
conversation is.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Protocol

from aish.core.messages import AssistantTurn, History, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.tools import Media


class IllegalTurnError(AssertionError):
    """A turn was added where no endpoint would take it: a bug of ours."""


class Heard(Protocol):
    """Hears of every turn that comes to stand in a history: see `agent.turn_recorder`."""

    def added(self, turn: Turn, *, told: bool) -> None:
        """A turn was added at the end; `told`: an event of its own says the same already."""
        ...

    def replaced(self, turns: Sequence[Turn], reason: str) -> None:
        """These turns stand in the place of all there were."""
        ...


class Conversation:
    """Adds turns to one history; everything that adds turns to it goes through here.

    `heard` is told of each change after it was made, and not of the turns that are there already.
    """

    def __init__(self, history: History, heard: Heard | None = None) -> None:
        self.history = history
        self._heard = heard
        self._open: dict[str, None] = {}
        self._used: set[str] = set()
        for turn in history.turns:
            self._note(turn)

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of the last assistant turn's calls that have no reply yet, in its order."""
        return tuple(self._open)

    @property
    def used_ids(self) -> Container[str]:
        """Ids of every tool call so far."""
        return self._used

    def add(self, turn: Turn, *, told: bool = False) -> None:
        """Add `turn`; `told` is for who hears of it.

        Raises:
            IllegalTurnError: it is not legal where it would stand.
        """
        problem = self._problem(turn)
        if problem:
            raise IllegalTurnError(problem)
        self.history.turns.append(turn)
        self._note(turn)
        if self._heard is not None:
            self._heard.added(turn, told=told)

    def rewrite(self, turns: Iterable[Turn], reason: str = "rewritten") -> None:
        """Put `turns` in the place of all there are; ids once used stay used.

        `reason` says why in a word, for who hears of it.

        Raises:
            IllegalTurnError: one is not legal where it would stand, or a call is left open.
        """
        other = Conversation(History())
        for turn in turns:
            other.add(turn)
        if other.open_calls:
            raise IllegalTurnError(f"calls without a reply: {', '.join(other.open_calls)}")
        # A list of its own: who keeps what was encoded of the old one has to see that it is gone.
        self.history.turns = other.history.turns
        if self._heard is not None:
            self._heard.replaced(self.history.turns, reason)

    def _note(self, turn: Turn) -> None:
        match turn:
            case AssistantTurn():
                self._open = dict.fromkeys(call.id for call in turn.calls)
                self._used.update(self._open)
            case ToolTurn():
                self._open.pop(turn.call_id, None)
            case UserTurn() | SystemTurn():
                pass

    def _problem(self, turn: Turn) -> str | None:
        if isinstance(turn, ToolTurn):
            return self._problem_of_reply(turn)
        if self._open:
            return f"calls without a reply: {', '.join(self._open)}"
        if isinstance(turn, AssistantTurn):
            return self._problem_of_answer(turn)
        if isinstance(turn, SystemTurn) and self.history.turns:
            return "a system turn stands first or nowhere"
        return None

    def _problem_of_reply(self, turn: ToolTurn) -> str | None:
        if not turn.call_id:
            return "a tool turn without the id of its call"
        if turn.call_id not in self._open:
            return f"a tool turn for `{turn.call_id}`, which nobody asked for or is answered"
        if not turn.content:
            return "a tool turn without content"
        return None

    def _problem_of_answer(self, turn: AssistantTurn) -> str | None:
        last = self.history.turns[-1] if self.history.turns else None
        if not isinstance(last, UserTurn | ToolTurn):
            return "an assistant turn that answers nothing"
        if not turn.text and not turn.calls:
            return "an assistant turn with neither text nor calls"
        ids = {call.id for call in turn.calls}
        if len(ids) != len(turn.calls) or "" in ids or not ids.isdisjoint(self._used):
            return "tool calls with missing or repeated ids"
        if not all(call.arguments.lstrip().startswith("{") for call in turn.calls):
            return "a tool call whose arguments are no JSON object"
        return None


def add_system(history: History, text: str, heard: Heard | None = None) -> None:
    """Begin `history` with what the model is told before anything else."""
    Conversation(history, heard).add(SystemTurn(text))


def add_user(
    history: History, text: str, media: tuple[Media, ...] = (), heard: Heard | None = None
) -> None:
    """Add a user turn to `history`, for `converse` to answer."""
    Conversation(history, heard).add(UserTurn(text, media))


class Buffer:
    """Output of local commands on its way to the model (L14).

    It waits over any number of tool rounds: only a real user turn takes it along.
    """

    def __init__(self) -> None:
        self._waiting: list[str] = []

    def add(self, output: str) -> None:
        """Keep `output` for the next user turn."""
        self._waiting.append(output)

    @property
    def waiting(self) -> int:
        """How many outputs wait."""
        return len(self._waiting)

    def user_turn(self, text: str) -> UserTurn:
        """The user turn that says all that waited, then `text`; the buffer is then empty."""
        parts = [*self._waiting, text]
        self._waiting.clear()
        return UserTurn("\n\n".join(part for part in parts if part))
