"""The conversation of a run and its text in flight, from its events in bounded memory."""

from collections import deque
from collections.abc import Mapping
from typing import Final

from aish.core.events import (
    Event,
    HistoryReplaced,
    ItemFinished,
    Place,
    RunFinished,
    Stamped,
    StepFinished,
    TextDelta,
    TextWithdrawn,
    ToolFinished,
    ToolStarted,
    TurnAdded,
    TurnFinished,
    TurnStarted,
    rfc3339,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

MOST_ENTRIES: Final = 1000
"""How many of the latest entries are kept."""
MOST_TEXT: Final = 4 << 20
"""How many characters they may have together."""
LONGEST_TEXT: Final = 64 << 10
"""How many characters of a text are kept."""
_MOST_STREAMS = 100
_SPOKEN = frozenset({"conversation", "answer"})


@frozen
class ConversationEntry:
    """A message: its role in the conversation, and the calls that a model asked for.

    `characters` is the length of the whole text, of which the end may be left out.
    """

    role: str
    text: str
    calls: tuple[JsonObject, ...]
    time: str
    place: Place
    tool: str | None
    characters: int

    def plain(self) -> JsonObject:
        return {
            "role": self.role,
            "text": self.text,
            "calls": self.calls,
            "time": self.time,
            "step": self.place.step,
            "item": self.place.item,
            "tool": self.tool,
            "characters": self.characters,
        }

    @property
    def weight(self) -> int:
        return 100 + len(self.text) + sum(len(str(call)) for call in self.calls)


class RunConversation:
    """The entries of all steps and items in the order of time.

    Where a conversation is recorded turn by turn, to be continued, its turns are what is said;
    elsewhere the answers and results are.
    """

    def __init__(self) -> None:
        self.is_one = False
        """Whether all steps are one conversation, as the lines of a session are."""
        self._entries: deque[tuple[ConversationEntry, int]] = deque()
        self._text = 0
        self._left_out = 0
        self._recorded: set[str | None] = set()

    def plain(self) -> JsonObject:
        """The entries as JSON, and how many older ones are not kept."""
        return {
            "entries": [entry.plain() for entry, _ in self._entries],
            "left_out": self._left_out,
        }

    def take(self, stamped: Stamped) -> None:
        """Take an event."""
        match stamped.event:
            case TurnAdded() as event if event.purpose in _SPOKEN:
                if event.purpose == "conversation":
                    self._recorded.add(event.place.step)
                elif event.turn.get("role") not in {"system", "user"}:
                    return
                self._add(_of_turn(event.turn, event.place, stamped))
            case HistoryReplaced() as event if event.purpose == "conversation":
                self._recorded.add(event.place.step)
                here = (event.place.step, event.place.item)
                entries = [
                    (entry, weight)
                    for entry, weight in self._entries
                    if not self.is_one and (entry.place.step, entry.place.item) != here
                ]
                self._entries = deque(entries)
                self._text = sum(weight for _, weight in entries)
                for turn in event.turns:
                    self._add(_of_turn(turn, event.place, stamped))
            case TurnFinished() as event if event.purpose == "answer":
                if event.place.step not in self._recorded:
                    calls: tuple[JsonObject, ...] = tuple(
                        {"id": call.id, "name": call.name, "arguments": call.arguments}
                        for call in event.calls
                    )
                    self._add(_entry("assistant", event.text, event.place, stamped, calls))
            case ToolFinished() as event if event.place.turn is not None:
                if event.place.step not in self._recorded:
                    self._add(_entry("tool", event.content, event.place, stamped, tool=event.tool))
            case _:
                pass

    def _add(self, entry: ConversationEntry) -> None:
        weight = entry.weight
        self._entries.append((entry, weight))
        self._text += weight
        while len(self._entries) > MOST_ENTRIES or (
            self._text > MOST_TEXT and len(self._entries) > 1
        ):
            _, lighter = self._entries.popleft()
            self._text -= lighter
            self._left_out += 1


def _of_turn(turn: JsonObject, place: Place, stamped: Stamped) -> ConversationEntry:
    """The entry of a turn as `agent.turn_json` tells it, or as a recorder of requests does."""
    role, said = str(turn.get("role", "")), turn.get("content" if "content" in turn else "text", "")
    calls, length = turn.get("calls", ()), turn.get("characters")
    tool = turn.get("tool")
    entry = _entry(
        role,
        str(said),
        place,
        stamped,
        tuple(_call(call) for call in calls if isinstance(call, Mapping))
        if isinstance(calls, (list, tuple))
        else (),
        tool=None if tool is None else str(tool),
    )
    if not isinstance(length, int):
        return entry
    return ConversationEntry(
        entry.role, entry.text, entry.calls, entry.time, entry.place, entry.tool, length
    )


def _call(call: Mapping[str, JsonValue]) -> JsonObject:
    return {key: call.get(key) for key in ("id", "name", "arguments")}


def _entry(
    role: str,
    text: str,
    place: Place,
    stamped: Stamped,
    calls: tuple[JsonObject, ...] = (),
    tool: str | None = None,
) -> ConversationEntry:
    cut = text[:LONGEST_TEXT]
    return ConversationEntry(role, cut, calls, rfc3339(stamped.time), place, tool, len(text))


_Unit = tuple[str | None, str | None]


class UnderWay:
    """The turns and calls that have begun and not ended, and what models say in them so far."""

    def __init__(self) -> None:
        self._turns: set[_Unit] = set()
        self._calls: set[tuple[str | None, str | None, str | None]] = set()
        self._streams: dict[_Unit, str] = {}

    @property
    def thinks(self) -> bool:
        return bool(self._turns)

    @property
    def calls(self) -> bool:
        return bool(self._calls)

    def streams(self) -> JsonObject:
        return {
            (unit[0] or "") if unit[1] is None else f"{unit[0]}/{unit[1]}": text
            for unit, text in self._streams.items()
        }

    def take(self, event: Event) -> None:
        """Take an event."""
        place = event.place
        unit = (place.step, place.item)
        match event:
            case TextDelta() | TextWithdrawn():
                is_piece = isinstance(event, TextDelta)
                self._say(unit, self._streams.get(unit, "") + event.text if is_piece else "")
            case TurnStarted() | TurnFinished():
                if isinstance(event, TurnStarted):
                    self._turns.add(unit)
                else:
                    self._turns.discard(unit)
                if event.purpose == "answer":
                    self._say(unit, event.text if isinstance(event, TurnFinished) else "")
            case ToolStarted():
                self._calls.add((*unit, place.call))
            case ToolFinished():
                self._calls.discard((*unit, place.call))
            case ItemFinished() | StepFinished():
                self._end(unit)
            case RunFinished():
                self._turns.clear()
                self._calls.clear()
                self._streams.clear()
            case _:
                pass

    def _say(self, unit: _Unit, text: str) -> None:
        # The end of a long text: what follows it is added there.
        self._streams[unit] = text[-LONGEST_TEXT:]
        if len(self._streams) > _MOST_STREAMS:
            del self._streams[next(iter(self._streams))]

    def _end(self, unit: _Unit) -> None:
        """A step with all of its items has ended, or one item."""
        of_step = unit[1] is None

        def covers(step: str | None, item: str | None) -> bool:
            return step == unit[0] and (of_step or item == unit[1])

        self._turns = {turn for turn in self._turns if not covers(*turn)}
        self._calls = {call for call in self._calls if not covers(*call[:2])}
        self._streams = {key: text for key, text in self._streams.items() if not covers(*key)}
