"""Calls that wait for an answer: the first of `serve.ask` that is there decides (H10, H11).

A question is in `serve.state` before anybody sees it, and its answer before the call goes on. It
belongs to the client and the call, not to a connection: the same call of the same client joins it,
or uses its answer once, after a restart too.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Literal, Protocol

import anyio

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
    rfc3339,
)
from aish.core.frozen import frozen
from aish.core.protocols import Asking, Clock, Emit, Progress, Question
from aish.core.tools import Tool, definition_of
from aish.features.approvals.hub_questions import MOST_KEPT, HubQuestion, QuestionFolder
from aish.features.approvals.questions import approval_question, as_asked
from aish.policy.decide import decision_level
from aish.policy.gate import Decision, Gate, Proposal, call_digest
from aish.policy.questions import (
    EXPIRED,
    WITHDRAWN,
    AnswerRecording,
    OpenQuestion,
    QuestionEnd,
    Questions,
)
from aish.serve.offer.active import Active
from aish.system.task_group import task_group

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

Report = Callable[[Progress], None]
AnswerEvent = Literal["asked", "answered", "waiting"]
Record = Callable[[AnswerEvent, Place, Mapping[str, str]], None]
"""Writes down that a question was asked or answered."""


class TooManyQuestionsError(AishError):
    """A client has so many open questions that it may not have another one."""

    code = "busy"


class ClientAsker(Protocol):
    """Asks the client of a call whether it may be made: `elicit` (H10)."""

    @property
    def seconds(self) -> float | None:
        """How long the call may be held meanwhile; `None` is as long as others."""
        ...

    def can_ask(self, question: Question) -> bool:
        """Whether this client can be asked about this call, and shown all of it."""
        ...

    async def ask(self, question: OpenQuestion) -> QuestionEnd | None:
        """Its answer; `None` if there is none, and the question stays open."""
        ...


@frozen
class WaitingCall:
    """A call that is to be asked about.

    `digest` is what the gate has found, `find` finds the tool as it is now, `released` gives its
    place back while it waits, and `is_withdrawn` says at its cancellation whether the client has
    cancelled just this call. One that is a task by then is held until there is an answer.
    """

    proposal: Proposal
    digest: str
    find: Callable[[], Tool | None]
    report: Report
    client: ClientAsker | None
    released: Callable[[], None]
    is_withdrawn: Callable[[], bool]
    is_task: Callable[[], bool]


@frozen
class HeldOver:
    """A call was held for as long as calls are; its question `id` is still open."""

    id: str


@frozen
class Settled:
    """The decision on a call, which may be of the tool as it is defined now."""

    decision: Decision
    proposal: Proposal


class HubQuestions(Questions):
    """The questions of all clients, which are kept in a folder.

    `earlier` are their events so far, for those who follow the stream of events.
    """

    def __init__(
        self,
        folder: QuestionFolder,
        clock: Clock,
        masked: Callable[[Event], Event],
        record: Record,
    ) -> None:
        self._listeners: list[Emit] = []
        super().__init__(self._tell, clock)
        self.earlier: list[Stamped] = []
        self._folder = folder
        self._time = clock
        self._masked = masked
        self._record = record
        self._by_call: dict[tuple[str, str], OpenQuestion] = {}
        self._callers: Counter[str] = Counter()
        self._unkept: set[str] = set()
        self._told = ""
        self._looked = -math.inf
        folder.on_event = self.earlier.append
        folder.on_problem = self._problem

    def begin(self) -> None:
        """Take over what is in the folder.

        Raises:
            OSError: it cannot be read or cleaned.
        """
        self._folder.clean(self._time.now())
        for one in sorted(self._folder.all(), key=lambda one: one.question.began):
            self._take_over(one)
        self._folder.on_event = self._seen

    def listen(self, emit: Emit) -> None:
        """Pass on each event about a question from now on."""
        self._listeners.append(emit)

    def open(self, question: Question, digest: str, seconds: float | None) -> OpenQuestion:
        """Ask, or join the question about the same call of the same client.

        It may have its answer already, which no call has had.

        Raises:
            JournalLostError: it could not be written down.
            TooManyQuestionsError: the client has too many.
        """
        if seconds is None:
            # A replay asks nobody, and keeps nothing: its answers are those of the recording.
            opened = super().open(question, digest, None)
            self._unkept.add(opened.id)
            return opened
        key = question.place.step or "", digest
        self._look()
        held = self._held(*key)
        if held is not None:
            held.question = question  # what is kept of an earlier one has no secrets
            return held
        count = sum(1 for one in self.still_open() if one.question.place.step == key[0])
        if count >= MOST_OPEN:
            raise TooManyQuestionsError(f"busy: {count} calls of this client wait for approval")
        if len(self._folder.all()) >= 2 * MOST_KEPT:
            self._clean()
        now = self._time.now()
        opened = OpenQuestion(token_hex(16), question, digest, now + seconds)
        asked = ApprovalAsked(
            place=question.place,
            id=opened.id,
            tool=str(question.tool.name),
            server=question.tool.name.server,
            name=question.tool.name.name,
            arguments=question.arguments,
            digest=digest,
            reason=question.reason,
            expires=rfc3339(now + seconds),
        )
        stored = self._masked(asked)
        assert isinstance(stored, ApprovalAsked)
        try:
            self._folder.ask(stored, now)
        except OSError as error:
            said = f"the question cannot be written down: {error.strerror or error}"
            raise JournalLostError(said) from error
        self._all[opened.id] = self._by_call[key] = opened
        if self.recording is not None:
            opened.on_end = partial(_keep_end, self.recording, question)
        self._record("asked", question.place, {"approval": opened.id, "tool": asked.tool})
        self._tell(asked)
        return opened

    def held(self, place: Place, digest: str) -> OpenQuestion | None:
        """The question about a call of a client, if there is one that it can join or use."""
        self._look()
        return self._held(place.step or "", digest)

    def joined(self, place: Place, digest: str) -> OpenQuestion:
        """The question about a call, which waits for its answer from now on; see `left_by`."""
        one = self._by_call[place.step or "", digest]
        self._callers[one.id] += 1
        return one

    def get(self, id: str) -> OpenQuestion | None:
        """The question of this id, as it is on disk now."""
        try:
            self._folder.look_at(id)
        except OSError as error:
            self._unread(error)
        return super().get(id)

    def settle(self, id: str, end: QuestionEnd) -> QuestionEnd | None:
        """End a question, if it is open; `None`, or how it ended before, here or elsewhere (A6).

        Raises:
            KeyError: there is none of this id.
            JournalLostError: the answer could not be written down, and does not count.
        """
        if id in self._unkept:
            self._unkept.remove(id)
            return super().settle(id, end)
        one = self._all[id]
        if one.end is not None:
            return one.end
        place = one.question.place
        answered = ApprovalAnswered(place, id, end.answer, end.by, end.way, end.note)
        stored = self._masked(answered)
        assert isinstance(stored, ApprovalAnswered)
        try:
            known = self._folder.answer(stored, self._time.now())
        except OSError as error:
            said = f"the answer cannot be written down: {error.strerror or error}"
            raise JournalLostError(said) from error
        if known is not None:
            if one.end is None:
                self.settle(id, EXPIRED)
            return one.end
        self._ended_by(one, end)
        self._tell(answered)
        return None

    def claim(self, decision: Decision, proposal: Proposal, level: DecisionLevel) -> bool:
        """Give the end of a question to a call, once and for all; a yes only to one.

        Raises:
            JournalLostError: that could not be written down.
        """
        id = decision.approval
        assert id is not None, "somebody was asked"
        decided = ToolDecided(
            place=proposal.place,
            tool=str(proposal.tool.name),
            server=proposal.tool.name.server,
            name=proposal.tool.name.name,
            arguments=None,  # as they were asked about
            digest=decision.digest,
            verdict=decision.verdict,
            rule=decision.rule,
            level=level,
            approval=id,
        )
        stored = self._masked(decided)
        assert isinstance(stored, ToolDecided)
        try:
            is_first = self._folder.give(id, stored, self._time.now())
        except OSError as error:
            said = f"the use of an approval cannot be written down: {error.strerror or error}"
            raise JournalLostError(said) from error
        self._given(id)
        # A no is a no for each call that has waited for it.
        return is_first or not decision.allowed

    def to_decide(self) -> Iterator[OpenQuestion]:
        """Those for which calls wait; of the others the rules decide when the call comes again."""
        return (one for one in self.still_open() if self._callers[one.id])

    def callers(self, id: str) -> int:
        """How many calls wait for the answer now."""
        return self._callers[id]

    def left_by(self, id: str) -> None:
        """A call does not wait any more."""
        self._callers[id] -= 1
        if self._callers[id] <= 0:
            del self._callers[id]

    async def watch(self) -> None:
        """Follow what other processes write, and end what has expired, until this is cancelled."""
        cleaned = self._time.monotonic()
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            self._look()
            for one in self.still_open():
                if self.left(one) == 0:
                    try:
                        self.settle(one.id, EXPIRED)
                    except JournalLostError as error:
                        self._unread(error)
            if self._time.monotonic() - cleaned > _CLEAN_SECONDS:
                cleaned = self._time.monotonic()
                self._clean()

    def _clean(self) -> None:
        """Forget what ended long ago, or is more than is kept, on disk and here."""
        try:
            self._folder.clean(self._time.now())
        except OSError as error:
            self._unread(error)
        for one in tuple(self._by_call.values()):
            if one.end is not None and self._folder.get(one.id) is None:
                self._let_go(one)

    def _held(self, client: str, digest: str) -> OpenQuestion | None:
        one = self._by_call.get((client, digest))
        if one is None:
            return None
        if one.end is None and self.left(one) == 0:
            self.settle(one.id, EXPIRED)
        if one.end is None:
            return one
        known = self._folder.get(one.id)
        is_usable = (
            known is not None
            and not known.given
            and one.end.answer != "withdrawn"
            and self._time.now() <= known.usable_until
        )
        if not is_usable:
            self._let_go(one)
            return None
        return one

    def _look(self) -> None:
        # Many calls at once need one look; the next one is not far.
        now = self._time.monotonic()
        if now - self._looked < _LOOK_AGAIN_SECONDS:
            return
        self._looked = now
        try:
            self._folder.look()
        except OSError as error:
            self._unread(error)

    def _unread(self, error: Exception) -> None:
        self._problem(f"the questions in `serve.state` cannot be read: {error}")

    def _problem(self, text: str) -> None:
        """Tell what is wrong, but not each second."""
        if text != self._told:
            self._told = text
            self._tell(Notice(NOWHERE, "error", "questions_unread", text))

    def _seen(self, stamped: Stamped) -> None:
        """Another process has written this."""
        event = stamped.event
        if isinstance(event, ToolDecided) and event.approval is not None:
            self._given(event.approval)
        elif isinstance(event, ApprovalAsked):
            self._restore(event)
            self._tell(event)
        elif isinstance(event, ApprovalAnswered):
            one = self._all.get(event.id)
            if one is not None and one.end is None:
                end = QuestionEnd(event.answer, event.by, event.way, event.note)
                self._ended_by(one, end)
            self._tell(event)

    def keep(self, event: AskReceived | AskEnded) -> None:
        """Write down what another program asks, so that `aish runs pending` lists it."""
        try:
            self._folder.note(event.request_id, self._masked(event), self._time.now())
        except OSError as error:
            self._unread(error)

    def _take_over(self, held: HubQuestion) -> None:
        if not held.question.asked.server:
            return  # a program waited for the process that is gone
        one = self._restore(held.question.asked)
        given = held.question.answer
        if given is not None:
            one.end = QuestionEnd(given.answer, given.by, given.way, given.note)
            one.ended.set()
            self._forget_old(one.id)
        if held.given:
            self._given(one.id)

    def _restore(self, asked: ApprovalAsked) -> OpenQuestion:
        """A question of an earlier process, or of another one."""
        known = self._folder.get(asked.id)
        assert known is not None, "it was just read"
        shown = as_asked(approval_question("", known.question))
        one = OpenQuestion(asked.id, shown, asked.digest, known.question.expires_at)
        one.caller_waits = False
        self._all[one.id] = self._by_call[asked.place.step or "", asked.digest] = one
        return one

    def _ended_by(self, one: OpenQuestion, end: QuestionEnd) -> None:
        one.end = end
        if end.answer == "withdrawn":
            self._let_go(one)
        self._forget_old(one.id)
        one.on_end(end)
        one.ended.set()
        about = {"approval": one.id, "tool": str(one.question.tool.name)}
        about |= {"answer": end.answer, "by": end.by, "way": end.way}
        self._record("answered", one.question.place, about)

    def _given(self, id: str) -> None:
        one = self._all.get(id)
        if one is not None:
            self._let_go(one)

    def _let_go(self, one: OpenQuestion) -> None:
        """No call can join a question any more, or use its answer."""
        key = one.question.place.step or "", one.digest
        if self._by_call.get(key) is one:
            del self._by_call[key]

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


class Approvals:
    """Asks about calls, and waits for the answers."""

    def __init__(
        self,
        gate: Gate,
        active: Active,
        questions: HubQuestions,
        emit: Emit,
    ) -> None:
        self.questions = questions
        self.draining = anyio.Event()
        """The server is ending: calls that wait are told to come again."""
        self.gate = gate
        self.active = active
        self._emit = emit
        gate.questions = questions
        gate.offers_always = False  # the rules of a server are those of its file

    async def ask(self, call: WaitingCall) -> Settled | HeldOver | None:
        """The decision on a call that is asked about; `None` if nobody is there to be asked.

        Raises:
            JournalLostError: the question or the use of its answer cannot be written down.
            TooManyQuestionsError: the client has too many open questions.
        """
        deadline: float | None = None
        while True:
            asker = self._asker(call)
            if asker is None and self.questions.held(call.proposal.place, call.digest) is None:
                return None
            found, deadline = await self._asked(call, asker, deadline)
            if isinstance(found, HeldOver) or found.approval is None:
                return found if isinstance(found, HeldOver) else Settled(found, call.proposal)
            renewed = self._renewed(call)
            if renewed is None:
                level = decision_level(self.gate.policy, call.proposal.tool, found.verdict)
                if self.questions.claim(found, call.proposal, level):
                    return Settled(found, call.proposal)
                renewed = call
            self.gate.drop(found)
            call = renewed

    def _asker(self, call: WaitingCall) -> AskBy | None:
        """The first of `serve.ask` that is there."""
        tool, place = call.proposal.tool, call.proposal.place
        question = Question(tool, call.proposal.arguments, "", place)
        for one in self.active.now.settings.ask:
            if one == "page" and self.questions.answered_elsewhere:
                return one
            if one == "elicit" and call.client is not None and call.client.can_ask(question):
                return one
        return None

    def _asking(self) -> Asking:
        """How long questions are open; a server has no run that could pause, so its calls wait."""
        asking = self.active.now.plan.pipeline.asking
        return Asking("pause" if asking.on_ask == "pause" else "wait", asking.timeout)

    def _renewed(self, call: WaitingCall) -> WaitingCall | None:
        """The same call of the tool as it is now, if that has changed while the call waited."""
        tool, place = call.proposal.tool, call.proposal.place
        now = call.find()
        if now is None or definition_of(now) == definition_of(tool):
            return None
        text = f"{tool.name} changed after its call was asked about: this is asked again"
        self._emit(Notice(place, "warning", "tool_changed", text))
        proposal = replace(call.proposal, tool=now)
        digest = call_digest(self.gate.run, place, now, proposal.arguments)
        return replace(call, proposal=proposal, digest=digest)

    async def _asked(
        self, call: WaitingCall, asker: AskBy | None, deadline: float | None
    ) -> tuple[Decision | HeldOver, float | None]:
        """What comes of asking, and until when the call is held: from its first question on."""
        opened: list[OpenQuestion] = []
        decisions: list[Decision] = []

        def asked() -> None:
            nonlocal deadline
            if deadline is None:
                own = call.client.seconds if asker == "elicit" and call.client is not None else None
                hold = self.active.now.settings.hold if own is None else own
                deadline = anyio.current_time() + hold
            tasks.start_soon(_until_held, deadline, call.is_task, tasks.cancel_scope)
            one = self.questions.joined(call.proposal.place, call.digest)
            opened.append(one)
            call.released()
            tasks.start_soon(_tell_waiting, one.id, call.report)
            tasks.start_soon(self._until_draining, tasks.cancel_scope)
            if asker == "elicit" and call.client is not None:
                tasks.start_soon(self._ask_client, one, call.client)

        try:
            async with task_group() as tasks:
                decisions.append(await self.gate.decide(call.proposal, self._asking(), asked))
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            if opened:
                self._cancelled(opened[0], call)
            raise
        finally:
            if opened:
                self.questions.left_by(opened[0].id)
        return (decisions[0] if decisions else HeldOver(opened[0].id)), deadline

    def _cancelled(self, one: OpenQuestion, call: WaitingCall) -> None:
        """A client that is gone may come back; one that has cancelled its call does not want it."""
        is_last = self.questions.callers(one.id) == 1
        if call.is_withdrawn() and is_last and one.end is None:
            try:
                self.questions.settle(one.id, WITHDRAWN)
            except JournalLostError as error:
                self._emit(Notice(call.proposal.place, "error", "audit_lost", str(error)))

    async def _ask_client(self, one: OpenQuestion, client: ClientAsker) -> None:
        end = await client.ask(one)
        if end is not None:
            try:
                self.questions.settle(one.id, end)
            except JournalLostError as error:
                self._emit(Notice(one.question.place, "error", "answer_lost", error.message))

    async def _until_draining(self, scope: anyio.CancelScope) -> None:
        await self.draining.wait()
        scope.cancel()


def _keep_end(recording: AnswerRecording, question: Question, end: QuestionEnd) -> None:
    """Record an answer; a question without one is left out: its client was told to call again."""
    recording.begin(question)(end)


async def _tell_waiting(id: str, report: Report) -> None:
    """Tell a client from time to time that its call still waits."""
    number = 0
    while True:
        await anyio.sleep(_PROGRESS_SECONDS)
        number += 1
        report(Progress(number * _PROGRESS_STEP, None, f"waiting for approval {id}"))


async def _until_held(
    deadline: float, is_task: Callable[[], bool], scope: anyio.CancelScope
) -> None:
    """Let a call go that was held for its time, unless it is a task."""
    await anyio.sleep_until(deadline)
    # A task is made at the same moment.
    await anyio.sleep(_TASK_SECONDS)
    if not is_task():
        scope.cancel()
