"""The state of a run, folded from its events, for those who ask for it over a socket.

A sink among others: whoever asks waits for nothing. Memory is bounded, however long the run: the
figures, the steps, the questions, and the most recent events.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from aish.core.events import (
    VERSION,
    ApprovalAnswered,
    ApprovalAsked,
    AskEnded,
    AskReceived,
    Exit,
    ItemFinished,
    ReasoningDelta,
    RunFinished,
    RunStarted,
    Stamped,
    StepFinished,
    StepStarted,
    TextDelta,
    ToolOutput,
    TurnFinished,
    plain,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject
from aish.core.messages import Spent
from aish.core.protocols import Clock
from aish.engine.run_folder import RunFolder
from aish.features.approvals.questions import ApprovalQuestion, approval_question
from aish.features.control.conversation import RunConversation, UnderWay
from aish.journal.questions import QuestionFold, RecordedQuestion
from aish.journal.statistics import Statistics
from aish.system.secrets.secrets import Secrets

RunPhase = Literal["running", "waiting", "paused", "finished"]

JOURNAL = "events.jsonl"
MOST_EVENTS = 5000
"""How many of the latest events are kept."""
MOST_TEXT = 16 << 20
"""How many characters they may have together."""
MOST_DECIDED = 1000
"""How many questions that have ended are kept, beside the open ones."""
# Not kept: `turn.finished` and `tool.finished` have the whole text.
_PIECES: Final = (TextDelta, ReasoningDelta, ToolOutput)
BEFORE = frozenset({"step.started", "step.finished", "approval.asked", "approval.answered"})
"""Types of the events of an earlier part of the run that the state needs."""


@slotted
class StepState:
    """The progress of a step; `total` is `None` while the number of its items is not known.

    `kind` is empty until it has begun.
    """

    id: str
    total: int | None
    status: str = "pending"
    kind: str = ""
    done: int = 0


Reader = Callable[[Stamped], None]
"""Gets every event as it comes; never waits."""


class EventsGoneError(Exception):
    """Events that were asked for are not kept any more; `first` is the number before the oldest."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.first = first


