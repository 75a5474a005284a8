"""Deletes run folders, except those being written, with open questions, or that are not runs."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.features.history.run_store import RunStore, newest_first
from aish.features.history.summary import began, events
from aish.journal.questions import EVENTS, QuestionFold
from aish.journal.reader import JournalReading
from aish.journal.writer import JournalError
from aish.system.file_lock import writer

# Between its folder and its journal a run reads its cassette and opens its output.
_BEGINNING = 3600.0
_BUFFER = 1 << 18
_ASKED = b'"type":"approval.asked"'


@frozen
class Cleaned:
    """A selected run: its size on disk, or why it was kept."""

    id: str
    store: RunStore
    size: int = 0
    kept: str | None = None


def to_clean(
    stores: Sequence[RunStore], *, keep: int | None, before: float | None
) -> list[tuple[str, RunStore]]:
    """The runs to delete, newest first: all but `keep`, or those that began before a time."""
    runs = newest_first(stores)
    if keep is not None:
        return runs[keep:]
    return [pair for pair in runs if before is not None and began(pair[0]) < before]


def clean(
    chosen: Sequence[tuple[str, RunStore]], now: float, *, dry_run: bool
) -> Iterator[Cleaned]:
    """Delete the selected runs; with `dry_run` only report them."""
    for id, store in chosen:
        try:
            yield _clean(id, store, now, dry_run=dry_run)
        except UsageError as error:
            yield Cleaned(id, store, kept=error.message)
        except FileNotFoundError:
            yield Cleaned(id, store, kept="it is already deleted")
        except OSError as error:
            yield Cleaned(id, store, kept=f"it cannot be deleted: {error.strerror}")


def _clean(id: str, store: RunStore, now: float, *, dry_run: bool) -> Cleaned:
    with ExitStack() as stack:
        if strangers := store.strangers(id):
            raise UsageError(f"`{strangers[0]}` in it is not part of a run")
        try:
            journal = store.open_journal(id)
        except FileNotFoundError:
            if now - began(id) < _BEGINNING:
                raise UsageError("it may be about to start") from None
        else:
            # Held until the folder is removed, so that no process begins to write it.
            stack.callback(os.close, journal)
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"it is running ({writer(journal)})") from error
            if waiting := _count_open_calls(journal, str(store.path / id), now):
                noun = "call waits" if waiting == 1 else "calls wait"
                raise UsageError(f"{waiting} {noun} for an answer: `aish runs pending` lists them")
        size = store.size(id)
        if not dry_run:
            store.remove(id)
        return Cleaned(id, store, size)


def _count_open_calls(journal: int, name: str, now: float) -> int:
    """The number of calls of the run that can still be answered.

    None of a damaged journal: such a run is not resumed.
    """
    questions = QuestionFold()
    with os.fdopen(os.dup(journal), "rb", buffering=_BUFFER) as file:
        # Most runs have no questions, and some have millions of records.
        if not any(_ASKED in line for line in file):
            return 0
        file.seek(0)
        with suppress(JournalError):
            for stamped in events(JournalReading(file, name), EVENTS):
                questions.take(stamped)
    return sum(call.outlives_process(now) for call in questions.pending)
