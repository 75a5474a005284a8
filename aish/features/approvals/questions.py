"""The questions of a run about its tool calls, folded from its events (A6).

The fold takes events as they come, live or from a journal; it does no I/O and reads no clock. A
question is open, and then exactly one of approved, denied, expired and withdrawn: the first answer
counts, and later ones change nothing.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

from aish.core.events import (
    ApprovalAnswer,
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    Place,
    RunFinished,
    RunStarted,
    Stamped,
    rfc3339,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue

QuestionState = Literal["open", "approved", "denied", "expired", "withdrawn"]

EVENTS: Collection[type[Event]] = (RunStarted, RunFinished, ApprovalAsked, ApprovalAnswered)
"""What the fold needs of a run; all other events may be left out."""

_STATES: Mapping[ApprovalAnswer, QuestionState] = {
    "approve": "approved",
    "always": "approved",
    "deny": "denied",
    "expired": "expired",
    "withdrawn": "withdrawn",
}


def ends_questions(finished: RunFinished) -> bool:
    """Whether a run has finished for good; one that was paused or interrupted still asks."""
    return not finished.waiting


@frozen
class QuestionAnswer:
    """Who ended a question, from where (`terminal`, `command`, …), and what they wrote about it."""

    by: str
    way: str
    note: str
    time: str


@frozen
class ApprovalQuestion:
    """A tool call that was asked about, as `aish runs pending` and the control API show it.

    `caller_waiting` says whether the process that asked still waits for the answer. `answer` is
    missing where nobody gave one: while it is open, and where it ended with its time or its run.
    """

    id: str
    run: str
    step: str | None
    item: str | None
    server: str
    tool: str
    arguments: JsonValue
    digest: str
    reason: str
    asked: str
    expires: str | None
    state: QuestionState
    caller_waiting: bool
    answer: QuestionAnswer | None

    @property
    def is_open(self) -> bool:
        """Whether an answer would count."""
        return self.state == "open"


@slotted
class _Held:
    """A question, where in the run its call is, and until when an answer counts."""

    question: ApprovalQuestion
    place: Place
    expires: float | None

    def at(self, now: float) -> ApprovalQuestion:
        question = self.question
        if not question.is_open or self.expires is None or now < self.expires:
            return question
        return replace(question, state="expired", caller_waiting=False)


class ApprovalQuestions:
    """Folds the events of one run, in order; asked for its questions at a time."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._held: dict[str, _Held] = {}

    def take(self, stamped: Stamped) -> Sequence[ApprovalQuestion]:
        """Fold one event in; returns the questions that it opened or ended."""
        match stamped.event:
            case ApprovalAsked() as asked:
                return self._ask(asked, stamped.time)
            case ApprovalAnswered(id=id) as answered:
                state = _STATES[answered.answer]
                time = rfc3339(stamped.time)
                answer = QuestionAnswer(answered.by, answered.way, answered.note, time)
                return self._end([id], state, answer)
            case RunFinished() as finished if ends_questions(finished):
                return self._end(self._held, "withdrawn", None)
            case RunStarted() | RunFinished():
                return self.without_process()
            case _:
                pass
        return ()

    def without_process(self) -> Sequence[ApprovalQuestion]:
        """The process that asked is gone; a resumed run asks again, with the same ids.

        Returns the questions that ended with it: those that were asked only at its terminal.
        """
        of_terminal = [id for id, held in self._held.items() if held.expires is None]
        ended = self._end(of_terminal, "withdrawn", None)
        for held in self._held.values():
            held.question = replace(held.question, caller_waiting=False)
        return ended

    def all(self, now: float) -> Sequence[ApprovalQuestion]:
        """Every question, in the order in which they were asked, as of a time."""
        return tuple(held.at(now) for held in self._held.values())

    def get(self, id: str, now: float) -> ApprovalQuestion | None:
        """The question with this id, as of a time."""
        held = self._held.get(id)
        return None if held is None else held.at(now)

    def forget(self, id: str) -> None:
        """Keep a question no longer, for a run that asks without end."""
        self._held.pop(id, None)

    def place(self, id: str) -> Place:
        """Where in the run the call of a known question is."""
        return self._held[id].place

    def _ask(self, event: ApprovalAsked, time: float) -> Sequence[ApprovalQuestion]:
        known = self._held.get(event.id)
        asked = rfc3339(time)
        if known is not None:
            if known.question.answer is not None:
                return ()
            # A resumed run takes the question over, even one that the end of a run had withdrawn.
            asked = known.question.asked
        question = ApprovalQuestion(
            id=event.id,
            run=self._run,
            step=event.place.step,
            item=event.place.item,
            server=event.server,
            tool=event.tool,
            arguments=event.arguments,
            digest=event.digest,
            reason=event.reason,
            asked=asked,
            expires=event.expires,
            state="open",
            caller_waiting=True,
            answer=None,
        )
        expires = None if event.expires is None else _seconds(event.expires)
        self._held[event.id] = _Held(question, event.place, expires)
        return (question,)

    def _end(
        self, ids: Collection[str], state: QuestionState, answer: QuestionAnswer | None
    ) -> Sequence[ApprovalQuestion]:
        ended = []
        for id in ids:
            held = self._held.get(id)
            if held is not None and held.question.is_open:
                held.question = replace(
                    held.question, state=state, caller_waiting=False, answer=answer
                )
                ended.append(held.question)
        return tuple(ended)


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        # Not a time: nobody can say that it has passed.
        return math.inf
