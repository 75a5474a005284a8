"""The questions of a run: each is open, and then ends exactly once.

Events tell of both. An answer is written down before the call that waits for it goes on.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from secrets import token_hex
from typing import Protocol

import anyio

from aish.core.errors import JournalLostError
from aish.core.events import ApprovalAnswer, ApprovalAnswered, ApprovalAsked, Place, rfc3339
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.protocols import Clock, Emit, Question
from aish.core.tools import Tool

_ID_BYTES = 16
MOST_ENDED = 1000
"""How many questions that have ended are kept, beside the open ones."""


@frozen
class QuestionEnd:
    """End of a question: `by` whom, and `way` from where, as in `approval.answered`."""

    answer: ApprovalAnswer
    by: str
    way: str
    note: str = ""

    @property
    def approves(self) -> bool:
        """True if the call may be made."""
        return self.answer in {"approve", "always"}

    def event(self, place: Place, id: str, digest: str) -> ApprovalAnswered:
        """The end of this question as an event."""
        return ApprovalAnswered(place, id, self.answer, self.by, self.way, self.note, digest)

    @property
    def said(self) -> str:
        """The same in words, for a person who was asked too."""
        if self.answer == "expired":
            return "nobody answered in time: this call is denied"
        if self.answer == "withdrawn":
            return "the question was withdrawn"
        done = "approved" if self.approves else "denied"
        if self.way == "rule":
            return f"answered meanwhile: {done} by rule {self.by}"
        note = f": {self.note}" if self.note else ""
        return f"answered meanwhile: {done} by {self.by} ({self.way}){note}"


EXPIRED = QuestionEnd("expired", "nobody", "time")
WITHDRAWN = QuestionEnd("withdrawn", "aish", "run")


@frozen
class PastQuestion:
    """A question of an earlier part of the run; `expires` is in seconds since the epoch."""

    id: str
    place: Place
    digest: str
    expires: float | None
    end: QuestionEnd | None = None


@frozen
class RecordedAnswer:
    """Recorded answer to a question; `None` if the call was cancelled before one."""

    end: QuestionEnd | None

    @property
    def is_by_rule(self) -> bool:
        """True if a rule of the recorded run gave the answer."""
        return self.end is not None and self.end.way == "rule"


class AnswerRecording(Protocol):
    """The recording of a run, for its questions."""

    @property
    def replays(self) -> bool:
        """True if only recorded answers count, and nobody is asked."""

    def recorded(self, place: Place, tool: Tool, arguments: JsonObject) -> RecordedAnswer | None:
        """The next recorded answer about this call, if there is one left."""

    def begin(self, question: Question) -> Callable[[QuestionEnd], None]:
        """A question is open; its end is to be told to the result."""


class OpenQuestion:
    """A question, and its end if it has ended; `caller_waits` is true while a call waits for it.

    `on_always` is called with this answer, before anything else is decided; `on_end` with any end.
    `recorded` is what a replay answers.
    """

    def __init__(self, id: str, question: Question, digest: str, expires: float | None) -> None:
        self.id = id
        self.question = question
        self.digest = digest
        self.expires = expires
        self.caller_waits = True
        self.ended = anyio.Event()
        self.end: QuestionEnd | None = None
        self.on_always: Callable[[], None] = lambda: None
        self.on_end: Callable[[QuestionEnd], None] = lambda _: None
        self.recorded: RecordedAnswer | None = None

    @property
    def event(self) -> ApprovalAsked:
        """The event that it is open."""
        question, tool = self.question, self.question.tool.name
        return ApprovalAsked(
            place=question.place,
            id=self.id,
            tool=str(tool),
            server=tool.server,
            name=tool.name,
            arguments=question.arguments,
            digest=self.digest,
            reason=question.reason,
            expires=None if self.expires is None else rfc3339(self.expires),
            always=question.always,
        )


class Questions:
    """The open questions of a run, and the latest that ended; `past` are of its earlier parts.

    `recording` is that of the run, if it is recorded or replayed. `answered_elsewhere` is set
    while somebody who is not at the terminal can answer.
    """

    def __init__(
        self,
        emit: Emit = lambda _: None,
        clock: Clock | None = None,
        past: Iterable[PastQuestion] = (),
        recording: AnswerRecording | None = None,
    ) -> None:
        self.recording = recording
        self._emit = emit
        self._clock = clock
        self._all: dict[str, OpenQuestion] = {}
        self._ended: deque[str] = deque()
        self._past = {(one.place, one.digest): one for one in past}
        self.answered_elsewhere = False

    def open(self, question: Question, digest: str, seconds: float | None) -> OpenQuestion:
        """Ask; a question that an earlier part asked about this very call is taken over.

        It may have its answer already. `seconds` is how long it stays open.

        Raises:
            JournalLostError: it was to stay open, and could not be written down.
        """
        past = self._past.pop((question.place, digest), None)
        if past is not None and past.end is not None and past.end.answer == "withdrawn":
            past = None
        # What would be sent is not what was asked about: that question is over.
        self._withdraw_past(lambda place: place == question.place)
        now = 0.0 if self._clock is None else self._clock.now()
        expires = None if seconds is None else now + seconds
        if past is None:
            opened = OpenQuestion(token_hex(_ID_BYTES), question, digest, expires)
        else:
            opened = OpenQuestion(past.id, question, digest, past.expires)
        self._all[opened.id] = opened
        if past is not None and past.end is not None:
            opened.end = past.end
            opened.ended.set()
            self._forget_old(opened.id)
            return opened
        try:
            self._emit(opened.event)
        except JournalLostError:
            del self._all[opened.id]
            raise
        if self.recording is not None:
            opened.on_end = self.recording.begin(question)
        return opened

    def get(self, id: str) -> OpenQuestion | None:
        """The question of this id: open, or one of the latest that ended."""
        return self._all.get(id)

    def past(self, id: str) -> PastQuestion | None:
        """The question of an earlier part with this id that was not taken over so far."""
        return next((one for one in self._past.values() if one.id == id), None)

    @property
    def waiting(self) -> int:
        """Number of open questions, with those of earlier parts that were not asked again."""
        past = sum(1 for one in self._past.values() if one.end is None)
        return past + sum(1 for _ in self.still_open())

    def still_open(self) -> Iterator[OpenQuestion]:
        """Return the questions without an end, in the order in which they were asked."""
        return (one for one in tuple(self._all.values()) if one.end is None)

    def to_decide(self) -> Iterator[OpenQuestion]:
        """Return the questions that are decided at once if the rules change."""
        return self.still_open()

    def settle(self, id: str, end: QuestionEnd) -> QuestionEnd | None:
        """End a question, if it is open; `None`, or how it ended before.

        One of an earlier part has its answer when it is taken over.

        Raises:
            KeyError: there is none of this id.
            JournalLostError: the answer could not be written down, and does not count.
        """
        past = self.past(id)
        if past is not None:
            if past.end is None:
                self._emit(end.event(past.place, id, past.digest))
                self._past[past.place, past.digest] = replace(past, end=end)
            return past.end
        one = self._all[id]
        if one.end is not None:
            return one.end
        # The first to come is the only one, as nothing else runs until it is written.
        self._emit(end.event(one.question.place, id, one.digest))
        one.end = end
        self._forget_old(id)
        one.on_end(end)
        one.ended.set()
        if end.answer == "always":
            one.on_always()
        return None

    def _forget_old(self, ended: str) -> None:
        """Keep no more than the latest ones that ended: each has all arguments of its call."""
        self._ended.append(ended)
        if len(self._ended) > MOST_ENDED:
            self._all.pop(self._ended.popleft(), None)

    def hand_over(self, one: OpenQuestion) -> None:
        """Let the question about the same call that is opened next take over how this one ended."""
        key = one.question.place, one.digest
        self._past[key] = PastQuestion(one.id, *key, one.expires, one.end)

    def seconds_left(self, one: OpenQuestion | PastQuestion) -> float | None:
        """Seconds until it expires."""
        if one.expires is None or self._clock is None:
            return None
        return max(0.0, one.expires - self._clock.now())

    def withdraw(self, concerns: Callable[[Place], bool], *, earlier: bool = True) -> None:
        """End the open questions about calls that are not made any more.

        Also those of `earlier` parts that this part has not come to.
        """
        for one in self.still_open():
            if concerns(one.question.place):
                self.settle(one.id, WITHDRAWN)
        if earlier:
            self._withdraw_past(concerns)

    def _withdraw_past(self, concerns: Callable[[Place], bool]) -> None:
        """End the open questions of earlier parts that are not asked again."""
        for key, past in tuple(self._past.items()):
            if concerns(past.place):
                del self._past[key]
                if past.end is None:
                    self._emit(WITHDRAWN.event(past.place, past.id, past.digest))
