"""The sessions that are kept, found and told in a line each (S6)."""

import os
from contextlib import ExitStack
from typing import Any, BinaryIO

from aish.errors import AishError
from aish.run.folder import RunsPlace
from aish.run.past.shelf import Shelf, newest_first, open_project, open_shelf
from aish.run.past.telling import began
from aish.sinks.journal_reader import JournalReading
from aish.vocab.frozen import frozen

_SHORT = 60


@frozen
class PastSession:
    """A session: when it began, how often its models were asked, and what it began with."""

    id: str
    began: float
    questions: int
    first: str


def session_shelf(place: RunsPlace, stack: ExitStack) -> Shelf | None:
    """The folder of sessions, if there is one.

    Raises:
        UsageError: it cannot be read, or a part of its path is a link.
    """
    try:
        if place.wanted is None:
            return stack.enter_context(open_project(place.project.resolve(), place.shelf))
    except FileNotFoundError:
        return None
    if not place.wanted.is_dir():
        return None
    return stack.enter_context(open_shelf(place.wanted, place.wanted))


def past_sessions(place: RunsPlace, stack: ExitStack) -> list[PastSession]:
    """Every session that is kept, the newest first."""
    shelf = session_shelf(place, stack)
    return [] if shelf is None else [_told(shelf, id) for id, _ in newest_first([shelf])]


def _told(shelf: Shelf, id: str) -> PastSession:
    questions, first = 0, ""
    try:
        with JournalReading(_open(shelf, id), id) as reading:
            for record in reading:
                if record.get("type") == "turn.added" and _role(record) == "user":
                    questions += 1
                    first = first or _first_line(record)
    except (AishError, OSError) as error:
        first = f"cannot be read: {error}"
    return PastSession(id, began(id), questions, first)


def _open(shelf: Shelf, id: str) -> BinaryIO:
    return os.fdopen(shelf.open_journal(id), "rb", buffering=1 << 18)


def _role(record: Any) -> object:
    return record["added"].get("role")


def _first_line(record: Any) -> str:
    lines = str(record["added"].get("text")).strip().splitlines()
    last = lines[-1] if lines else ""
    return last if len(last) <= _SHORT else last[: _SHORT - 1] + "…"
