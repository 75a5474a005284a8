"""The events of a run folded into its units of work: a step, or one item of a step (B11).

A resumed journal tells of some units twice, and so does a step that is tried again: each end of a
unit is handed on, and whoever gathers them lets the last one stand. Beside it, what the end of a
unit means to a reader, in one word.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Literal

from aish.core.events import (
    ExpectChecked,
    Fallback,
    HistoryReplaced,
    ItemFinished,
    ItemStarted,
    MessagePurpose,
    Notice,
    Place,
    Retry,
    RunFinished,
    RunStarted,
    Stamped,
    StepFinished,
    StepKind,
    StepStarted,
    TextWithdrawn,
    ToolDecided,
    ToolFinished,
    ToolStarted,
    TurnAdded,
    TurnFinished,
    TurnStarted,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue, structured

Key = tuple[str, str | None]
Finished = StepFinished | ItemFinished


@slotted
class Call:
    """A tool call: as the model wrote it, as it was decided, and what came of it."""

    tool: str
    began: float
    arguments: JsonValue = None
    decided: ToolDecided | None = None
    finished: ToolFinished | None = None


@slotted
class Turn:
    """An answer of a model."""

    began: float
    ended: float
    said: TurnFinished


@slotted
class Sent:
    """Messages that go out with the next request, and that no other entry has.

    `anew` says why, where the messages before it were replaced.
    """

    at: float
    purpose: MessagePurpose
    messages: Sequence[JsonObject]
    anew: str | None = None


@slotted
class Aside:
    """Something that happened between the two."""

    at: float
    event: Retry | Fallback | Notice | TextWithdrawn


Entry = Turn | Call | Aside | Sent


@slotted
class Unit:
    """A step or an item: what happened in it, in order, and how it ended.

    `finished` is `None` where the run ended first; `index` and `count` are those of items.
    """

    step: str
    item: str | None
    began: float
    ended: float
    kind: StepKind | None = None
    index: int | None = None
    count: int | None = None
    entries: list[Entry] = field(default_factory=list)
    checks: list[ExpectChecked] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def key(self) -> Key:
        """What tells it from the other units of its run."""
        return self.step, self.item

    @property
    def calls(self) -> Iterator[Call]:
        """Its tool calls."""
        return (entry for entry in self.entries if isinstance(entry, Call))


@slotted
class Segment:
    """One process's part in a run: a run that was resumed has several."""

    started: RunStarted
    began: float
    ended: float
    finished: RunFinished | None = None


@slotted
class _Open:
    """A unit that goes on, with what is needed to put its events together."""

    unit: Unit
    calls: dict[tuple[int | None, str | None], Call] = field(default_factory=dict)
    asked: dict[tuple[int | None, str], str] = field(default_factory=dict)
    turn: float | None = None


