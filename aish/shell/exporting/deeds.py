"""What a session did, from the records of its journal: what was asked and answered, and stands."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from aish.run.suggesting.calls import Calls, made_of_events
from aish.sinks.event_reading import event_of
from aish.vocab.events import Event, StepFinished, StepStarted, ToolDecided, TurnFinished
from aish.vocab.frozen import frozen, slotted
from aish.vocab.json import JsonObject
from aish.vocab.turn_events import HistoryReplaced, OutputWaits, QuestionAsked, TurnAdded

# How `session.replace` says that the last question is not in the conversation any more.
_TAKEN_BACK = frozenset({"taken back", "undone", "asked again", "asked another way"})


@frozen
class Said:
    """An answer of a model, by which its recording is known."""

    text: str
    calls: tuple[tuple[str, str], ...]


@slotted
class Line:
    """A question: its step, its own text, and what went out with it.

    `waited` are outputs of local commands, `model` the alias of who answered, `tools` what it was
    shown, `turn` what it became in the conversation. `whole` says that it was answered to the end.
    """

    id: str
    text: str
    attached: tuple[str, ...]
    tools: tuple[str, ...]
    waited: tuple[str, ...] = ()
    model: str = ""
    answers: list[Said] = field(default_factory=list)
    whole: bool = False
    turn: JsonObject = field(default_factory=dict)

    @property
    def sent(self) -> str:
        """The whole text that went to the model."""
        return str(self.turn.get("text", ""))


@frozen
class Deeds:
    """`lines` are the questions that stand, `others` answers that belong to none of them.

    `commands` has the step and the command line of each output that went to a model.
    """

    lines: tuple[Line, ...]
    answers: tuple[tuple[str, Said], ...]
    commands: Mapping[str, tuple[str, str]]
    calls: Calls

    def left_out(self) -> tuple[Line, ...]:
        """Questions in the conversation whose answers did not come to their end."""
        return tuple(line for line in self.lines if not line.whole)

    def kept(self) -> tuple[Line, ...]:
        """Questions that can be asked again."""
        return tuple(line for line in self.lines if line.whole)


def deeds_of(records: Iterable[JsonObject]) -> Deeds:
    """What the records tell of.

    Raises:
        ValueError: one is no such event as its type says.
    """
    fold = _Fold()
    for record in records:
        stamped = event_of(record)
        if stamped is not None:
            fold.take(stamped.event)
    return fold.deeds()


class _Fold:
    def __init__(self) -> None:
        self._standing: list[Line] = []
        self._lines: dict[str, Line] = {}
        self._waiting: tuple[str, ...] = ()
        self._answers: list[tuple[str, Said]] = []
        self._commands: dict[str, tuple[str, str]] = {}
        self._events: list[Event] = []
        self._kinds: dict[str | None, str] = {}
        self._command: tuple[str, str] | None = None

    def take(self, event: Event) -> None:
        step = event.place.step
        self._events.append(event)
        match event:
            case QuestionAsked(_, text, attached, tools) if step is not None:
                self._lines[step] = Line(step, text, attached, tools)
            case TurnAdded(_, turn) if turn.get("role") == "user" and step in self._lines:
                self._stands(self._lines[step], turn)
            case HistoryReplaced(reason=reason):
                self._replaced(reason)
            case OutputWaits(_, text):
                self._waits(text)
            case StepStarted(kind=kind):
                self._kinds[step] = kind
            case ToolDecided(arguments=arguments) if self._kinds.get(step) == "run":
                self._command = str(step), _command(arguments)
            case TurnFinished(purpose="answer"):
                self._answered(event)
            case StepFinished(status=status) if step in self._lines:
                self._lines[step].whole = status == "ok"
            case _:
                pass

    def deeds(self) -> Deeds:
        kept = {line.id for line in self._standing if line.whole}
        runs = {
            self._commands[text][0]
            for line in self._standing
            if line.whole
            for text in line.waited
            if text in self._commands
        }
        wanted = [event for event in self._events if event.place.step in kept | runs]
        return Deeds(
            tuple(self._standing),
            tuple(self._answers),
            self._commands,
            made_of_events(wanted),
        )

    def _stands(self, line: Line, turn: JsonObject) -> None:
        line.waited, self._waiting = self._waiting, ()
        line.turn = turn
        self._standing.append(line)

    def _replaced(self, reason: str) -> None:
        if reason == "cleared":
            self._standing.clear()
            self._waiting = ()
        elif reason in _TAKEN_BACK and self._standing:
            self._standing.pop()

    def _waits(self, text: str) -> None:
        self._waiting = (*self._waiting, text)
        if self._command is not None:
            # What is given back and waits once more is of the command that it was of.
            self._commands.setdefault(text, self._command)
        self._command = None

    def _answered(self, event: TurnFinished) -> None:
        said = Said(event.text, tuple((call.name, call.arguments) for call in event.calls))
        step = str(event.place.step)
        self._answers.append((step, said))
        line = self._lines.get(step)
        if line is not None:
            line.model = event.model
            line.answers.append(said)


def _command(arguments: Any) -> str:
    return str(arguments.get("command", "")) if isinstance(arguments, Mapping) else ""
