"""The history of a run: its events folded into segments, steps, items, turns and calls.

Takes events as they come, live or from a journal, and returns what has ended; keeps only what is
open. Pure: it does no I/O. `questions.py` folds the questions about calls, for this fold too.

A unit may be returned more than once: a resumed journal repeats some units, and so does a retried
step. Callers use the last one. What was returned changes no more, unless a question of it is
answered after the end of its unit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import assert_never

from aish.core.events import (
    REFUSED,
    AnnotationAdded,
    AnswerPurpose,
    ApprovalAnswered,
    ApprovalAsked,
    AskEnded,
    AskReceived,
    AttachmentsWait,
    BatchCollected,
    BatchPlanned,
    BatchSubmitted,
    ContextFiles,
    ControlCalled,
    ControlEvent,
    ExpectChecked,
    Failure,
    Fallback,
    FilesChanged,
    HistoryReplaced,
    ItemFinished,
    ItemMoved,
    ItemStarted,
    MessagePurpose,
    ModelChosen,
    Notice,
    OutputWaits,
    PipelineSpent,
    Place,
    QuestionAsked,
    ReasoningDelta,
    Retry,
    RuleAdded,
    RunFinished,
    RunStarted,
    ServerConnected,
    SessionClosed,
    SessionOpened,
    Stamped,
    StepFinished,
    StepKind,
    StepStarted,
    TextDelta,
    TextWithdrawn,
    ToolDecided,
    ToolFinished,
    ToolOutput,
    ToolProgress,
    ToolStarted,
    TurnAdded,
    TurnFinished,
    TurnProgress,
    TurnPurpose,
    TurnStarted,
    ValueSet,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue
from aish.journal.questions import QuestionFold, RecordedQuestion

Key = tuple[str, str | None]
"""A step, and the key of an item of it."""
Finished = StepFinished | ItemFinished

# The maximum that code scanning accepts of one run.
_MOST_ANNOTATIONS = 25_000
_FAILED = "endpoint_error"
_RUN_ENDED = frozenset({"interrupted", "run_ended"})
_OF_QUESTIONS: frozenset[type] = frozenset(
    {ApprovalAsked, ApprovalAnswered, ToolDecided, AskReceived, AskEnded, RunStarted, RunFinished}
)
"""The events that open, change or end questions: few of those of a long run."""


@slotted
class Segment:
    """The part of a run in one process: a resumed run has several.

    `seq` here and below is the number of the first event; `finished` is missing if the process was
    killed, or still runs.
    """

    seq: int
    started: RunStarted
    began: float
    ended: float
    finished: RunFinished | None = None


@frozen
class SentRequest:
    """A request to a model: the messages that it adds to the previous one, as `turn.added`.

    `count` is its number of messages, of which `earlier` precede the first one here and belong to
    another step. `talk` is its conversation, `params` are its own parameters. `rewritten` says why
    all messages are included, and not only the new ones. `within` is the number of the containing
    unit.
    """

    seq: int
    place: Place
    attempt: int
    purpose: TurnPurpose
    model: str
    began: float
    messages: Sequence[JsonObject]
    count: int
    earlier: int
    rewritten: str | None
    within: int | None
    talk: Sequence[JsonObject] = ()
    params: JsonObject = field(default_factory=dict)


@frozen
class TurnRecord:
    """A request with its answer; the request is missing if the stream does not contain it."""

    seq: int
    place: Place
    began: float
    ended: float
    said: TurnFinished
    request: SentRequest | None
    within: int | None


@frozen
class Unanswered:
    """A request without an answer: it failed, or the run ended first, which is no `failure`."""

    request: SentRequest
    ended: float
    failure: Failure | None = None


@slotted
class CallRecord:
    """A tool call: as requested by the model, the question, the decision, and its result.

    `sent` is the number of the event by which it was sent to its server; `began` is the time of
    that, or of its first event. `question` is missing if nobody was asked.
    """

    seq: int
    place: Place
    tool: str
    began: float
    ended: float
    within: int | None
    arguments: JsonValue = None
    decided: ToolDecided | None = None
    sent: int | None = None
    finished: ToolFinished | None = None
    question: RecordedQuestion | None = None

    @property
    def is_refused(self) -> bool:
        """True if a rule or the user denied it."""
        return self.decided is not None and self.decided.verdict in REFUSED

    @property
    def waits(self) -> bool:
        """True if the run ended, or goes on, without an answer to its question."""
        question = self.question
        return self.finished is None and question is not None and question.answered is None


@frozen
class Sent:
    """Messages that are sent with the next request, and that no other entry contains.

    `anew` says why, if the previous messages were replaced.
    """

    at: float
    purpose: MessagePurpose
    messages: Sequence[JsonObject]
    anew: str | None = None


@frozen
class Aside:
    """An event between two requests or calls."""

    at: float
    event: Retry | Fallback | Notice | TextWithdrawn


Entry = TurnRecord | CallRecord | Aside | Sent


@slotted
class Unit:
    """A step or an item: its entries in order, and how it ended.

    `started` is missing if the stream has no such event, as for a skipped step; `finished` is
    missing if the run ended first. `within` is the number of the containing unit: the step of an
    item, the step around a sub-pipeline.
    """

    seq: int
    step: str
    item: str | None
    began: float
    ended: float
    kind: StepKind | None
    started: StepStarted | ItemStarted | None
    within: int | None
    entries: list[Entry] = field(default_factory=list)
    checks: list[ExpectChecked] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def key(self) -> Key:
        """Identifies it among the units of its run."""
        return self.step, self.item

    @property
    def calls(self) -> Iterator[CallRecord]:
        return (entry for entry in self.entries if isinstance(entry, CallRecord))

    @property
    def index(self) -> int | None:
        """The index of an item among the items of its step."""
        return self.started.index if isinstance(self.started, ItemStarted) else None

    @property
    def count(self) -> int | None:
        """The number of items of a step, if known at its start."""
        return self.started.count if isinstance(self.started, StepStarted) else None


Ended = Segment | Unit | TurnRecord | Unanswered | CallRecord


class RunAnnotations:
    """The annotations of a run, from its last segment; `left_out` counts those over a limit.

    Each item of a batch may have some: they are grouped by place, and replaced as a group.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._held = 0
        self._of: dict[Place, list[AnnotationAdded]] = {}

    @property
    def found(self) -> list[AnnotationAdded]:
        """The annotations of the run, and those of its sub-pipelines."""
        return [one for several in self._of.values() for one in several]

    def add(self, event: AnnotationAdded) -> None:
        if self._held < _MOST_ANNOTATIONS:
            self._of.setdefault(event.place, []).append(event)
            self._held += 1
        else:
            self.left_out += 1

    def forget(self, place: Place) -> None:
        """Remove annotations that are made again."""
        self._held -= len(self._of.pop(place, ()))