class Units:
    """Folds events; holds the units that are open, and no more."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.notices: list[Notice] = []
        self._open: dict[Key, _Open] = {}
        self._kinds: dict[str, StepKind] = {}

    def take(self, stamped: Stamped) -> Iterator[Unit]:
        """The units that end with this event."""
        event, now = stamped.event, stamped.time
        if self.segments and not isinstance(event, RunStarted):
            self.segments[-1].ended = now
        if isinstance(event, RunStarted):
            # Whoever wrote the last part was killed in the middle of these.
            yield from self.rest()
            self.segments.append(Segment(event, now, now))
        elif isinstance(event, RunFinished):
            yield from self.rest()
            if self.segments:
                self.segments[-1].finished = event
        elif event.place.step is not None:
            yield from self._in_step(stamped, event.place.step)
        elif isinstance(event, Notice):
            self.notices.append(event)

    def rest(self) -> Iterator[Unit]:
        """The units that were begun and have no end."""
        while self._open:
            _, held = self._open.popitem()
            yield held.unit

    def _in_step(self, stamped: Stamped, step: str) -> Iterator[Unit]:
        event, now = stamped.event, stamped.time
        key = step, event.place.item
        if isinstance(event, (StepStarted, ItemStarted)):
            self._open[key] = _Open(self._begun(event, key, now))
            return
        held = self._open.get(key)
        if held is None:
            held = self._open[key] = _Open(Unit(*key, now, now, self._kinds.get(step)))
        held.unit.ended = now
        if isinstance(event, (StepFinished, ItemFinished)):
            held.unit.finished = event
            del self._open[key]
            yield held.unit
        elif isinstance(event, (TurnAdded, HistoryReplaced)):
            sent = _sent(event, now)
            if sent.messages or sent.anew is not None:
                held.unit.entries.append(sent)
        else:
            _add(held, stamped)

    def _begun(self, event: StepStarted | ItemStarted, key: Key, now: float) -> Unit:
        if isinstance(event, StepStarted):
            self._kinds[key[0]] = event.kind
            return Unit(*key, now, now, event.kind, count=event.count)
        return Unit(*key, now, now, self._kinds.get(key[0]), event.index)


def _add(held: _Open, stamped: Stamped) -> None:
    event, unit = stamped.event, held.unit
    match event:
        case TurnStarted():
            held.turn = stamped.time
        case TurnFinished(place=place):
            began = stamped.time - event.seconds if held.turn is None else held.turn
            unit.entries.append(Turn(began, stamped.time, event))
            held.turn = None
            for asked in event.calls:
                held.asked[place.turn, asked.id] = asked.arguments
        case ToolDecided(place=place, tool=tool):
            call = _call(held, place, tool, stamped.time)
            call.decided, call.arguments = event, event.arguments
        case ToolStarted(place=place, tool=tool):
            _call(held, place, tool, stamped.time).began = stamped.time
        case ToolFinished(place=place, tool=tool):
            _call(held, place, tool, stamped.time).finished = event
        case Retry() | Fallback() | Notice() | TextWithdrawn():
            unit.entries.append(Aside(stamped.time, event))
            if isinstance(event, Retry) and _is_of_unit(event):
                # What was expected of the last attempt is expected of the next one.
                unit.checks.clear()
        case ExpectChecked():
            unit.checks.append(event)
        case _:
            pass


def _sent(event: TurnAdded | HistoryReplaced, now: float) -> Sent:
    """What is new: answers and results of tools have entries of their own, as they were said."""
    if isinstance(event, HistoryReplaced):
        new = [] if event.purpose == "conversation" else [t for t in event.turns if "at" not in t]
        return Sent(now, event.purpose, new, event.reason)
    role = event.turn.get("role")
    said = event.purpose == "conversation" and role not in {"system", "user"}
    return Sent(now, event.purpose, () if said else (event.turn,))


def _is_of_unit(retry: Retry) -> bool:
    """Whether the whole unit is tried again, and not only a request of it."""
    return retry.place.turn is None and retry.endpoint == f"step {retry.place.step}"


def _call(held: _Open, place: Place, tool: str, now: float) -> Call:
    key = place.turn, place.call
    call = held.calls.get(key)
    if call is None or call.finished is not None:
        asked = None if place.call is None else held.asked.get((place.turn, place.call))
        call = held.calls[key] = Call(tool, now, asked)
        held.unit.entries.append(call)
    return call


State = Literal["ok", "failed", "error", "skipped", "denied", "cut_off"]
"""`failed`: it was answered, and not well. `error`: something around it broke or ran out."""

# Codes of failures that are no verdict on an answer: peers, the machine, limits, bugs.
_AROUND = frozenset(
    {
        "budget",
        "endpoint_error",
        "internal",
        "interrupted",
        "invalid_cassette",
        "lock",
        "not_recorded",
        "offline",
        "rpc_error",
        "time",
        "timeout",
        "transport_error",
        "unavailable",
        "usage",
    }
)
_ANSWERING = frozenset({"prompt", "pipeline"})
WORDS: dict[State, str] = {
    "ok": "ok",
    "failed": "failed",
    "error": "error",
    "skipped": "skipped",
    "denied": "denied",
    "cut_off": "cut off",
}


@frozen
class Reason:
    """Why a unit did not end well."""

    code: str
    message: str
    hint: str | None = None


def state_of(unit: Unit) -> State:
    """How the unit ended."""
    end = unit.finished
    if end is None:
        return "cut_off"
    if end.status == "failed":
        code = end.error.code if end.error is not None else ""
        around = code in _AROUND or code.startswith("cassette_")
        return "error" if around else "failed"
    return "error" if end.status == "budget" else end.status


def reason_of(unit: Unit) -> Reason | None:
    """Why it did not end well; `None` where it did, or where nothing is said of it."""
    end = unit.finished
    if end is None:
        return Reason("interrupted", "the run ended before this did")
    if end.error is not None:
        return Reason(end.error.code, end.error.message, end.error.hint)
    return None


def answer_of(unit: Unit) -> JsonValue:
    """What the unit answered: the value of a structured answer, else the text.

    The output of a command or a tool call is not its answer: that is what it printed.
    """
    end = unit.finished
    if end is None:
        return None
    if unit.kind not in _ANSWERING:
        return end.text or None
    if end.output is not None and not isinstance(end.output, str):
        return end.output
    # What was rejected is no output, and is what one wants to read.
    return structured(end.text) if end.text else None
