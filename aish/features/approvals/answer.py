"""The answer to a question, recorded in the journal of its run (A6, A9).

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
from aish.journal.questions import EVENTS, Question, Questions
from aish.journal.reader import read_journal
from aish.journal.writer import HeldJournal, hold_journal
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
    waiting = [one.id for one in questions if one.is_open]
    if LEAST_DIGITS <= len(name) <= _ID_LENGTH and _HEX.match(name):
        fitting = [one for one in questions if one.id.startswith(name)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            said = f"`{name}` matches {counted(len(fitting), 'question')}"
            raise UsageError(said, where=run, hint="give more digits")
        said = f"unknown question `{name}`"
    else:
        said = f"`{call}` is not the id of a question: {LEAST_DIGITS} to {_ID_LENGTH} hex digits"
    names = first_of([f"`{id}`" for id in waiting], _SHOWN)
    hint = did_you_mean(name, waiting) or (f"open questions: {names}" if waiting else _PENDING)
    raise UsageError(said, where=run, hint=hint)


def require_open(question: ApprovalQuestion) -> None:
    """Check that a question can still be answered.

    Raises:
        NotAnsweredError: it has ended; says how, and by whom.
    """
    if question.is_open:
        return
    given = question.answer
    if given is not None and question.state in {"approved", "denied"}:
        note = f": {for_line(given.note)}" if given.note else ""
        by = f"{for_line(given.by)} ({for_line(given.way)})"
        ended = f"is already {question.state}, by {by} at {given.time}{note}"
    elif question.state == "expired":
        until = question.expires or (given.time if given is not None else question.asked)
        ended = f"has expired: it was open until {until}, and nobody answered"
    else:
        ended = "was withdrawn: its call was cancelled, or its run has ended"
    raise NotAnsweredError(f"question `{question.id}` {ended}", where=question.run)


def require_digest(question: ApprovalQuestion, digest: str) -> None:
    """Check that the caller means this call.

    Raises:
        UsageError: these are too few digits, or those of another call.
    """
    given = digest.lower()
    if not LEAST_DIGEST <= len(given) <= _DIGEST_LENGTH or not _HEX.match(given):
        said = f"`{digest}` is not {LEAST_DIGEST} to {_DIGEST_LENGTH} hex digits of a digest"
        raise UsageError(said, where="--digest")
    if not question.digest.startswith(given):
        said = f"the digest of question `{question.id}` does not begin with `{given}`"
        hint = "read the call again: `aish runs pending --format json` has its arguments and digest"
        raise UsageError(said, where="--digest", hint=hint)


def record_answer(
    store: RunStore, shown: ApprovalQuestion, given: GivenAnswer, now: float
) -> Sequence[ApprovalQuestion]:
    """Record the answer to the question that was `shown`; returns those of its run still open.

    Raises:
        NotAnsweredError: the question has ended.
        RunIsLiveError: another process executes the run: only that can answer.
        UsageError: the journal is damaged or cannot be locked.
        OSError: the answer could not be written; then it is not in the journal.
    """
    if HUB_ID.match(shown.run):
        return _answer_hub(store, shown, given, now)
    folder = (store.path / shown.run).resolve()
    with ExitStack() as stack:
        _take_turn(folder, stack)
        try:
            held = stack.enter_context(hold_journal(folder))
        except BeingWrittenError as error:
            said = f"the run is live: {error.writer} writes its journal"
            raise RunIsLiveError(said, where=shown.run, hint=_STOP, pid=error.pid) from error
        return _append(held, shown, given, now)


def _answer_hub(
    store: RunStore, shown: ApprovalQuestion, given: GivenAnswer, now: float
) -> Sequence[ApprovalQuestion]:
    """Record the answer in the state of a server, which may be alive: it looks there."""
    folder = open_hub_folder(store, shown.run)
    folder.look()
    held = folder.get(shown.id)
    if held is not None:
        _require_same(held.question, shown)
    place = Place(step=shown.step, client=shown.step)
    by, note = safe_utf8(given.by), safe_utf8(given.note)
    event = ApprovalAnswered(place, shown.id, given.answer, by, given.way, note)
    try:
        ended = folder.answer(event, now)
    except FileNotFoundError as error:
        said = f"question `{shown.id}` is gone"
        raise NotAnsweredError(said, where=shown.run, hint=_PENDING) from error
    if ended is not None:
        require_open(approval_question(shown.run, ended.question))
    left = (one.question.at(now) for one in folder.all())
    return [approval_question(shown.run, one) for one in left if one.is_open]


def _require_same(question: Question, shown: ApprovalQuestion) -> None:
    if (question.asked.digest, question.asked.arguments) != (shown.digest, shown.arguments):
        said = f"question `{shown.id}` has changed since it was shown"
        raise NotAnsweredError(said, where=shown.run, hint="answer it again")


def _take_turn(folder: Path, stack: ExitStack) -> None:
    """Wait for other answers to questions of this run.

    So whoever holds the journal's lock after that executes the run.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    try:
        take(descriptor, folder, _PATIENCE)
    except BeingWrittenError as error:
        said = f"{error.writer} is answering a question of this run and does not end"
        raise NotAnsweredError(said, where=folder.name) from error
    except UsageError:
        # Some file systems do not lock folders; the lock of the journal is the one that matters.
        return


def _append(
    held: HeldJournal, shown: ApprovalQuestion, given: GivenAnswer, now: float
) -> Sequence[ApprovalQuestion]:
    fold = Questions()
    with read_journal(held.path) as reading:
        for stamped in events(reading, EVENTS):
            fold.take(stamped)
        seq = reading.last_seq + 1
    # Its journal is locked by this process.
    fold.without_process()
    found = {one.id: one for one in fold.all(now)}
    current = found.get(shown.id)
    if current is None:
        said = f"question `{shown.id}` has changed since it was shown"
        raise NotAnsweredError(said, where=shown.run, hint="answer it again")
    _require_same(current, shown)
    require_open(approval_question(shown.run, current))
    by, note = safe_utf8(given.by), safe_utf8(given.note)
    event = ApprovalAnswered(current.asked.place, shown.id, given.answer, by, given.way, note)
    held.append(Stamped(seq, now, event))
    rest = (one for one in found.values() if one.is_open and one.id != shown.id)
    return [approval_question(shown.run, one) for one in rest]