@slotted
class _ConversationFold:
    """A conversation so far; `new` is the first unsent index, `sent` whether any was sent."""

    messages: list[JsonObject] = field(default_factory=list)
    new: int = 0
    sent: bool = False
    rewritten: str | None = None
    asked: list[str] = field(default_factory=list)


_TurnKey = tuple[int | None, str | None, AnswerPurpose]
_CallKey = tuple[int | None, str | None]


@slotted
class _OpenUnit:
    """An open unit, with what is needed to assemble its events."""

    unit: Unit
    attempt: int = 1
    requests: dict[_TurnKey, SentRequest] = field(default_factory=dict)
    calls: dict[_CallKey, CallRecord] = field(default_factory=dict)
    asked: dict[_CallKey, str] = field(default_factory=dict)
    talks: dict[str, _ConversationFold] = field(default_factory=dict)

    @property
    def around(self) -> int | None:
        """The number of the unit that contains its turns and calls."""
        return self.unit.within if self.unit.started is None else self.unit.seq


class RunHistory:
    """Folds the events of one run, in order.

    `segments` are those so far, the last one may be open; `notices` are those outside of any step,
    `annotations` the current ones, `changes` those of files in each of its parts.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.notices: list[Notice] = []
        self.annotations = RunAnnotations()
        self.changes: list[FilesChanged] = []
        self._is_open_segment = False
        self._open: dict[Key, _OpenUnit] = {}
        self._kinds: dict[str, StepKind] = {}
        self._questions = QuestionFold()
        self._waiting: dict[Key, Unit] = {}
        """The ended units with a call that waits: the answer may follow after the run's end."""

    def has(self, step: str) -> bool:
        """True if a step, with those around it, is in the file of the last segment.

        Steps of earlier ones may have been removed, if that was forced.
        """
        paths = self.segments[-1].started.fingerprint if self.segments else ()
        begin = "steps."
        for id in step.split("/"):
            known = {
                path.removeprefix(begin).split(".")[0] for path in paths if path.startswith(begin)
            }
            if known and id not in known:
                return False
            begin = f"{begin.removesuffix('steps.')}{id}/steps."
        return True

    @property
    def started(self) -> RunStarted | None:
        """The start of the last segment."""
        return self.segments[-1].started if self.segments else None

    @property
    def finished(self) -> RunFinished | None:
        """The end of the last segment."""
        return self.segments[-1].finished if self.segments else None

    @property
    def pending(self) -> Sequence[RecordedQuestion]:
        """The open questions; none if the run has finished for good.

        Whether their time has passed is not checked here.
        """
        return self._questions.pending

    def take(self, stamped: Stamped) -> Sequence[Ended]:  # ruff: ignore[complex-structure, too-many-branches, too-many-return-statements] - a union
        """Fold one event in; returns what ended with it, innermost first."""
        event, now = stamped.event, stamped.time
        question = self._question(stamped)
        if self.segments and not isinstance(event, RunStarted | ApprovalAnswered):
            # An answer may be appended long after the end of the process.
            self.segments[-1].ended = now
        match event:
            case TurnStarted():
                unit = self._unit(event.place, stamped)
                return () if unit is None else _ask(unit, event, stamped)
            case TurnFinished():
                unit = self._unit(event.place, stamped)
                return () if unit is None else (_answer(unit, event, stamped),)
            case ToolDecided() | ToolStarted() | ToolFinished():
                unit = self._unit(event.place, stamped)
                return () if unit is None else _call(unit, event, question, stamped)
            case ApprovalAsked():
                unit = self._unit(event.place, stamped)
                if unit is not None:
                    call = _open_call(unit, event, stamped)
                    call.question, call.arguments = question, event.arguments
            case ApprovalAnswered():
                return () if question is None else self._answer_question(question)
            case TurnAdded() | HistoryReplaced():
                unit = self._unit(event.place, stamped)
                if unit is not None:
                    _send(unit, event, now)
            case ItemStarted() | StepStarted():
                return self._begin(event, stamped)
            case ItemFinished() | StepFinished():
                return self._finish(event, stamped)
            case Notice() if (event.place.step, event.place.item) not in self._open:
                # Of the run; or of a step that an earlier part has done, and that ends no more.
                self.notices.append(event)
            case Notice() | Retry() | Fallback() | TextWithdrawn():
                return self._aside(event, stamped)
            case ExpectChecked():
                unit = self._unit(event.place, stamped)
                if unit is not None:
                    unit.unit.checks.append(event)
            case AnnotationAdded():
                self.annotations.add(event)
            case FilesChanged():
                self.changes.append(event)
            case RunStarted():
                # The process of the previous segment was killed during these.
                cut_off = self.rest()
                self.annotations.forget(event.place)
                self.segments.append(Segment(stamped.seq, event, now, now))
                self._is_open_segment = True
                return cut_off
            case RunFinished():
                if self.segments:
                    self.segments[-1].finished = event
                return self.rest()
            case TextDelta() | ReasoningDelta() | TurnProgress() | ToolProgress() | ToolOutput():
                pass
            case QuestionAsked() | ModelChosen() | OutputWaits() | AttachmentsWait():
                pass
            case ContextFiles() | RuleAdded() | ServerConnected() | PipelineSpent():
                pass
            case ControlCalled() | ValueSet() | ControlEvent() | AskReceived() | AskEnded():
                pass
            case ItemMoved() | SessionOpened() | SessionClosed():
                pass
            case BatchPlanned() | BatchSubmitted() | BatchCollected():
                pass
            case _:
                assert_never(event)
        return ()

    def rest(self) -> Sequence[Ended]:
        """The open parts, when there are no more events: innermost first, the segment last."""
        ended: list[Ended] = []
        for one in self._open.values():
            ended += _cut_off(one, one.unit.ended)
        while self._open:
            ended.append(self._close(self._open.popitem()[1].unit))
        if self._is_open_segment:
            self._is_open_segment = False
            ended.append(self.segments[-1])
        return ended

    def around(self, place: Place) -> int | None:
        """The number of the open turn or call at a place, else of its unit."""
        if place.step is None:
            return None
        one = self._open.get((place.step, place.item))
        if one is None:
            return None
        outer = None if one.unit.started is None else one.unit.seq
        if place.turn is None:
            return outer
        call = one.calls.get((place.turn, place.call))
        if call is not None:
            return call.seq
        return next((own.seq for own in one.requests.values() if own.place == place), outer)

    def open_request(self, place: Place, purpose: TurnPurpose) -> SentRequest | None:
        """The request at a place that has no answer yet."""
        unit = None if place.step is None else self._open.get((place.step, place.item))
        return None if unit is None else unit.requests.get((place.turn, place.call, purpose))

    def open_call(self, place: Place) -> CallRecord | None:
        """The call at a place that has no result yet."""
        unit = None if place.step is None else self._open.get((place.step, place.item))
        return None if unit is None else unit.calls.get((place.turn, place.call))

    def _unit(self, place: Place, stamped: Stamped) -> _OpenUnit | None:
        """The unit of an event; created if it has no start event."""
        if place.step is None:
            return None
        key = place.step, place.item
        unit = self._open.get(key)
        if unit is None:
            unit = self._open[key] = self._new(key, stamped, None)
        unit.unit.ended = stamped.time
        return unit

    def _new(
        self, key: Key, stamped: Stamped, started: StepStarted | ItemStarted | None
    ) -> _OpenUnit:
        kind, within, now = self._kinds.get(key[0]), self._outer(key), stamped.time
        return _OpenUnit(Unit(stamped.seq, *key, now, now, kind, started, within))

    def _outer(self, key: Key) -> int | None:
        """The number of the unit that contains a step or an item, if it was started."""
        step, item = key
        outer, slash, _ = step.rpartition("/")
        around: tuple[Key, ...] = ((outer, item), (outer, None)) if slash else ()
        for place in around if item is None else ((step, None), *around):
            one = self._open.get(place)
            if one is not None and one.unit.started is not None:
                return one.unit.seq
        return None

    def _begin(self, event: StepStarted | ItemStarted, stamped: Stamped) -> Sequence[Ended]:
        self.annotations.forget(event.place)
        step = event.place.step
        if step is None:
            return ()
        if isinstance(event, StepStarted):
            self._kinds[step] = event.kind
        key = step, event.place.item
        self._waiting.pop(key, None)
        older = self._open.pop(key, None)
        self._open[key] = self._new(key, stamped, event)
        return () if older is None else _cut_off(older, older.unit.ended)

    def _finish(self, event: Finished, stamped: Stamped) -> Sequence[Ended]:
        one = self._unit(event.place, stamped)
        if one is None:
            return ()
        del self._open[one.unit.key]
        failure = event.error or Failure(_FAILED, "it has no answer")
        why = None if failure.code in _RUN_ENDED else failure
        one.unit.finished = event
        return (*_cut_off(one, stamped.time, why), self._close(one.unit))

    def _close(self, unit: Unit) -> Unit:
        if any(call.waits for call in unit.calls):
            self._waiting[unit.key] = unit
        return unit

    def _question(self, stamped: Stamped) -> RecordedQuestion | None:
        """The question that an event is about, as it is now; a second answer changes none."""
        event = stamped.event
        if event.__class__ not in _OF_QUESTIONS:
            return None
        before = self._questions.get(event.id) if isinstance(event, ApprovalAnswered) else None
        self._questions.take(stamped)
        match event:
            case ApprovalAsked():
                return self._questions.get(event.id)
            case ApprovalAnswered():
                question = self._questions.get(event.id)
                return None if question is before else question
            case ToolDecided() if event.approval is not None:
                # Its answer was used: the question is over.
                return self._questions.forget(event.approval)
            case _:
                return None

    def _answer_question(self, question: RecordedQuestion) -> Sequence[Ended]:
        """An answer; one that is given after the run's end changes a unit that has ended."""
        key = question.asked.place.step or "", question.asked.place.item
        one, ended = self._open.get(key), self._waiting.get(key)
        for calls in (one.calls.values() if one else (), ended.calls if ended else ()):
            for call in calls:
                if call.question is not None and call.question.id == question.id:
                    call.question = question
        if ended is None:
            return ()
        if not any(call.waits for call in ended.calls):
            del self._waiting[key]
        return (ended,)

    def _aside(
        self, event: Notice | Retry | Fallback | TextWithdrawn, stamped: Stamped
    ) -> Sequence[Ended]:
        if isinstance(event, Retry) and _is_of_unit(event):
            self.annotations.forget(event.place)
        unit = self._unit(event.place, stamped)
        if unit is None:
            return ()
        unit.unit.entries.append(Aside(stamped.time, event))
        if not isinstance(event, Retry) or not _is_of_unit(event):
            return ()
        # Expectations of the last attempt apply to the next one.
        unit.unit.checks.clear()
        unit.talks.clear()
        unit.attempt += 1
        return _cut_off(unit, stamped.time, Failure(_FAILED, event.reason))


