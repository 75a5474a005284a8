"""Serves the open questions of runs that no process executes, until they are answered.

The API and the page are those of a run; an answer is recorded in the journal of the run that asked.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from secrets import token_hex

import anyio

from aish import __version__
from aish.core.errors import ExitCode, JournalLostError
from aish.core.events import ApprovalAsked, RunStarted
from aish.core.frozen import frozen
from aish.core.protocols import Clock, Emit
from aish.engine.environment import RunHandle
from aish.engine.run_folder import RunFolder
from aish.features.approvals.answer import GivenAnswer, NotAnsweredError, record_answer
from aish.features.approvals.pending import questions_of, runs_with_questions
from aish.features.approvals.questions import ApprovalQuestion, as_asked
from aish.features.control.live_process import live_process
from aish.features.control.run_state import ControlledRun, RunState
from aish.features.control.server import ListenRequest, open_control
from aish.features.history.run_store import RunStore
from aish.net.listen.addresses import Exposure
from aish.output.event_log import EventLog
from aish.policy.questions import EXPIRED, WITHDRAWN, OpenQuestion, QuestionEnd, Questions
from aish.system.secrets.secrets import Secrets
from aish.system.task_group import task_group

_LOOK_SECONDS = 1.0


@frozen
class PausedQuestion:
    """An open question of a run that is not being executed, and where the run is."""

    store: RunStore
    question: ApprovalQuestion


def find_questions(stores: Sequence[RunStore]) -> Sequence[PausedQuestion]:
    """The open questions of runs that no process executes; of each run in their order."""
    found: list[PausedQuestion] = []
    for run in runs_with_questions(stores, time.time()):
        with suppress(FileNotFoundError):
            if not live_process(run.store, run.id)[0]:
                found += (PausedQuestion(run.store, one) for one in run.questions if one.is_open)
    return found


class _PausedQuestions(Questions):
    """These questions; an answer counts once it is in the journal of its run."""

    def __init__(self, emit: Emit, clock: Clock, paused: Sequence[PausedQuestion]) -> None:
        super().__init__(emit, clock)
        self._paused = {entry.question.id: entry for entry in paused}
        self._tell = emit
        for entry in paused:
            asked, question = as_asked(entry.question), entry.question
            expires = None
            if question.expires is not None:
                expires = datetime.fromisoformat(question.expires).timestamp()
            opened = OpenQuestion(question.id, asked, question.digest, expires)
            opened.caller_waits = False
            self._all[question.id] = opened

    def settle(self, id: str, end: QuestionEnd) -> QuestionEnd | None:
        """End a question, if it is open; `None`, or how it ended before, here or elsewhere.

        Raises:
            KeyError: there is none of this id.
            JournalLostError: the answer could not be written down, and does not count.
        """
        entry, paused = self._all[id], self._paused[id]
        if entry.end is not None:
            return entry.end
        before = None
        if end.answer in {"approve", "always", "deny"}:
            answer = GivenAnswer(end.answer, end.by, end.way, end.note)
            try:
                record_answer(paused.store, paused.question, answer, time.time())
            except NotAnsweredError:
                before = end = _end_elsewhere(paused) or WITHDRAWN
            except OSError as error:
                message = f"the answer cannot be written down: {error.strerror or error}"
                raise JournalLostError(message) from error
        self._end(entry, end)
        return before

    def look(self) -> None:
        """End the questions that were answered elsewhere, or have expired."""
        for question in self.still_open():
            with suppress(OSError):
                end = _end_elsewhere(self._paused[question.id])
                if end is not None:
                    self._end(question, end)

    def _end(self, question: OpenQuestion, end: QuestionEnd) -> None:
        question.end = end
        self._tell(end.event(question.question.place, question.id, question.digest))
        question.ended.set()


def _end_elsewhere(paused: PausedQuestion) -> QuestionEnd | None:
    """The end of a question by the journal; `None` if it is open."""
    now = questions_of(paused.store, paused.question.run, time.time())
    question = next((one for one in now if one.id == paused.question.id), None)
    if question is not None and question.is_open and live_process(paused.store, question.run)[0]:
        return WITHDRAWN  # the run goes on, and asks for itself
    if question is None or question.state == "withdrawn":
        return WITHDRAWN
    if question.state == "expired":
        return EXPIRED
    if question.answer is None:
        return None
    answer = question.answer
    answer_text = "deny" if question.state == "denied" else "approve"
    return QuestionEnd(answer_text, answer.by, answer.way, answer.note)  # type: ignore[arg-type]  # one of both


async def serve_questions(
    paused: Sequence[PausedQuestion],
    addresses: Sequence[str],
    exposure: Exposure,
    clock: Clock,
    announce: Callable[[str, str | None], None],
) -> ExitCode:
    """Serve these questions until each has ended, or the server is told to stop.

    `announce` is told where it listens, and a link to its page if it has one.

    Raises:
        UsageError: an address cannot be opened.
    """
    secrets, id = Secrets(), f"pending-{token_hex(8)}"
    folder = RunFolder(id, None, secrets.mask)
    state = RunState(id, "paused runs", {}, clock)
    run = ControlledRun(state, folder, secrets, clock, {})
    listen = ListenRequest(tuple(addresses), "--listen", exposure)
    code = ExitCode.OK
    with open_control(listen, run) as control:
        log = EventLog([state], clock=clock, secrets=secrets)
        questions = _PausedQuestions(log.emit, clock, paused)
        async with task_group() as tasks:

            def stop(exit_code: ExitCode) -> None:
                nonlocal code
                code = exit_code
                tasks.cancel_scope.cancel()

            control.attach(RunHandle(questions, log.emit, stop))
            log.emit(RunStarted(__version__, "paused runs", "", (), (), (), {}, {}))
            for question in paused:
                log.emit(_approval_event(question.question))
            async with control.serve():
                announce(", ".join(map(str, control.addresses)), control.link())
                while any(True for _ in questions.still_open()):
                    with anyio.move_on_after(_LOOK_SECONDS):
                        await next(questions.still_open()).ended.wait()
                    questions.look()
            tasks.cancel_scope.cancel()
        log.close()
    return code


def _approval_event(question: ApprovalQuestion) -> ApprovalAsked:
    """The question as an event of this server; its place names the run."""
    asked = as_asked(question)
    where = " ".join(part for part in (question.run, question.step) if part)
    return ApprovalAsked(
        replace(asked.place, step=where),
        question.id,
        question.tool,
        question.server,
        asked.tool.name.name,
        question.arguments,
        question.digest,
        question.reason,
        question.expires,
        question.always,
    )
