"""Deletes run folders, except those being written and folders that are not runs."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.features.history.run_store import RunStore, newest_first
from aish.features.history.summary import began
from aish.system.file_lock import writer

# Between its folder and its journal a run reads its cassette and opens its output.
_BEGINNING = 3600.0


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
    found = newest_first(stores)
    if keep is not None:
        return found[keep:]
    return [pair for pair in found if before is not None and began(pair[0]) < before]


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
            _take(journal)
        size = store.size(id)
        if not dry_run:
            store.remove(id)
        return Cleaned(id, store, size)


def _take(journal: int) -> None:
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"it is running ({writer(journal)})") from error
