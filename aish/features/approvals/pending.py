"""The questions of the runs in a run store, read from their journals, and of servers.

Most runs of a store have finished and asked nothing. Such a journal costs the reading of its last
record; of the others only those with a question are read record by record.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from aish.core.errors import UsageError, did_you_mean
from aish.core.events import EVENT_TYPES, ApprovalAsked, AskReceived, BatchPlanned, RunFinished
from aish.core.frozen import frozen
from aish.features.approvals.hub_questions import hub_ids, read_questions
from aish.features.approvals.questions import HUB_ID, ApprovalQuestion, approval_question
from aish.features.history.run_store import (
    LATEST,
    PROJECTS,
    RunStore,
    find_id,
    find_run,
    newest_first,
    open_store,
    open_stores,
)
from aish.features.history.summary import events, open_past
from aish.journal.batches import EVENTS as BATCH_EVENTS
from aish.journal.batches import BatchFold, RecordedBatch
from aish.journal.questions import EVENTS, QuestionFold, ends_questions
from aish.journal.reader import event_of
from aish.journal.writer import last_record
from aish.system.files import state_of_servers

_WAITING = (ApprovalAsked, AskReceived, BatchPlanned)
_ASKED = tuple(f'"type":"{EVENT_TYPES[one]}"'.encode() for one in _WAITING)
_BLOCK = 1 << 20


@frozen
class RunQuestions:
    """The questions of a run and its batches with answers to collect, or what is wrong with it."""

    store: RunStore
    id: str
    questions: Sequence[ApprovalQuestion] = ()
    problem: str | None = None
    batches: Sequence[RecordedBatch] = ()


def open_hub_stores(wanted: Path | None, stack: ExitStack) -> Sequence[RunStore]:
    """The state folders of servers (`serve.state`): `wanted`, or those of the project.

    Raises:
        UsageError: one of them cannot be read.
    """
    if wanted is not None:
        return [stack.enter_context(open_store(wanted, wanted))]
    # A missing folder is not an error: nothing was served there yet.
    there = [path for path in map(state_of_servers, PROJECTS) if path.exists()]
    return [stack.enter_context(open_store(path, path)) for path in there]


def find_asking(wanted: Path | None, name: str, stack: ExitStack) -> tuple[RunStore, str]:
    """The run or the server with this id, or the only one with this end of its id.

    `latest` is the newest run or, where there is none, the only server.

    Raises:
        UsageError: there is none, or more than one.
    """
    stores = {id: store for store in open_hub_stores(wanted, stack) for id in hub_ids(store)}
    known = stores.get(name)
    if known is not None:
        return known, name
    try:
        return find_run(open_stores(wanted, stack), name)
    except UsageError as error:
        if name == LATEST and len(stores) == 1:
            name = next(iter(stores))
        id = find_id(stores, name, "server")
        if id is not None:
            return stores[id], id
        if not stores:
            raise
        hint = did_you_mean(name, stores) or "`aish runs pending` lists the open questions"
        raise UsageError(error.message, where=error.where, hint=hint) from error


def questions_of(store: RunStore, id: str, now: float) -> Sequence[ApprovalQuestion]:
    """All questions of a run or a server, in the order in which they were asked, as of a time.

    Raises:
        UsageError: its journal cannot be read or is damaged.
        FileNotFoundError: it has none.
        OSError: it cannot be opened.
    """
    if HUB_ID.match(id):
        return _hub_questions(store, id, now).questions
    fold = QuestionFold()
    with ExitStack() as stack:
        journal = open_past(store, id, stack)
        for stamped in events(journal.reading, EVENTS):
            fold.take(stamped)
        if not journal.written:
            fold.without_process()
        return [approval_question(id, question) for question in fold.all(now)]


def read_run(store: RunStore, id: str, now: float) -> RunQuestions:
    """The questions and the batches of a run or a server.

    Raises:
        UsageError: its journal cannot be read or is damaged.
        OSError: it cannot be opened.
    """
    questions = questions_of(store, id, now)
    return RunQuestions(store, id, questions, batches=batches_of(store, id))


def batches_of(store: RunStore, id: str) -> Sequence[RecordedBatch]:
    """The batches of a run whose answers were not all collected; none of a server.

    Raises:
        UsageError: its journal cannot be read or is damaged.
        OSError: it cannot be opened.
    """
    fold = BatchFold()
    if HUB_ID.match(id):
        return ()
    with ExitStack() as stack:
        kinds = {*BATCH_EVENTS, RunFinished}
        for stamped in events(open_past(store, id, stack).reading, kinds):
            if isinstance(stamped.event, RunFinished) and stamped.event.exit.code == 0:
                fold = BatchFold()  # a process that was killed has not written what it collected
            fold.take(stamped)
    return [one for one in fold.all if one.requests]


def runs_with_questions(stores: Sequence[RunStore], now: float) -> Iterator[RunQuestions]:
    """The runs with questions that have not finished for good, and those that cannot be read."""
    return _with_questions(newest_first(stores), _run_questions, now)


def hubs_with_questions(stores: Sequence[RunStore], now: float) -> Iterator[RunQuestions]:
    """The servers with questions, and those whose questions cannot be read."""
    ids = ((id, store) for store in stores for id in hub_ids(store))
    return _with_questions(ids, _hub_questions, now)


def _with_questions(
    ids: Iterable[tuple[str, RunStore]],
    read: Callable[[RunStore, str, float], RunQuestions],
    now: float,
) -> Iterator[RunQuestions]:
    for id, store in ids:
        try:
            result = read(store, id, now)
        except UsageError as error:
            result = RunQuestions(store, id, problem=str(error))
        except OSError as error:
            result = RunQuestions(store, id, problem=f"{store.path / id}: {error.strerror}")
        if result.questions or result.batches or result.problem is not None:
            yield result


def _run_questions(store: RunStore, id: str, now: float) -> RunQuestions:
    # A run without a journal was killed before it began, or has just been deleted.
    with suppress(FileNotFoundError):
        if _may_be_asking(store, id):
            return read_run(store, id, now)
    return RunQuestions(store, id)


def _hub_questions(store: RunStore, id: str, now: float) -> RunQuestions:
    questions, problem = read_questions(store, id)
    # Whether a client still waits is known to the server alone.
    states = (replace(entry.question.at(now), caller_waiting=False) for entry in questions)
    return RunQuestions(store, id, [approval_question(id, one) for one in states], problem)


def _may_be_asking(store: RunStore, id: str) -> bool:
    """Tell whether a run has a question and has not finished for good."""
    descriptor = store.open_journal(id)
    try:
        return not _has_finished(descriptor) and _mentions_question(descriptor)
    finally:
        os.close(descriptor)


def _has_finished(descriptor: int) -> bool:
    last = last_record(descriptor)
    if last is None:
        return False
    try:
        stamped = event_of(json.loads(last))
    except (ValueError, RecursionError):
        # The reader of all records reports what is wrong with it.
        return False
    event = None if stamped is None else stamped.event
    return isinstance(event, RunFinished) and ends_questions(event)


def _mentions_question(descriptor: int) -> bool:
    """Tell whether the bytes of a record that asks occur, be it as a part of another record."""
    offset, before = 0, b""
    while block := os.pread(descriptor, _BLOCK, offset):
        if any(asked in before + block for asked in _ASKED):
            return True
        offset += len(block)
        before = block[-max(map(len, _ASKED)) :]
    return False