def fold_records(events: Iterable[Stamped]) -> Iterator[Ended]:
    """All that ended, in order of the ends; then what has no end."""
    history = RunHistory()
    for stamped in events:
        yield from history.take(stamped)
    yield from history.rest()


def _is_of_unit(retry: Retry) -> bool:
    """True if the whole unit is retried, and not only a request of it."""
    return retry.place.turn is None and retry.endpoint == f"step {retry.place.step}"


def _cut_off(unit: _OpenUnit, now: float, why: Failure | None = None) -> Sequence[Ended]:
    """The requests and calls of a unit that have no end; `why` is what it failed with."""
    if not unit.requests and not unit.calls:
        return ()
    ended: list[Ended] = [Unanswered(request, now, why) for request in unit.requests.values()]
    for call in unit.calls.values():
        call.ended = now
        ended.append(call)
    unit.requests.clear()
    unit.calls.clear()
    return ended


def _ask(unit: _OpenUnit, event: TurnStarted, stamped: Stamped) -> Sequence[Ended]:
    """A request is sent: it adds the new messages of its conversation."""
    place = event.place
    key = place.turn, place.call, event.purpose
    older = unit.requests.pop(key, None)
    talk = _talk(unit, event.purpose)
    _put_in_order(talk)
    known = len(talk.messages)
    unit.requests[key] = SentRequest(
        stamped.seq,
        place,
        unit.attempt,
        event.purpose,
        event.model,
        stamped.time,
        tuple(talk.messages[talk.new :]),
        event.messages,
        max(0, event.messages - known),
        talk.rewritten,
        unit.around,
        talk.messages,
        event.params,
    )
    talk.new, talk.rewritten, talk.sent = known, None, True
    return () if older is None else (Unanswered(older, stamped.time),)


