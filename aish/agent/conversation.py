"""The only module that adds turns to a `History`; checks that each is valid there.

Also the buffer for output of local commands. The cost of adding a turn does not depend on the
length of the conversation.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from aish.core.messages import AssistantTurn, History, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.sources import NO_SOURCES, Sources
from aish.core.tools import Media


class IllegalTurnError(AssertionError):
    """A turn was added where no endpoint would accept it: an internal error."""


class TurnObserver(Protocol):
    """Observer of the turns of a history: see `agent.turn_recorder`."""

    def add_turn(self, turn: Turn, *, told: bool) -> None:
        """Add a turn at the end; `told`: another event already contains it."""

    def replace_turns(self, turns: Sequence[Turn], reason: str) -> None: ...


class Conversation:
    """Adds turns to one history; the only way to do so.

    `heard` is notified after each change, but not of existing turns.
    """

    def __init__(self, history: History, heard: TurnObserver | None = None) -> None:
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
        return self._used

    def add(self, turn: Turn, *, told: bool = False) -> None:
        """Add `turn`; `told` is passed to the observer.

        Raises:
            IllegalTurnError: it is not valid at this position.
        """
        problem = self._problem(turn)
        if problem:
            raise IllegalTurnError(problem)
        if isinstance(turn, AssistantTurn) and (known := self.history.sources):
            turn = replace(turn, sources=turn.sources | known)
        self.history.turns.append(turn)
        self._note(turn)
        if self._heard is not None:
            self._heard.add_turn(turn, told=told)

    def rewrite(self, turns: Iterable[Turn], reason: str = "rewritten") -> None:
        """Replace all turns by `turns`; ids once used stay used.

        `reason` is a keyword for the observer.

        Raises:
            IllegalTurnError: one is not valid at its position, or a call is left open.
        """
        other = Conversation(History())
        for turn in turns:
            other.add(turn)
        if other.open_calls:
            raise IllegalTurnError(f"calls without a reply: {', '.join(other.open_calls)}")
        # A new list, so that caches of the old one's encoding see that it was replaced.
        self.history.turns = other.history.turns
        if self._heard is not None:
            self._heard.replace_turns(self.history.turns, reason)

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


def add_system(
    history: History,
    text: str,
    heard: TurnObserver | None = None,
    sources: Sources = NO_SOURCES,
) -> None:
    Conversation(history, heard).add(SystemTurn(text, sources))


def add_user(
    history: History, text: str, media: tuple[Media, ...] = (), heard: TurnObserver | None = None
) -> None:
    Conversation(history, heard).add(UserTurn(text, media))


class Buffer:
    """Output of local commands to be sent to the model.

    It is kept over any number of tool rounds, until the next real user turn.
    """

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._sources = NO_SOURCES

    def add(self, output: str, sources: Sources = NO_SOURCES) -> None:
        self._waiting.append(output)
        self._sources |= sources

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def user_turn(self, text: str) -> UserTurn:
        """The user turn with all pending output, then `text`; empties the buffer."""
        parts = [*self._waiting, text]
        sources, self._sources = self._sources, NO_SOURCES
        self._waiting.clear()
        return UserTurn("\n\n".join(part for part in parts if part), (), sources)
