"""The questions of a run about its tool calls, and of other programs, folded from its events.

Takes events as they come, live or from a journal; does no I/O and
reads no clock. A question is open, and then exactly one of approved, denied, expired and withdrawn:
the first answer counts, and later ones change nothing.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Literal

from aish.core.errors import ExitCode
from aish.core.events import (
    ApprovalAnswer,
    ApprovalAnswered,
    ApprovalAsked,
    AskEnded,
    AskReceived,
    Event,
    RunFinished,
    RunStarted,
    Stamped,
)
from aish.core.frozen import frozen
from aish.core.json import JsonValue, json_text

QuestionState = Literal["open", "approved", "denied", "expired", "withdrawn"]

EVENTS: Collection[type[Event]] = (
    RunStarted,
    RunFinished,
    ApprovalAsked,
    ApprovalAnswered,
    AskReceived,
    AskEnded,
)
"""The events that the fold needs; all others may be left out."""

ASK = "ask"
"""The tool of a question that another program asks; it has no server."""

_STATES: Mapping[ApprovalAnswer, QuestionState] = {
    "approve": "approved",
    "always": "approved",
    "deny": "denied",
    "expired": "expired",
    "withdrawn": "withdrawn",
}

# Ends of a part of a run after which its questions can still be answered.
_KEEP_QUESTIONS = frozenset({ExitCode.PAUSED, ExitCode.INTERRUPTED, ExitCode.TERMINATED})


def ends_questions(finished: RunFinished) -> bool:
    """True if a run has finished for good; one that was paused or interrupted still asks.

    With another end too, such as that of a step which failed, calls may wait. One that was
    interrupted before it asked again counts none, and yet they wait.
    """
    return not finished.waiting and finished.exit.code not in _KEEP_QUESTIONS


@frozen
class RecordedQuestion:
    """A question about a call, and its answer if there is one.

    `began` is when it was asked first: a resumed run asks an open question again, and it remains
    the same question. `caller_waiting` says whether the process that asked still waits for the
    answer. `answered` is the first answer, at `answered_at`; it may have come too late.
    """

    began: float
    asked: ApprovalAsked
    state: QuestionState = "open"
    caller_waiting: bool = True
    answered: ApprovalAnswered | None = None
    answered_at: float = 0.0

    @property
    def id(self) -> str:
        return self.asked.id

    @property
    def is_open(self) -> bool:
        """True if an answer would count, if its time has not passed."""
        return self.state == "open"

    @property
    def answer(self) -> ApprovalAnswered | None:
        """The answer that counted.

        Missing where nobody gave one: while it is open, and where it ended with its time or its
        run.
        """
        answered = self.answered
        return answered if answered is None or _STATES[answered.answer] == self.state else None

    @property
    def expires_at(self) -> float:
        """Seconds since the epoch; infinite if somebody is at the terminal."""
        expires = self.asked.expires
        return math.inf if expires is None else _seconds(expires)

    def at(self, now: float) -> "RecordedQuestion":
        """The same as of a time: it may have expired."""
        if not self.is_open or now < self.expires_at:
            return self
        return replace(self, state="expired", caller_waiting=False)

    @property
    def ends_with_process(self) -> bool:
        """True if nobody can answer it after its process has ended.

        One without an end was only asked at the terminal of that process, and another program waits
        for no other.
        """
        return self.asked.expires is None or not self.asked.server

    def outlives_process(self, now: float) -> bool:
        """True if it may still be answered after its process has ended."""
        return not self.ends_with_process and self.at(now).is_open


class QuestionFold:
    """Folds the questions of one run, in order."""

    def __init__(self) -> None:
        self._held: dict[str, RecordedQuestion] = {}

    @property
    def pending(self) -> Sequence[RecordedQuestion]:
        """The open ones; none if the run has finished for good.

        Whether their time has passed is not checked here.
        """
        return [one for one in self._held.values() if one.is_open]

    def take(self, stamped: Stamped) -> Sequence[RecordedQuestion]:
        """Fold one event in; returns the questions that it opened or ended."""
        event = stamped.event
        if isinstance(event, AskReceived | AskEnded):
            known = self._held.get(event.request_id)
            if known is not None and known.asked.server:
                return ()  # it is about a call
        if isinstance(event, AskReceived):
            event = program_question_as_call(event)
        elif isinstance(event, AskEnded):
            event = answer_to_program(event)
        match event:
            case ApprovalAsked() as asked:
                return self._ask(asked, stamped.time)
            case ApprovalAnswered() as answered:
                return self._answer(answered, stamped.time)
            case RunFinished() as finished if ends_questions(finished):
                return self._withdraw(self._held)
            case RunStarted() | RunFinished():
                return self.without_process()
            case _:
                pass
        return ()

    def without_process(self) -> Sequence[RecordedQuestion]:
        """The process that asked is gone; a resumed run asks again, with the same ids.

        Returns the questions that ended with it.
        """
        ended = self._withdraw([id for id, one in self._held.items() if one.ends_with_process])
        for id, one in self._held.items():
            self._held[id] = replace(one, caller_waiting=False)
        return ended

    def all(self, now: float) -> Sequence[RecordedQuestion]:
        """Every question, in the order in which they were asked, as of a time."""
        return tuple(one.at(now) for one in self._held.values())

    def get(self, id: str) -> RecordedQuestion | None:
        """The question with this id; its time may have passed."""
        return self._held.get(id)

    def forget(self, id: str) -> RecordedQuestion | None:
        """Keep a question no longer, for a run that asks without end; returns it."""
        return self._held.pop(id, None)

    def _ask(self, asked: ApprovalAsked, time: float) -> Sequence[RecordedQuestion]:
        known = self._held.get(asked.id)
        if known is not None and known.answer is not None:
            return ()
        # A resumed run takes the question over, even one that the end of a run had withdrawn.
        question = RecordedQuestion(time if known is None else known.began, asked)
        self._held[asked.id] = question
        return (question,)

    def _answer(self, answered: ApprovalAnswered, time: float) -> Sequence[RecordedQuestion]:
        known = self._held.get(answered.id)
        if known is None or known.answered is not None:
            return ()
        told = replace(known, answered=answered, answered_at=time)
        if not known.is_open:
            self._held[known.id] = told
            return ()
        ended = replace(told, state=_STATES[answered.answer], caller_waiting=False)
        self._held[known.id] = ended
        return (ended,)

    def _withdraw(self, ids: Collection[str]) -> Sequence[RecordedQuestion]:
        ended = []
        for id in ids:
            one = self._held[id]
            if one.is_open:
                self._held[id] = replace(one, state="withdrawn", caller_waiting=False)
                ended.append(self._held[id])
        return tuple(ended)


def program_question_as_call(event: AskReceived) -> ApprovalAsked:
    """The question of another program as one about a call."""
    given = {"title": event.title, "text": event.text, "data": event.data}
    said: dict[str, JsonValue] = {key: value for key, value in given.items() if value}
    digest = sha256(json_text([event.request_id, said]).encode()).hexdigest()
    reason = f"{event.by} asks"
    return ApprovalAsked(
        event.place, event.request_id, ASK, "", ASK, said, digest, reason, event.expires
    )


def answer_to_program(event: AskEnded) -> ApprovalAnswered:
    """The end of such a question as one about a call; only an explicit no is a denial."""
    response = event.response
    said = response if isinstance(response, Mapping) else {"approved": response}
    is_no = event.end == "answered" and said.get("approved") is False
    answer: ApprovalAnswer = "approve" if event.end == "answered" else event.end
    note = said.get("note", response)
    return ApprovalAnswered(
        event.place,
        event.request_id,
        "deny" if is_no else answer,
        event.by,
        event.way,
        note if isinstance(note, str) else "",
    )


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        # Not a time: nobody can say that it has passed.
        return math.inf