def _answer(unit: _OpenUnit, event: TurnFinished, stamped: Stamped) -> TurnRecord:
    """An answer, which becomes the next message of its conversation."""
    place, now = event.place, stamped.time
    request = unit.requests.pop((place.turn, place.call, event.purpose), None)
    if request is None:
        turn = TurnRecord(stamped.seq, place, now - event.seconds, now, event, None, unit.around)
    else:
        message: dict[str, JsonValue] = {"role": "assistant", "text": event.text}
        if event.calls:
            message["calls"] = [
                {"id": one.id, "name": one.name, "arguments": one.arguments} for one in event.calls
            ]
        talk = _talk(unit, event.purpose)
        talk.messages.append(message)
        talk.asked = [one.id for one in event.calls]
        turn = TurnRecord(request.seq, place, request.began, now, event, request, request.within)
    for one in event.calls:
        unit.asked[place.turn, one.id] = one.arguments
    unit.unit.entries.append(turn)
    return turn


def _open_call(
    unit: _OpenUnit,
    event: ApprovalAsked | ToolDecided | ToolStarted | ToolFinished,
    stamped: Stamped,
) -> CallRecord:
    """The open call of an event; created by the first one."""
    place, now = event.place, stamped.time
    call = unit.calls.get((place.turn, place.call))
    if call is None:
        asked = None if place.call is None else unit.asked.get((place.turn, place.call))
        call = CallRecord(stamped.seq, place, event.tool, now, now, unit.around, asked)
        unit.calls[place.turn, place.call] = call
        unit.unit.entries.append(call)
    call.ended = now
    return call


