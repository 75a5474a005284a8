"""Read a session's questions, answers and current conversation from its journal."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from aish.core.events import (
    HistoryReplaced,
    OutputWaits,
    QuestionAsked,
    Stamped,
    StepStarted,
    ToolDecided,
    TurnAdded,
    TurnFinished,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject
from aish.features.suggest.calls import CallHistory, calls_of_run
from aish.journal.history import CallRecord, Ended, RunHistory, TurnRecord, Unit
from aish.journal.reader import event_of

# The reasons by which `session.replace` records that the last question was removed.
_UNANSWERED = "taken back"
_TAKEN_BACK = frozenset({_UNANSWERED, "undone", "asked again", "asked another way"})


@frozen
class SessionAnswer:
    """An answer of a model, by which its recording is identified."""

    text: str
    calls: tuple[tuple[str, str], ...]


@frozen
class Waited:
    """Output that was sent with a question; `step` has run `command`, if it is of a command."""

    text: str
    step: str = ""
    command: str = ""


@slotted
class SessionLine:
    """A question: its step, its own text, and what was sent with it.

    `model` is the alias of the model that answered, `tools` the tools it was shown, `turn` the turn
    of the question in the conversation. `whole` says whether the answer is complete.
    """

    id: str
    text: str
    attached: tuple[str, ...]
    tools: tuple[str, ...]
    waited: tuple[Waited, ...] = ()
    model: str = ""
    whole: bool = False
    turn: JsonObject = field(default_factory=dict)

    @property
    def sent(self) -> str:
        return str(self.turn.get("text", ""))

    @property
    def has_media(self) -> bool:
        return bool(self.turn.get("media"))


@frozen
class SessionLog:
    """`lines` are the questions in the conversation, `answers` all answers with the step of each.

    `shortened` says that the model did not always get the whole conversation. `unanswered` are
    questions without any answer that were not repeated with one. `given` says that the conversation
    begins with turns that were not held in the session.
    """

    lines: tuple[SessionLine, ...]
    answers: tuple[tuple[str, SessionAnswer], ...]
    shortened: bool
    calls: tuple[CallRecord, ...]
    unanswered: tuple[SessionLine, ...] = ()
    given: bool = False

    def open_lines(self) -> tuple[SessionLine, ...]:
        """Questions without a complete answer."""
        return (*self.unanswered, *(line for line in self.lines if not line.whole))

    def complete_lines(self) -> tuple[SessionLine, ...]:
        return tuple(line for line in self.lines if line.whole)

    def calls_of(self, steps: Collection[str]) -> CallHistory:
        return calls_of_run(call for call in self.calls if call.place.step in steps)


def session_log_of(records: Iterable[JsonObject]) -> SessionLog:
    """The session log of these records.

    Raises:
        ValueError: a record does not have the form of its event type.
    """
    fold = _SessionFold()
    for record in records:
        stamped = event_of(record)
        if stamped is not None:
            fold.take(stamped)
    return fold.log()


class _SessionFold:
    def __init__(self) -> None:
        # A summarised question is in one user turn with the questions after it.
        self._standing: list[list[SessionLine]] = []
        self._unanswered: list[SessionLine] = []
        self._lines: dict[str, SessionLine] = {}
        self._waiting: tuple[Waited, ...] = ()
        self._given_back: tuple[Waited, ...] = ()
        self._answers: list[tuple[str, SessionAnswer]] = []
        self._calls: list[CallRecord] = []
        self._history = RunHistory()
        self._kinds: dict[str | None, str] = {}
        self._command: tuple[str, str] | None = None
        self._shortened = False
        self._given = False

    def take(self, stamped: Stamped) -> None:
        event = stamped.event
        step = event.place.step
        match event:
            case QuestionAsked(_, text, attached, tools) if step is not None:
                self._lines[step] = SessionLine(step, text, attached, tools)
            case TurnAdded(_, turn) if turn.get("role") == "user" and step in self._lines:
                line = self._lines[step]
                line.waited, self._waiting = self._waiting, ()
                line.turn = turn
                self._standing.append([line])
            case HistoryReplaced(turns=turns, reason=reason):
                self._replace(turns, reason)
            case OutputWaits(_, text, again):
                self._waits(text, again=again)
            case StepStarted(kind=kind):
                self._kinds[step], self._command = kind, None
            case ToolDecided(arguments=arguments) if self._kinds.get(step) == "run":
                self._command = str(step), _command(arguments)
            case _:
                pass
        self._add(self._history.take(stamped))

    def _add(self, ended: Iterable[Ended]) -> None:
        for entry in ended:
            match entry:
                case TurnRecord(said=answer) if answer.purpose == "answer":
                    self._answer(answer)
                case Unit(item=None, finished=finished) if finished and entry.step in self._lines:
                    self._lines[entry.step].whole = finished.status == "ok"
                case CallRecord():
                    self._calls.append(entry)
                case _:
                    pass

    def log(self) -> SessionLog:
        self._add(self._history.rest())
        lines = tuple(line for group in self._standing for line in group)
        texts = {line.text for line in lines}
        unanswered = {line.text: line for line in self._unanswered if line.text not in texts}
        return SessionLog(
            lines,
            tuple(self._answers),
            self._shortened,
            tuple(self._calls),
            tuple(unanswered.values()),
            self._given,
        )

    def _replace(self, turns: Sequence[JsonObject], reason: str) -> None:
        questions = sum(turn.get("role") == "user" for turn in turns)
        if reason in {"cleared", "given"}:
            self._standing.clear()
            self._unanswered.clear()
            self._waiting, self._shortened, self._given = (), False, reason == "given"
        elif reason in _TAKEN_BACK:
            gone = [line for group in self._standing[questions:] for line in group]
            del self._standing[questions:]
            if reason == _UNANSWERED:
                self._unanswered += gone
            self._given_back = gone[-1].waited if gone else ()
        else:
            self._shortened = True
            merged = max(len(self._standing) - questions, 0) + 1
            first = [line for group in self._standing[:merged] for line in group]
            self._standing[:merged] = [first] if first else []

    def _waits(self, text: str, *, again: bool) -> None:
        command, self._command = self._command, None
        if not again:
            entry = Waited(text) if command is None else Waited(text, *command)
            self._waiting = (*self._waiting, entry)
            return
        # It is queued again, all of it at once, before what was queued since.
        back, self._given_back = self._given_back, ()
        whole = "\n\n".join(entry.text for entry in back)
        self._waiting = (*(back if text == whole else (Waited(text),)), *self._waiting)

    def _answer(self, event: TurnFinished) -> None:
        answer = SessionAnswer(
            event.text, tuple((call.name, call.arguments) for call in event.calls)
        )
        step = str(event.place.step)
        self._answers.append((step, answer))
        if step in self._lines:
            self._lines[step].model = event.model


def _command(arguments: Any) -> str:
    return str(arguments.get("command", "")) if isinstance(arguments, Mapping) else ""
