"""Summary of a past run, from its journal."""

import os
import time
from calendar import timegm
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

from aish.core.errors import UsageError
from aish.core.events import (
    ApprovalAnswered,
    DecisionLevel,
    Event,
    RunFinished,
    RunStarted,
    Stamped,
    StepFinished,
    ToolDecided,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.features.history.run_store import JOURNAL, RunStore, newest_first
from aish.journal.history import CallRecord, fold_records
from aish.journal.questions import QuestionFold, RecordedQuestion
from aish.journal.reader import JournalReading, event_of, parse_event
from aish.system.file_lock import is_written, writer

State = Literal["ended", "running", "no_end", "unreadable"]
"""`no_end`: it was killed, and nobody is writing it any more."""


@frozen
class PastRun:
    """A run; values missing in its journal are `None`."""

    id: str
    folder: Path
    state: State
    pipeline: str | None = None
    steps: int = 0
    finished: RunFinished | None = None
    pending: tuple[RecordedQuestion, ...] = ()
    """The open questions, whether their time has passed or not."""
    writer: str | None = None
    problem: str | None = None

    @property
    def began(self) -> float:
        return began(self.id)


def began(id: str) -> float:
    stamp, _, _ = id.partition("-")
    try:
        return float(timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ")))
    except ValueError:
        # Digits that are not a date: the name was made by hand.
        return 0.0


def past_runs(stores: Sequence[RunStore]) -> Iterator[PastRun]:
    for id, store in newest_first(stores):
        yield tell(store, id)


def tell(store: RunStore, id: str) -> PastRun:
    folder = store.path / id
    try:
        with ExitStack() as stack:
            journal = open_past(store, id, stack)
            parts = _fold(events(journal.reading))
            end = parts[2]
            return PastRun(id, folder, journal.state(end), *parts, journal.writer(end))
    except FileNotFoundError:
        return PastRun(id, folder, "no_end")
    except UsageError as error:
        return PastRun(id, folder, "unreadable", problem=str(error))
    except OSError as error:
        return PastRun(id, folder, "unreadable", problem=f"{error.strerror}")


@frozen
class PastJournal:
    """An open journal, and whether it was being written when it was opened.

    Determined before reading, so that a run that ends meanwhile is not taken for a killed one.
    """

    reading: JournalReading
    descriptor: int
    written: bool

    def state(self, finished: RunFinished | None) -> State:
        if finished is not None:
            return "ended"
        return "running" if self.written else "no_end"

    def writer(self, finished: RunFinished | None) -> str | None:
        """The process that is writing it: `process 4711`."""
        return writer(self.descriptor) if self.written and finished is None else None


def open_past(store: RunStore, id: str, stack: ExitStack) -> PastJournal:
    """The journal of a run, open until `stack` is left.

    Raises:
        UsageError: it is not a regular file owned by the user.
        OSError: it cannot be opened.
    """
    descriptor = store.open_journal(id)
    file = os.fdopen(descriptor, "rb", buffering=1 << 18)
    reading = stack.enter_context(JournalReading(file, str(store.path / id / JOURNAL)))
    return PastJournal(reading, descriptor, is_written(descriptor))


def require_past(store: RunStore, id: str, stack: ExitStack) -> PastJournal:
    """The same, of a run that has a journal.

    Raises:
        UsageError: it has none, or it is not a regular file owned by the user.
        OSError: it cannot be opened.
    """
    try:
        return open_past(store, id, stack)
    except FileNotFoundError as error:
        raise UsageError("it has no journal", where=str(store.path / id)) from error


def events(
    reading: JournalReading, types: Collection[type[Event]] | None = None
) -> Iterator[Stamped]:
    """The events of a journal, of all types or of these; without types that a newer aish added.

    Raises:
        JournalError: it is damaged.
    """
    for _, event in records(reading, types):
        if event is not None:
            yield event


def records(
    reading: JournalReading, types: Collection[type[Event]] | None = None
) -> Iterator[tuple[JsonObject, Stamped | None]]:
    """The records of a journal, each with its event; `None` if a newer aish added its type.

    Raises:
        JournalError: it is damaged.
    """
    for record in reading if types is None else reading.of_types(types):
        try:
            event = event_of(record)
        except ValueError:
            # Again, with its file and line, which would cost something for each record.
            event = parse_event(record, reading.where)
        yield record, event


def calls_of_level(
    stream: Iterator[Stamped], level: DecisionLevel
) -> Iterator[tuple[CallRecord, ToolDecided]]:
    """The decided calls of one level, in order of their ends; those without an end come last."""
    for entry in fold_records(stream):
        if (
            isinstance(entry, CallRecord)
            and entry.decided is not None
            and entry.decided.level == level
        ):
            yield entry, entry.decided


def _fold(
    stream: Iterator[Stamped],
) -> tuple[str | None, int, RunFinished | None, tuple[RecordedQuestion, ...]]:
    """Pipeline, steps that were not skipped, end, and questions; a resumed run has no end yet.

    The seconds are the sum over all parts of the run, without the time between them.
    """
    pipeline, finished = None, None
    questions = QuestionFold()
    steps: set[str | None] = set()
    begun = last = earlier = 0.0
    for stamped in stream:
        match stamped.event:
            case RunStarted() as started:
                pipeline, finished = started.pipeline, None
                earlier += last - begun
                begun = stamped.time
            case StepFinished(status=status, place=place) if status != "skipped":
                steps.add(place.step)
            case RunFinished() as end:
                finished = replace(end, seconds=earlier + end.seconds)
            case ToolDecided(approval=str(id)):
                questions.forget(id)
            case _:
                pass
        questions.take(stamped)
        if not isinstance(stamped.event, ApprovalAnswered):
            # An answer may be appended long after the end of the process.
            last = stamped.time
    return pipeline, len(steps), finished, tuple(questions.pending)