def _call(
    unit: _OpenUnit,
    event: ToolDecided | ToolStarted | ToolFinished,
    question: RecordedQuestion | None,
    stamped: Stamped,
) -> Sequence[CallRecord]:
    """An event of a call; its `question` may have been asked in an earlier part of the run."""
    call = _open_call(unit, event, stamped)
    call.question = question or call.question
    match event:
        case ToolDecided():
            call.decided, call.arguments = event, event.arguments
        case ToolStarted():
            call.sent, call.began = stamped.seq, stamped.time
        case ToolFinished(place=place):
            del unit.calls[place.turn, place.call]
            call.finished = event
            talk = unit.talks.get("answer")
            if talk is not None and place.call in talk.asked:
                reply = {"role": "tool", "call_id": place.call, "tool": event.tool}
                talk.messages.append({**reply, "content": event.content})
            return (call,)
        case _:
            assert_never(event)
    return ()


def _send(unit: _OpenUnit, event: TurnAdded | HistoryReplaced, now: float) -> None:
    """Messages added to a conversation; answers and results have events of their own."""
    anew: str | None = None
    new: Sequence[JsonObject] = ()
    if isinstance(event, HistoryReplaced):
        _replace(unit, event)
        anew = event.reason
        if event.purpose != "conversation":
            new = [turn for turn in event.turns if "at" not in turn]
    else:
        _add(unit, event)
        role = event.turn.get("role")
        if event.purpose != "conversation" or role in {"system", "user"}:
            new = (event.turn,)
    if new or anew is not None:
        unit.unit.entries.append(Sent(now, event.purpose, new, anew))


