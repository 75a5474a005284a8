"""Restores a conversation from the records of its journal, in one pass (S6, B3)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aish.agent import wording
from aish.agent.conversation import Conversation, IllegalTurnError
from aish.agent.turn_json import SECRETS, ReadFile, turn_from_json
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import AssistantTurn, History, ToolTurn, Turn

TURN_ADDED = "turn.added"
HISTORY_REPLACED = "history.replaced"
RESUMABLE = "conversation"
"""The `purpose` of turns that are all there; older journals do not say it."""


@frozen
class Restored:
    """The valid conversation, and a message for each part that could not be restored."""

    history: History
    lost: tuple[str, ...] = ()


def history_of(
    records: Iterable[JsonObject],
    read_file: ReadFile,
    step: str | None = None,
    begin: Iterable[Turn] = (),
    restore: Callable[[JsonValue], JsonValue] = lambda value: value,
) -> Restored:
    """The conversation in `records`; with a `step`, that of this step only.

    If it continued another one, it begins with those turns. A call without an answer, because the
    process was killed, gets a reply that says so.

    Raises:
        UsageError: a record is not a turn, or is not valid at its position.
    """
    recalling = Restorer(read_file, begin, restore)
    for record in records:
        if step is None or record.get("step") == step:
            recalling.take(record)
    return recalling.end()


class Restorer:
    """The state of a conversation after the records so far; `restore` puts secrets back."""

    def __init__(
        self,
        read_file: ReadFile,
        begin: Iterable[Turn] = (),
        restore: Callable[[JsonValue], JsonValue] = lambda value: value,
    ) -> None:
        self._read_file = read_file
        self._restore = restore
        self._lost: dict[str, None] = {}
        self._conversation = Conversation(History(list(begin)))

    def take(self, record: Any) -> None:
        """Process a record; types other than turns are ignored.

        Raises:
            UsageError: it is not a turn, or is not valid here.
        """
        kind = record.get("type")
        if kind not in {TURN_ADDED, HISTORY_REPLACED}:
            return
        if record.get("purpose", RESUMABLE) != RESUMABLE:
            return
        try:
            if kind == TURN_ADDED:
                self._add(self._turn(record.get("added")))
            else:
                self._replace([self._turn(told) for told in record.get("turns")])
        except (ValueError, TypeError, AttributeError, IllegalTurnError) as error:
            said = f"a record of type {kind!r} is not a valid event: {error}"
            raise UsageError(said, where=f"record {record.get('seq')}") from error

    def unfinished(self) -> Restored:
        """The conversation up to the last answer, if calls of that have no reply yet (A10)."""
        turns = list(self._conversation.history.turns)
        if self._conversation.open_calls:
            while isinstance(turns[-1], ToolTurn):
                turns.pop()
        return Restored(History(turns), tuple(self._lost))

    def end(self) -> Restored:
        """The conversation after the last record."""
        self._answer_open_calls()
        return Restored(self._conversation.history, tuple(self._lost))

    def _turn(self, told: JsonObject) -> Turn:
        if told.get(SECRETS) is True:
            restored = self._restore(told)
            assert isinstance(restored, Mapping), "an object stays one"
            told = restored
        return turn_from_json(told, self._read_file, self._note)

    def _note(self, lost: str) -> None:
        self._lost[lost] = None

    def _replace(self, turns: list[Turn]) -> None:
        self._conversation = Conversation(History())
        for turn in turns:
            self._add(turn)

    def _add(self, turn: Turn) -> None:
        if not isinstance(turn, ToolTurn):
            self._answer_open_calls()
        self._conversation.add(turn)

    def _answer_open_calls(self) -> None:
        conversation = self._conversation
        open_calls = conversation.open_calls
        if not open_calls:
            return
        turns = reversed(conversation.history.turns)
        asked = next(turn for turn in turns if isinstance(turn, AssistantTurn))
        names = {call.id: call.name for call in asked.calls}
        for id in open_calls:
            conversation.add(ToolTurn(id, names[id], wording.UNANSWERED))
