"""The answer to a question, recorded in the journal of its run.

The journal is locked, and the question read again under the lock: of several answers the first one
counts, and each of the others is an error that names it. Nothing is executed.
"""

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from aish.core.errors import AishError, UsageError, did_you_mean
from aish.core.events import ApprovalAnswered, Place, Stamped
from aish.core.frozen import frozen
from aish.core.phrases import counted, first_of
from aish.core.text import for_line, safe_utf8
from aish.features.approvals.hub_questions import open_hub_folder
from aish.features.approvals.questions import HUB_ID, ApprovalQuestion, approval_question
from aish.features.history.run_store import RunStore
from aish.features.history.summary import events
from aish.journal.questions import EVENTS, QuestionFold, RecordedQuestion
from aish.journal.reader import read_journal
from aish.journal.writer import HeldJournal, hold_journal, user_key
from aish.system.file_lock import BeingWrittenError, take

LEAST_DIGITS = 8
"""Digits of an id that name a question, if no other of its run begins with them."""
LEAST_DIGEST = 12
"""Digits of a digest that a program has to give."""

_HEX = re.compile(r"[0-9a-f]+\Z")
_ID_LENGTH = 32
_DIGEST_LENGTH = 64
_SHOWN = 5
# Other answers to questions of the same run take milliseconds each.
_PATIENCE = 30.0

_STOP = "stop it first, for example with Ctrl-C: its questions stay open"
_PENDING = "`aish runs pending` lists the questions that are open"


class NotAnsweredError(AishError):
    """A question that cannot be answered, or not any more; nothing was recorded."""

    code = "not_answered"