class RunState:
    """The state of a run as clients read it.

    `steps` are those of its plan, each with the number of its units of work if that is known, and
    `spent` is what earlier parts of the run have used.
    """

    name = "the control API"
    deltas = True

    def __init__(
        self,
        run: str,
        pipeline: str,
        steps: Mapping[str, int | None],
        clock: Clock,
        spent: Spent | None = None,
    ) -> None:
        self._run = run
        self._pipeline = pipeline
        self._clock = clock
        self._steps = {id: StepState(id, total) for id, total in steps.items()}
        self._spent = spent or Spent()
        self._begun: float | None = None
        self._finished: RunFinished | None = None
        self._questions = QuestionFold()
        self._decided: deque[str] = deque()
        self._kept: deque[tuple[Stamped, int]] = deque()
        self._text = 0
        self._last = 0
        self._dropped = 0
        self._readers: dict[int, Reader] = {}
        self.caller_waits: Callable[[str], bool] | None = None
        """Whether a call waits for the answer to a question now, if that is known of each."""
        self._number = 0
        self.conversation = RunConversation()
        self.under_way = UnderWay()
        self.statistics = Statistics()

    def begin_after(self, events: Iterable[Stamped], last: int) -> None:
        """Fold in the events of earlier parts of the run, which end with the number `last`."""
        for stamped in events:
            self._fold(stamped)
        self._last = self._dropped = last

    def __call__(self, stamped: Stamped) -> None:
        """Take an event."""
        self._last = stamped.seq
        self.under_way.take(stamped.event)
        if not isinstance(stamped.event, _PIECES):
            self._fold(stamped)
            weight = _weight(stamped.event)
            self._kept.append((stamped, weight))
            self._text += weight
            while len(self._kept) > MOST_EVENTS or (self._text > MOST_TEXT and len(self._kept) > 1):
                gone, lighter = self._kept.popleft()
                self._text -= lighter
                self._dropped = gone.seq
            self.conversation.take(stamped)
            self.statistics.take(stamped.event)
        for reader in tuple(self._readers.values()):
            reader(stamped)

    def close(self) -> None:
        """Nothing is left to do: the server has ended before."""

    @property
    def is_finished(self) -> bool:
        return self._finished is not None

    @property
    def phase(self) -> RunPhase:
        if self._finished is not None:
            return "paused" if self._finished.status == "paused" else "finished"
        return "waiting" if self._open() else "running"

    @property
    def seconds(self) -> float:
        seconds = self._spent.seconds
        if self._finished is not None:
            return seconds + self._finished.seconds
        return seconds + (0.0 if self._begun is None else max(0.0, self._clock.now() - self._begun))

    @property
    def pipeline(self) -> str:
        return self._pipeline

    @property
    def steps(self) -> Sequence[StepState]:
        return tuple(self._steps.values())

    @property
    def end(self) -> Exit | None:
        return None if self._finished is None else self._finished.exit

    @property
    def first(self) -> int:
        """The number before the oldest kept event."""
        return self._dropped

    def status(self) -> JsonObject:
        """The whole run in short."""
        # At its end a run knows what other processes have used too.
        spent = self._spent if self._finished is None else self._finished
        usage = spent.usage
        waiting = self._open()
        # A step that has paused waits for the run to be resumed.
        asking = {question.asked.place.step for question in waiting}
        return {
            "v": VERSION,
            "run": self._run,
            "pipeline": self._pipeline,
            "state": self.phase,
            "exit": None if self.end is None else plain(self.end),
            "seconds": round(self.seconds, 3),
            "tokens": None if usage is None else plain(usage),
            "cost_usd": spent.cost_usd,
            "steps": [
                {
                    "id": step.id,
                    "status": "waiting"
                    if step.id in asking and step.status == "running"
                    else step.status,
                    "done": step.done,
                    "total": step.total,
                }
                for step in self._steps.values()
            ],
            "pending": [question.id for question in waiting],
        }

    def questions(self) -> JsonObject:
        """All open questions, and the latest that have ended."""
        now = self._clock.now()
        questions = [self._question_for_client(question) for question in self._questions.all(now)]
        return {
            "v": VERSION,
            "pending": [plain(question) for question in questions if question.is_open],
            "decided": [plain(question) for question in questions if not question.is_open],
        }

    def question(self, id: str) -> ApprovalQuestion | None:
        found = self._questions.get(id)
        return None if found is None else self._question_for_client(found.at(self._clock.now()))

    def _question_for_client(self, question: RecordedQuestion) -> ApprovalQuestion:
        result = approval_question(self._run, question)
        if self.caller_waits is None or not result.server:
            return result
        return replace(result, caller_waiting=result.is_open and self.caller_waits(result.id))

    def after(self, number: int | None, most: int) -> tuple[Sequence[Stamped], int]:
        """At most so many events after a number, or the oldest; and where those after them begin.

        Raises:
            EventsGoneError: events after that number were there, and are kept no more.
        """
        if number is not None and number < self._dropped:
            raise EventsGoneError(self._dropped)
        since = self._dropped if number is None else number
        events: list[Stamped] = []
        # From the end: who follows a run asks for the latest.
        for stamped, _ in reversed(self._kept):
            if stamped.seq <= since:
                break
            events.append(stamped)
        events = events[::-1][:most]
        return events, events[-1].seq if events else since

    def follow(self, reader: Reader) -> Callable[[], None]:
        """Pass every future event to a reader; call the result to stop."""
        self._number += 1
        number = self._number
        self._readers[number] = reader

        def stop() -> None:
            self._readers.pop(number, None)

        return stop

    def _open(self) -> list[RecordedQuestion]:
        return [question for question in self._questions.all(self._clock.now()) if question.is_open]

    def _fold(self, stamped: Stamped) -> None:
        event = stamped.event
        match event:
            case RunStarted():
                self._begun = stamped.time
                self._questions.take(stamped)
            case RunFinished():
                self._finished = event
                self._take_question(stamped)
            case ApprovalAsked() | ApprovalAnswered() | AskReceived() | AskEnded():
                self._take_question(stamped)
            case StepStarted() if event.place.item is None:
                step = self._step(event.place.step)
                step.status, step.done, step.kind = "running", event.done, event.kind
                step.total = step.total if event.count is None else event.count
            case StepFinished() if event.place.item is None:
                step = self._step(event.place.step)
                step.status = event.status
                if step.total == 1 and event.status == "ok":
                    step.done = 1
            case ItemFinished():
                self._step(event.place.step).done += event.status != "paused"
            case TurnFinished():
                used = Spent(turns=1, usage=event.usage, cost_usd=event.cost_usd)
                self._spent = self._spent.plus(used)
            case _:
                pass

    def _take_question(self, stamped: Stamped) -> None:
        for question in self._questions.take(stamped):
            if not question.is_open:
                self._decided.append(question.id)
        while len(self._decided) > MOST_DECIDED:
            self._questions.forget(self._decided.popleft())

    def _step(self, id: str | None) -> StepState:
        name = id or ""
        return self._steps.setdefault(name, StepState(name, None))


@frozen
class ControlledRun:
    """A run that listens: its state, and what else its answers are made of.

    `project` is the resolved pipeline.
    """

    state: RunState
    folder: RunFolder
    secrets: Secrets
    clock: Clock
    project: JsonObject

    @property
    def journal(self) -> Path | None:
        return None if self.folder.path is None else self.folder.path / JOURNAL


def _weight(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return 8 + sum(_weight(key) + _weight(item) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return 8 + sum(map(_weight, value))
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return 8 + sum(_weight(getattr(value, name)) for name in fields)
    return 8
