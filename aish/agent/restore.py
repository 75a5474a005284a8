"""Restores a conversation from the records of its journal, in one pass."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aish.agent import wording
from aish.agent.conversation import Conversation, IllegalTurnError
from aish.agent.turn_json import SECRETS, SOURCES, ReadFile, turn_from_json
from aish.core.errors import UsageError
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import AssistantTurn, History, ToolTurn, Turn
from aish.core.sources import NO_SOURCES, UNKNOWN, union

TURN_ADDED = "turn.added"
HISTORY_REPLACED = "history.replaced"
RESUMABLE = "conversation"
"""The `purpose` of turns that are all there; older journals do not say it."""
TAKEN_OVER = "conversation_resumed"
"""The code of a notice: a step or an item goes on within its conversation of an earlier part."""


class TurnsLostError(Exception):
    """A turn of a conversation is not in the journal, or not as it was."""


class RecordedTurns:
    """All turns of a conversation, from the records of either `agent.turn_recorder`.

    `turns` are those whose round is over, each as its record has it; `anew` says whether they
    replaced those that the conversation began with. `answer` is the record of the last answer,
    until its round is over.
    """

    def __init__(self, records: Iterable[Any], read_file: ReadFile) -> None:
        self._read_file = read_file
        self._recorded: list[JsonObject] = []
        self._added: JsonObject | None = None
        self._replies: dict[Any, JsonObject] = {}
        self._results: dict[Any, JsonObject] = {}
        self.turns: list[JsonObject] = []
        self.anew = False
        self.answer: Any = None
        for record in records:
            self._take(record)

    @property
    def unfinished(self) -> list[JsonObject]:
        """The turns up to the last answer, with it if that was recorded, without its replies."""
        return self.turns if self._added is None else [*self.turns, self._added]

    @property
    def awaits_answer(self) -> bool:
        """True if a round of calls is over, and no answer came after it."""
        return self.answer is None and bool(self.turns) and self.turns[-1].get("role") == "tool"

    def end_round(self) -> None:
        """Add the last answer and its replies.

        Raises:
            TurnsLostError: one of them is lost.
        """
        answer, self.answer = self.answer, None
        if answer is None:
            return
        calls = answer["calls"]
        turn = {"role": "assistant", "text": answer["text"], "origin": answer["model"]}
        self._put(self._added or {**turn, "calls": calls})
        for call in calls:
            reply = self._replies.get(call["id"]) or self._results.get(call["id"])
            if reply is None:
                raise TurnsLostError
            self._put(reply)
        self._added = None

    def _put(self, turn: JsonObject) -> None:
        self.turns.append(turn)
        self._recorded.append(turn)

    def _take(self, record: Any) -> None:
        match record["type"]:
            case "turn.started":
                self.end_round()
            case "turn.finished":
                self.answer, self._added = record, None
                self._replies, self._results = {}, {}
            case "tool.finished":
                turn = {"role": "tool", "call_id": record["call"], "tool": record["tool"]}
                result = {**turn, "content": record["content"]}
                is_error = record.get("kind", "ok") != "ok"
                self._results[record["call"]] = {
                    **result,
                    **({"is_error": True} if is_error else {}),
                }
            case "notice":
                # Another recorder begins, which counts only the turns that it has seen itself.
                self._recorded, self._replies = [], {}
            case "turn.added":
                self._add(self._whole(record["added"], record))
            case _:
                self.end_round()
                turns = [
                    self._recorded[told["at"]] if "at" in told else self._whole(told, record)
                    for told in record["turns"]
                ]
                self.turns, self._recorded, self.anew = turns, list(turns), True

    def _add(self, turn: JsonObject) -> None:
        match turn.get("role"):
            case "assistant" if self.answer is not None:
                self._added = turn
            case "tool" if self.answer is not None:
                self._replies[turn.get("call_id")] = turn
            case _:
                self.end_round()
                self._put(turn)

    def _whole(self, turn: JsonObject, record: Any) -> JsonObject:
        if record.get("purpose", RESUMABLE) == RESUMABLE:
            return turn
        name = turn.get("file")
        data = None if name is None else self._read_file(str(name))
        if "media" in turn or (name is not None and data is None):
            raise TurnsLostError
        if data is None:
            return turn
        return {**turn, "content" if turn["role"] == "tool" else "text": data.decode()}


class Restorer:
    """The state of a conversation after the records so far; `restore` puts secrets back.

    `lost` are sentences about parts that could not be restored. If it `follows` the sources of
    turns, those of an older journal are unknown.
    """

    def __init__(
        self,
        read_file: ReadFile,
        begin: Iterable[Turn] = (),
        restore: Callable[[JsonValue], JsonValue] = lambda value: value,
        *,
        follows: bool = False,
    ) -> None:
        self._read_file = read_file
        self._restore = restore
        self.lost: dict[str, None] = {}
        self._sources = NO_SOURCES
        self._unknown = NO_SOURCES
        self._follows = follows
        self._conversation = Conversation(History(list(begin)))

    def take(self, record: Any) -> None:
        """Process a record; types other than turns are ignored.

        Raises:
            UsageError: it is not a turn, or is not valid here.
        """
        kind = record.get("type")
        is_answer = record.get("purpose", "answer") == "answer"
        if kind == "turn.started" and is_answer and record.get(SOURCES) is None:
            # Written where nobody followed them.
            self._unknown = frozenset({UNKNOWN}) if self._follows else NO_SOURCES
        if kind not in {TURN_ADDED, HISTORY_REPLACED}:
            return
        if record.get("purpose", RESUMABLE) != RESUMABLE:
            return
        try:
            if kind == TURN_ADDED:
                self._add(self._turn(record.get("added")))
            else:
                self._sources = NO_SOURCES
                self._replace([self._turn(turn) for turn in record.get("turns")])
        except (ValueError, TypeError, AttributeError, IllegalTurnError) as error:
            message = f"a record of type {kind!r} is not a valid event: {error}"
            raise UsageError(message, where=f"record {record.get('seq')}") from error

    @property
    def history(self) -> History:
        return self._conversation.history

    def end(self) -> History:
        """The conversation after the last record, with a reply to each call."""
        self._answer_open_calls()
        return self.history

    def _turn(self, turn_data: JsonObject) -> Turn:
        if turn_data.get(SECRETS) is True:
            restored = self._restore(turn_data)
            assert isinstance(restored, Mapping), "an object stays one"
            turn_data = restored
        more: Any = turn_data.get(SOURCES) or ()
        self._sources = union((self._sources, frozenset(more), self._unknown))
        return turn_from_json(turn_data, self._read_file, self.lost.setdefault, self._sources)

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
            conversation.add(ToolTurn(id, names[id], wording.UNANSWERED, is_error=True))