def _talk(unit: _OpenUnit, purpose: str) -> _ConversationFold:
    talk = unit.talks.get(purpose)
    if talk is None:
        talk = unit.talks[purpose] = _ConversationFold()
    return talk


def _purpose(event: TurnAdded | HistoryReplaced) -> str:
    return "answer" if event.purpose == "conversation" else event.purpose


def _add(unit: _OpenUnit, event: TurnAdded) -> None:
    purpose, message = _purpose(event), event.turn
    role = message.get("role")
    talk = _talk(unit, purpose)
    begins = purpose in {"summary", "sampling"} or (purpose == "judge" and role == "system")
    if begins and talk.sent:
        talk = unit.talks[purpose] = _ConversationFold()
    # The sent message may differ from the recorded one: this replaces it.
    if role == "assistant" and talk.messages and talk.messages[-1].get("role") == "assistant":
        talk.messages[-1] = message
        talk.asked = _ids(message)
        return
    if role == "tool":
        call = message.get("call_id")
        for at in range(talk.new, len(talk.messages)):
            if talk.messages[at].get("call_id") == call:
                talk.messages[at] = message
                return
    talk.messages.append(message)


def _replace(unit: _OpenUnit, event: HistoryReplaced) -> None:
    talk = _talk(unit, _purpose(event))
    _put_in_order(talk)
    before = talk.messages
    talk.messages = []
    for one in event.turns:
        at = one.get("at")
        known = isinstance(at, int) and 0 <= at < len(before)
        talk.messages.append(before[at] if known and isinstance(at, int) else one)
    talk.new, talk.rewritten = 0, event.reason


def _ids(message: Mapping[str, JsonValue]) -> list[str]:
    calls = message.get("calls")
    found = calls if isinstance(calls, list) else []
    return [str(call.get("id")) for call in found if isinstance(call, dict)]


def _put_in_order(talk: _ConversationFold) -> None:
    """Replies are reported as calls end, but sent in the order of the calls."""
    messages = talk.messages
    at = len(messages)
    while at and messages[at - 1].get("role") != "assistant":
        at -= 1
    replies = [one for one in messages[at:] if one.get("role") == "tool"]
    if len(replies) <= 1:
        return
    order = {id: place for place, id in enumerate(talk.asked)}
    replies.sort(key=lambda one: order.get(str(one.get("call_id")), len(order)))
    following = iter(replies)
    messages[at:] = [next(following) if one.get("role") == "tool" else one for one in messages[at:]]
