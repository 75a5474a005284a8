"""Calls that wait for approval by the first available entry of `serve.ask`.

A question is written to `serve.state` before it is shown, and its answer before the call continues.
It belongs to the client and the call, not to a connection: an equal call of the same client joins
it, or uses its answer once, even after a restart. Only the latest of equal calls keeps waiting,
because the client may have given up the others.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from aish.config.model import AskBy
from aish.core.errors import AishError, JournalLostError
from aish.core.events import (
    NOWHERE,
    ApprovalAnswered,
    ApprovalAsked,
    AskEnded,
    AskReceived,
    DecisionLevel,
    Event,
    Notice,
    Place,
    Stamped,
    ToolDecided,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.protocols import Asking, Clock, Emit, Progress, Question
from aish.core.sources import Sources
from aish.core.tools import Tool, definition_of
from aish.features.approvals.hub_questions import MOST_KEPT, HubQuestion, QuestionFolder
from aish.features.approvals.questions import approval_question, as_asked
from aish.mcp.client.server_requests import Call
from aish.policy.gate import Decision, Gate, Proposal
from aish.policy.questions import (
    EXPIRED,
    WITHDRAWN,
    AnswerRecording,
    OpenQuestion,
    QuestionEnd,
    Questions,
)
from aish.serve.calls.client_requests import StreamOwner
from aish.serve.calls.pending_calls import PendingCall, Report
from aish.serve.offer.active import Active
from aish.serve.records.audit import Caller
from aish.system.task_group import task_group

if TYPE_CHECKING:
    # Most files ask no client.
    from aish.serve.calls.approval_form import ApprovalForm

MOST_OPEN = 100
"""How many questions of one client may be open."""
_LOOK_SECONDS = 1.0
"""How often it is looked what other processes have written."""
_LOOK_AGAIN_SECONDS = 0.02
_CLEAN_SECONDS = 3600.0
_PROGRESS_SECONDS = 15.0
_TASK_SECONDS = 0.1
"""How long a call that was held for its time may still become a task."""
_PROGRESS_STEP = 0.001  # less than any progress that the server of the call tells of

Owner = StreamOwner | PendingCall
AnyEvent = TypeVar("AnyEvent", ApprovalAsked, ApprovalAnswered, ToolDecided)
AnswerEvent = Literal["asked", "answered", "waiting"]
Record = Callable[[AnswerEvent, Place, Mapping[str, str]], None]
"""Writes down that a question was asked or answered."""


class TooManyQuestionsError(AishError):
    """The client has too many open questions."""

    code = "busy"


class BusyError(Exception):
    """There is no place for a call."""


class CallPlaces:
    """The places for calls of all sessions, and the number of calls that wait for one."""

    def __init__(self, most: int, most_waiting: int) -> None:
        self.open = 0
        """Calls that were taken and have not ended."""
        self.waiting = 0
        self.most_waiting = most_waiting
        self.all = anyio.Semaphore(most, fast_acquire=True)


class CallPlace:
    """The place of a call in its session and among all calls, while the block runs.

    It can be released and taken again meanwhile.

    Raises:
        BusyError: too many calls already wait for a place.
    """

    def __init__(self, places: CallPlaces, of_session: anyio.Semaphore) -> None:
        self._places = places
        self._semaphores = of_session, places.all
        self._held: list[anyio.Semaphore] = []
        self.has_waited = False

    async def __aenter__(self) -> Self:
        places = self._places
        is_full = any(semaphore.value == 0 for semaphore in self._semaphores)
        if is_full and places.waiting >= places.most_waiting:
            raise BusyError(f"busy: {places.waiting} calls wait already, call again later")
        places.open += 1
        try:
            await self.take()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    async def take(self) -> None:
        """Wait for the place, unless it is already held."""
        self._places.waiting += 1
        try:
            # A free place is taken without waiting, but not by a call that is cancelled already.
            await checkpoint_if_cancelled()
            for semaphore in self._semaphores[len(self._held) :]:
                try:
                    semaphore.acquire_nowait()
                except anyio.WouldBlock:
                    self.has_waited = True
                    await semaphore.acquire()
                self._held.append(semaphore)
        finally:
            self._places.waiting -= 1

    def release(self) -> None:
        """Release the place."""
        while self._held:
            self._held.pop().release()

    def _end(self) -> None:
        self.release()
        self._places.open -= 1


@frozen
class ClientCall:
    """A call in progress: who calls, its place, and how the client is answered.

    `find` returns the tool as it is now, `complete` adds what belongs to the hop to the client, and
    at a cancellation `is_withdrawn` returns true if the client has cancelled this very call. A call
    that has become a task is held until there is an answer. `sources` returns the current sources
    of a call of a tool.
    """

    caller: Caller
    place: CallPlace
    find: Callable[[], Tool | None]
    about: Call
    complete: Callable[[JsonObject], JsonObject]
    owner: Owner
    is_withdrawn: Callable[[], bool]
    sources: Callable[[Tool], Sources]

    def is_cancelled(self) -> bool:
        """True if the client has cancelled this very call, or its task."""
        owner = self.owner
        return self.is_withdrawn() or (isinstance(owner, PendingCall) and owner.is_cancelled)

    def is_task(self) -> bool:
        """True if the call is a task, so that no request waits for its result."""
        return isinstance(self.owner, PendingCall) and self.owner.is_task


@frozen
class Deferred:
    """The hold time of a call is over, and its question `id` is still open.

    If it `is_replaced`, an equal call of its client waits instead.
    """

    id: str
    is_replaced: bool = False


@frozen
class Resolved:
    """The decision on a call, possibly with a changed definition of the tool."""

    decision: Decision
    proposal: Proposal


class HubQuestions(Questions):
    """The questions of all clients, kept in a folder.

    `earlier` are their events so far, for the stream of events.
    """

    def __init__(
        self, folder: QuestionFolder, clock: Clock, masked: Callable[[Event], Event], record: Record
    ) -> None:
        self._listeners: list[Emit] = []
        super().__init__(self._tell, clock)
        self.earlier: list[Stamped] = []
        self._folder = folder
        self._time = clock
        self._masked = masked
        self._record = record
        self._by_call: dict[tuple[str, str], OpenQuestion] = {}
        self._waiting: dict[str, Callable[[], None]] = {}
        """The call that waits for an answer here; is called if a later one takes its place."""
        self._unkept: set[str] = set()
        self._told = ""
        self._looked = -math.inf
        folder.on_event = self.earlier.append
        folder.on_problem = self._problem

    def begin(self) -> None:
        """Load the questions in the folder.

        Raises:
            OSError: the folder cannot be read or cleaned.
        """
        self._folder.clean(self._time.now())
        for record in sorted(self._folder.all(), key=lambda record: record.question.began):
            self._take_over(record)
        self._folder.on_event = self._on_event

    def listen(self, emit: Emit) -> None:
        """Pass each further event about a question to this function."""
        self._listeners.append(emit)

    def open(self, question: Question, digest: str, seconds: float | None) -> OpenQuestion:
        """Open a question, or join the one about an equal call of the same client.

        That question may already have an answer that no call has used.

        Raises:
            JournalLostError: it could not be recorded.
            TooManyQuestionsError: the client has too many.
        """
        if seconds is None:
            # A replay asks nobody, and keeps nothing: its answers are those of the recording.
            opened = super().open(question, digest, None)
            self._unkept.add(opened.id)
            return opened
        key = question.place.step or "", digest
        self._look()
        held = self._find(*key)
        if held is not None:
            held.question = question  # what is kept of an earlier one has no secrets
            return held
        count = sum(1 for entry in self.still_open() if entry.question.place.step == key[0])
        if count >= MOST_OPEN:
            raise TooManyQuestionsError(f"busy: {count} calls of this client wait for approval")
        if len(self._folder.all()) >= 2 * MOST_KEPT:
            self._clean()
        now = self._time.now()
        opened = OpenQuestion(token_hex(16), question, digest, now + seconds)
        stored = self._mask(opened.event)
        with _must_write("the question"):
            self._folder.note(opened.id, stored, now)
        # In place of the one that was made of what is kept, which has no secrets.
        self._all[opened.id] = self._by_call[key] = opened
        if self.recording is not None:
            opened.on_end = partial(_keep_end, self.recording, question)
        self._record("asked", question.place, {"approval": opened.id, "tool": stored.tool})
        return opened

    def find(self, place: Place, digest: str) -> OpenQuestion | None:
        """Return the question that a call of a client can join or use, if there is one."""
        self._look()
        return self._find(place.step or "", digest)

    def _mask(self, event: AnyEvent) -> AnyEvent:
        """Return an event about a question as it is stored."""
        stored = self._masked(event)
        assert isinstance(stored, type(event))
        return stored

    def join(
        self, place: Place, digest: str, replaced: Callable[[], None]
    ) -> tuple[OpenQuestion, bool]:
        """Let a call wait for the answer to its question, and return the question; see `leave`.

        An earlier equal call stops waiting: `replaced` is called if this happens to this one later.
        The second value is false if there already is an answer, for the first to claim it.

        Raises:
            JournalLostError: it could not be recorded.
        """
        entry = self._by_call[place.step or "", digest]
        known, stored = self._folder.get(entry.id), self._mask(entry.event)
        if known is not None and known.question.asked.place != stored.place:
            with _must_write("the question"):
                if not self._folder.ask_again(stored, self._time.now()):
                    return entry, False
        if earlier := self._waiting.pop(entry.id, None):
            earlier()
        self._waiting[entry.id] = replaced
        return entry, True

    def get(self, id: str) -> OpenQuestion | None:
        """Return the question with this id, as it is on disk now."""
        with self._tell_unread():
            self._folder.look_at(id)
        return super().get(id)

    def settle(self, id: str, end: QuestionEnd) -> QuestionEnd | None:
        """Close a question if it is open; else return how it was closed before, here or elsewhere.

        Raises:
            KeyError: there is none with this id.
            JournalLostError: the answer could not be recorded, and does not count.
        """
        if id in self._unkept:
            self._unkept.remove(id)
            return super().settle(id, end)
        entry = self._all[id]
        if entry.end is not None:
            return entry.end
        stored = self._mask(end.event(entry.question.place, id, entry.digest))
        with _must_write("the answer"):
            known = self._folder.answer(stored, self._time.now())
        if known is None:
            return None
        if entry.end is None:
            self.settle(id, EXPIRED)
        return entry.end

    def claim(
        self, decision: Decision, proposal: Proposal, level: DecisionLevel, *, waited: bool
    ) -> bool:
        """Give the end of a question to the latest waiting call; an approval is used only once.

        Raises:
            JournalLostError: that could not be recorded.
        """
        id = decision.approval
        assert id is not None, "somebody was asked"
        # The arguments are those that were asked about.
        decided = replace(decision.event(proposal, level), arguments=None, hint=None)
        stored = self._mask(decided)
        with _must_write("the use of an approval"):
            is_first = self._folder.give(id, stored, self._time.now(), waited=waited)
        if not waited:
            self._use(id)
        # A no is a no for each call that has waited for it.
        return is_first or not decision.allowed

    def to_decide(self) -> Iterator[OpenQuestion]:
        """Return the questions that calls wait for; repeated calls of others are decided anew."""
        return (entry for entry in self.still_open() if entry.id in self._waiting)

    def is_waited_for(self, id: str) -> bool:
        return id in self._waiting

    def leave(self, id: str, replaced: Callable[[], None]) -> bool:
        """Stop waiting for the answer; return true if this call was the one that waited."""
        is_latest = self._waiting.get(id) is replaced
        if is_latest:
            del self._waiting[id]
        return is_latest

    async def watch(self) -> None:
        """Read what other processes write, and close expired questions, until this is cancelled."""
        cleaned = self._time.monotonic()
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            self._look()
            for entry in self.still_open():
                if self.seconds_left(entry) == 0:
                    with self._tell_unread():
                        self.settle(entry.id, EXPIRED)
            if self._time.monotonic() - cleaned > _CLEAN_SECONDS:
                cleaned = self._time.monotonic()
                self._clean()

    def _clean(self) -> None:
        with self._tell_unread():
            self._folder.clean(self._time.now())
        for entry in tuple(self._by_call.values()):
            if entry.end is not None and self._folder.get(entry.id) is None:
                self._let_go(entry)

    def _find(self, client: str, digest: str) -> OpenQuestion | None:
        entry = self._by_call.get((client, digest))
        if entry is None:
            return None
        if entry.end is None and self.seconds_left(entry) == 0:
            self.settle(entry.id, EXPIRED)
        if entry.end is None:
            return entry
        known = self._folder.get(entry.id)
        is_usable = (
            known is not None
            and not known.given
            and entry.end.answer != "withdrawn"
            and self._time.now() <= known.usable_until
        )
        if not is_usable:
            self._let_go(entry)
            return None
        return entry

    def _look(self) -> None:
        # Many calls at once need one look; the next one is not far.
        now = self._time.monotonic()
        if now - self._looked < _LOOK_AGAIN_SECONDS:
            return
        self._looked = now
        with self._tell_unread():
            self._folder.look()

    @contextmanager
    def _tell_unread(self) -> Generator[None]:
        try:
            yield
        except (OSError, JournalLostError) as error:
            self._problem(f"the questions in `serve.state` cannot be read: {error}")

    def _problem(self, text: str) -> None:
        """Report a problem, but not every second."""
        if text != self._told:
            self._told = text
            self._tell(Notice(NOWHERE, "error", "questions_unread", text))

    def _on_event(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, ToolDecided) and event.approval is not None:
            self._use(event.approval)
        elif isinstance(event, ApprovalAsked):
            if event.id not in self._all:
                self._restore(event)
                self._tell(event)
            elif replaced := self._waiting.pop(event.id, None):
                replaced()
        elif isinstance(event, ApprovalAnswered):
            entry = self._all.get(event.id)
            if entry is not None and entry.end is None:
                end = QuestionEnd(event.answer, event.by, event.way, event.note)
                self._end(entry, end)
            self._tell(event)

    def keep(self, event: AskReceived | AskEnded) -> None:
        """Record the question of another program, so that `aish runs pending` lists it."""
        with self._tell_unread():
            self._folder.note(event.request_id, self._masked(event), self._time.now())

    def _take_over(self, held: HubQuestion) -> None:
        if not held.question.asked.server:
            return  # a program waited for the process that is gone
        entry = self._restore(held.question.asked)
        answer = held.question.answer
        if answer is not None:
            entry.end = QuestionEnd(answer.answer, answer.by, answer.way, answer.note)
            entry.ended.set()
            self._forget_old(entry.id)
        if held.given:
            self._use(entry.id)

    def _restore(self, asked: ApprovalAsked) -> OpenQuestion:
        known = self._folder.get(asked.id)
        assert known is not None, "it was just read"
        question = as_asked(approval_question("", known.question))
        entry = OpenQuestion(asked.id, question, asked.digest, known.question.expires_at)
        entry.caller_waits = False
        self._all[entry.id] = self._by_call[asked.place.step or "", asked.digest] = entry
        return entry

    def _end(self, entry: OpenQuestion, end: QuestionEnd) -> None:
        entry.end = end
        if end.answer == "withdrawn":
            self._let_go(entry)
        self._forget_old(entry.id)
        entry.on_end(end)
        entry.ended.set()
        about = {"approval": entry.id, "tool": str(entry.question.tool.name)}
        about |= {"answer": end.answer, "by": end.by, "way": end.way}
        self._record("answered", entry.question.place, about)

    def _use(self, id: str) -> None:
        entry = self._all.get(id)
        if entry is not None:
            self._let_go(entry)

    def _let_go(self, entry: OpenQuestion) -> None:
        """Let no further call join a question or use its answer."""
        key = entry.question.place.step or "", entry.digest
        if self._by_call.get(key) is entry:
            del self._by_call[key]

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


class CallApprovals:
    """Asks about calls and waits for the answers."""

    def __init__(self, gate: Gate, active: Active, questions: HubQuestions, emit: Emit) -> None:
        self.questions = questions
        self.draining = anyio.Event()
        """The server is ending: calls that wait are told to come again."""
        self.gate = gate
        self.active = active
        self._emit = emit
        gate.questions = questions
        gate.offers_always = False  # the rules of a server are those of its file

    async def ask(
        self, call: ClientCall, proposal: Proposal, digest: str
    ) -> Resolved | Deferred | None:
        """Ask about a call, and return the decision; `None` if nobody can be asked.

        The call releases its place while it waits. `digest` is the digest from the gate.

        Raises:
            JournalLostError: the question or the use of its answer cannot be written down.
            TooManyQuestionsError: the client has too many open questions.
        """
        form, deadline = self._form(call.owner), None
        while True:
            asker = self._asker(proposal, form)
            if asker is None and self.questions.find(proposal.place, digest) is None:
                return None
            asked = form if asker == "elicit" else None
            decision, waited, deadline = await self._wait(call, proposal, digest, asked, deadline)
            if isinstance(decision, Deferred) or decision.approval is None:
                return decision if isinstance(decision, Deferred) else Resolved(decision, proposal)
            renewed = self._renew(call, proposal, decision)
            if renewed is None:
                level = self.gate.level(proposal, decision)
                if self.questions.claim(decision, proposal, level, waited=waited):
                    return Resolved(decision, proposal)
            self.gate.drop(decision)
            if renewed is None and waited:
                return Deferred(decision.approval, is_replaced=True)
            if renewed is not None:
                proposal = renewed
                digest = await self.gate.question_digest(proposal)

    def _form(self, owner: Owner) -> "ApprovalForm | None":
        if not owner.fills_forms:
            return None
        from aish.serve.calls.approval_form import ApprovalForm

        return ApprovalForm(owner, self.active.now.plan.secrets)

    def _asker(self, proposal: Proposal, form: "ApprovalForm | None") -> AskBy | None:
        question = Question(proposal.tool, proposal.arguments, "", proposal.place)
        for way in self.active.now.settings.ask:
            if way == "page" and self.questions.answered_elsewhere:
                return way
            if way == "elicit" and form is not None and form.can_ask(question):
                return way
        return None

    def _renew(self, call: ClientCall, proposal: Proposal, decision: Decision) -> Proposal | None:
        """Ask again if the tool of the call has changed while it waited.

        Or if text that its client was given meanwhile, or may have written, holds it.
        """
        now = call.find()
        if now is None:
            return None
        if definition_of(now) == definition_of(proposal.tool):
            return renew_sources(call, proposal, decision, self.gate)
        text = f"{proposal.tool.name} changed after its call was asked about: this is asked again"
        self._emit(Notice(proposal.place, "warning", "tool_changed", text))
        return replace(proposal, tool=now, sources=call.sources(now))

    async def _wait(
        self,
        call: ClientCall,
        proposal: Proposal,
        digest: str,
        form: "ApprovalForm | None",
        deadline: float | None,
    ) -> tuple[Decision | Deferred, bool, float | None]:
        """Return the decision, whether it was waited for, and the end of the hold time.

        The hold time begins with the first question of the call.
        """
        opened: list[OpenQuestion] = []
        decisions: list[Decision] = []
        waited = is_replaced = is_cancelled = False

        def on_replaced() -> None:
            nonlocal is_replaced
            is_replaced = True
            tasks.cancel_scope.cancel()

        def on_ask() -> None:
            nonlocal deadline, waited
            if deadline is None:
                own = None if form is None else form.seconds
                hold = self.active.now.settings.hold if own is None else own
                deadline = anyio.current_time() + hold
            tasks.start_soon(_until_held, deadline, call.is_task, tasks.cancel_scope)
            entry, waited = self.questions.join(proposal.place, digest, on_replaced)
            opened.append(entry)
            call.place.release()
            tasks.start_soon(_tell_waiting, entry.id, call.about.on_progress or (lambda _: None))
            tasks.start_soon(self._until_draining, tasks.cancel_scope)
            if form is not None:
                tasks.start_soon(self._ask_client, entry, form)

        # A server has no run that could pause, so its calls wait.
        set_by = self.active.now.plan.pipeline.asking
        asking = Asking("pause" if set_by.on_ask == "pause" else "wait", set_by.timeout)
        try:
            async with task_group() as tasks:
                decisions.append(await self.gate.decide(proposal, asking, on_ask))
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            is_cancelled = True
            raise
        finally:
            is_latest = bool(opened) and self.questions.leave(opened[0].id, on_replaced)
            # A client that is gone may come back; one that cancels just this call does not want it.
            if is_latest and is_cancelled and call.is_cancelled() and opened[0].end is None:
                self._settle(opened[0], WITHDRAWN, "audit_lost")
        if decisions:
            return decisions[0], waited, deadline
        return Deferred(opened[0].id, is_replaced), waited, deadline

    def _settle(self, entry: OpenQuestion, end: QuestionEnd, code: str) -> None:
        try:
            self.questions.settle(entry.id, end)
        except JournalLostError as error:
            self._emit(Notice(entry.question.place, "error", code, error.message))

    async def _ask_client(self, entry: OpenQuestion, form: "ApprovalForm") -> None:
        end = await form.ask(entry)
        if end is not None:
            self._settle(entry, end, "answer_lost")

    async def _until_draining(self, scope: anyio.CancelScope) -> None:
        await self.draining.wait()
        scope.cancel()


def renew_sources(
    call: ClientCall, proposal: Proposal, decision: Decision, gate: Gate
) -> Proposal | None:
    """Return the decision with the current sources, if they have changed and hold the call."""
    now = call.sources(proposal.tool)
    if not decision.allowed or now == proposal.sources:
        return None
    renewed = replace(proposal, sources=now)
    return renewed if gate.is_held(renewed) else None


@contextmanager
def _must_write(what: str) -> Generator[None]:
    """Fail the call if the block cannot write its record.

    Raises:
        JournalLostError: it could not be written.
    """
    try:
        yield
    except OSError as error:
        message = f"{what} cannot be written down: {error.strerror or error}"
        raise JournalLostError(message) from error


def _keep_end(recording: AnswerRecording, question: Question, end: QuestionEnd) -> None:
    """Record an answer; a question without one is skipped: its client was told to call again."""
    recording.begin(question)(end)


async def _tell_waiting(id: str, report: Report) -> None:
    number = 0
    while True:
        await anyio.sleep(_PROGRESS_SECONDS)
        number += 1
        report(Progress(number * _PROGRESS_STEP, None, f"waiting for approval {id}"))


async def _until_held(
    deadline: float, is_task: Callable[[], bool], scope: anyio.CancelScope
) -> None:
    await anyio.sleep_until(deadline)
    # A task is made at the same moment.
    await anyio.sleep(_TASK_SECONDS)
    if not is_task():
        scope.cancel()