class RunIsLiveError(NotAnsweredError):
    """A question of a run that another process executes; nothing was recorded.

    `pid` is the number of that process, if the system reports it.
    """

    def __init__(
        self, message: str, *, where: str, hint: str | None, pid: int | None = None
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.pid = pid


@frozen
class GivenAnswer:
    """An answer: who gave it, from where, and what they wrote about it."""

    answer: Literal["approve", "always", "deny"]
    by: str
    way: str
    note: str = ""


def find_question(questions: Sequence[ApprovalQuestion], call: str, run: str) -> ApprovalQuestion:
    """The question of a run with this id, or the only one whose id begins with it.

    Raises:
        UsageError: there is none, or more than one, or too few digits were given.
    """
    name = call.lower()
    waiting = [question.id for question in questions if question.is_open]
    if LEAST_DIGITS <= len(name) <= _ID_LENGTH and _HEX.match(name):
        fitting = [question for question in questions if question.id.startswith(name)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            message = f"`{name}` matches {counted(len(fitting), 'question')}"
            raise UsageError(message, where=run, hint="give more digits")
        message = f"unknown question `{name}`"
    else:
        message = f"`{call}` is not the id of a question: {LEAST_DIGITS} to {_ID_LENGTH} hex digits"
    names = first_of([f"`{id}`" for id in waiting], _SHOWN)
    hint = did_you_mean(name, waiting) or (f"open questions: {names}" if waiting else _PENDING)
    raise UsageError(message, where=run, hint=hint)


def require_open(question: ApprovalQuestion) -> None:
    """Check that a question can still be answered.

    Raises:
        NotAnsweredError: it has ended; says how, and by whom.
    """
    if question.is_open:
        return
    answer = question.answer
    if answer is not None and question.state in {"approved", "denied"}:
        note = f": {for_line(answer.note)}" if answer.note else ""
        by = f"{for_line(answer.by)} ({for_line(answer.way)})"
        ended = f"is already {question.state}, by {by} at {answer.time}{note}"
    elif question.state == "expired":
        until = question.expires or (answer.time if answer is not None else question.asked)
        ended = f"has expired: it was open until {until}, and nobody answered"
    else:
        ended = "was withdrawn: its call was cancelled, or its run has ended"
    raise NotAnsweredError(f"question `{question.id}` {ended}", where=question.run)


def require_digest(question: ApprovalQuestion, digest: str) -> None:
    """Check that the caller means this call.

    Raises:
        UsageError: these are too few digits, or those of another call.
    """
    beginning = digest.lower()
    if not LEAST_DIGEST <= len(beginning) <= _DIGEST_LENGTH or not _HEX.match(beginning):
        message = f"`{digest}` is not {LEAST_DIGEST} to {_DIGEST_LENGTH} hex digits of a digest"
        raise UsageError(message, where="--digest")
    if not question.digest.startswith(beginning):
        message = f"the digest of question `{question.id}` does not begin with `{beginning}`"
        hint = "read the call again: `aish runs pending --format json` has its arguments and digest"
        raise UsageError(message, where="--digest", hint=hint)


def record_answer(
    store: RunStore, shown: ApprovalQuestion, given: GivenAnswer, now: float
) -> Sequence[ApprovalQuestion]:
    """Record the answer to the question that was `shown`; returns those of its run still open.

    Raises:
        NotAnsweredError: the question has ended.
        RunIsLiveError: another process executes the run: only that can answer.
        UsageError: the journal is damaged or cannot be locked.
        OSError: the answer could not be written or signed; then it is not in the journal.
    """
    if HUB_ID.match(shown.run):
        return _answer_hub(store, shown, given, now)
    folder = (store.path / shown.run).resolve()
    with ExitStack() as stack:
        _take_turn(folder, stack)
        try:
            held = stack.enter_context(hold_journal(folder))
        except BeingWrittenError as error:
            message = f"the run is live: {error.writer} writes its journal"
            raise RunIsLiveError(message, where=shown.run, hint=_STOP, pid=error.pid) from error
        return _append(held, shown, given, now)


def _answer_hub(
    store: RunStore, question: ApprovalQuestion, given: GivenAnswer, now: float
) -> Sequence[ApprovalQuestion]:
    """Record the answer in the state of a server, which may be alive: it looks there."""
    folder = open_hub_folder(store, question.run)
    folder.look()
    held = folder.get(question.id)
    if held is not None:
        _require_same(held.question, question)
    place = Place(step=question.step, client=question.step)
    by, note = safe_utf8(given.by), safe_utf8(given.note)
    event = ApprovalAnswered(place, question.id, given.answer, by, given.way, note, question.digest)
    try:
        ended = folder.answer(event, now)
    except FileNotFoundError as error:
        message = f"question `{question.id}` is gone"
        raise NotAnsweredError(message, where=question.run, hint=_PENDING) from error
    if ended is not None:
        require_open(approval_question(question.run, ended.question))
    left = (entry.question.at(now) for entry in folder.all())
    return [approval_question(question.run, one) for one in left if one.is_open]


def _require_same(question: RecordedQuestion | None, view: ApprovalQuestion) -> RecordedQuestion:
    asked = None if question is None else question.asked
    if asked is None or (asked.digest, asked.arguments) != (view.digest, view.arguments):
        message = f"question `{view.id}` has changed since it was shown"
        raise NotAnsweredError(message, where=view.run, hint="answer it again")
    assert question is not None
    return question


def _take_turn(folder: Path, stack: ExitStack) -> None:
    """Wait for other answers to questions of this run.

    So whoever holds the journal's lock after that executes the run.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    try:
        take(descriptor, folder, _PATIENCE)
    except BeingWrittenError as error:
        message = f"{error.writer} is answering a question of this run and does not end"
        raise NotAnsweredError(message, where=folder.name) from error
    except UsageError:
        # Some file systems do not lock folders; the lock of the journal is the one that matters.
        return


def _append(
    held: HeldJournal, question: ApprovalQuestion, answer: GivenAnswer, now: float
) -> Sequence[ApprovalQuestion]:
    user_key()
    fold = QuestionFold()
    with read_journal(held.path) as reading:
        for stamped in events(reading, EVENTS):
            fold.take(stamped)
        seq = reading.last_seq + 1
    # Its journal is locked by this process.
    fold.without_process()
    questions = {one.id: one for one in fold.all(now)}
    current = _require_same(questions.get(question.id), question)
    require_open(approval_question(question.run, current))
    by, note = safe_utf8(answer.by), safe_utf8(answer.note)
    place, digest = current.asked.place, question.digest
    event = ApprovalAnswered(place, question.id, answer.answer, by, answer.way, note, digest)
    held.append(Stamped(seq, now, event))
    rest = (one for one in questions.values() if one.is_open and one.id != question.id)
    return [approval_question(question.run, one) for one in rest]
