"""The sessions that are kept, found and told in a line each (S6)."""

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, BinaryIO

from aish.core.errors import AishError, UsageError, did_you_mean
from aish.core.frozen import frozen
from aish.engine.run_folder import RunsPlace, tame_name
from aish.features.history.run_store import RunStore, newest_first, open_project, open_store
from aish.features.history.summary import began
from aish.journal.reader import JournalReading

_SHORT = 60
LATEST = "latest"
_OF_ITSELF = frozenset({"run.started", "model.chosen", "notice", "run.finished"})
"""What a session tells in which nobody did anything."""
ANEW = "`aish shell` without `--resume` begins one; `:sessions` lists what there is"


@frozen
class PastSession:
    """A session: when it began, how often its models were asked, and what it began with.

    It is `empty` if nobody did anything in it.
    """

    id: str
    began: float
    questions: int
    first: str
    empty: bool = False


def session_shelf(place: RunsPlace, stack: ExitStack) -> RunStore | None:
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
    return stack.enter_context(open_store(place.wanted, place.wanted))


def find_session(
    place: RunsPlace, name: str, pipeline: str, stack: ExitStack
) -> tuple[RunStore, str]:
    """The session of this id, or of an id that ends so; `latest` is the newest on the pipeline.

    One that was opened and left again is `latest` only where there is no other.

    Raises:
        UsageError: there is none, or more than one.
    """
    shelf = session_shelf(place, stack)
    ids = [] if shelf is None else [id for id, _ in newest_first([shelf])]
    if name == LATEST:
        ids = [id for id in ids if is_named(id, pipeline)]
    if shelf is None or not ids:
        raise UsageError("there are no sessions to go on with", hint=ANEW)
    if name == LATEST:
        ids = [next((id for id in ids if not _is_empty(shelf, id)), ids[0])]
    fitting = ids if name == LATEST else [id for id in ids if id == name]
    fitting = fitting or [id for id in ids if name and id.endswith(name)]
    if len(fitting) > 1:
        said = f"`{name}` may be any of {len(fitting)} sessions"
        raise UsageError(said, hint="give the whole id; `:sessions` lists them")
    if not fitting:
        raise UsageError(f"there is no session `{name}`", hint=did_you_mean(name, ids) or ANEW)
    return shelf, fitting[0]


def is_named(id: str, pipeline: str) -> bool:
    """Whether an id is that of a session on a pipeline."""
    return id.partition("-")[2].rpartition("-")[0] == tame_name(pipeline)


def past_sessions(place: RunsPlace, stack: ExitStack) -> list[PastSession]:
    """Every session that is kept, the newest first."""
    shelf = session_shelf(place, stack)
    return [] if shelf is None else [_told(shelf, id) for id, _ in newest_first([shelf])]


def _is_empty(shelf: RunStore, id: str) -> bool:
    try:
        with JournalReading(_open(shelf, id), id) as reading:
            return all(record.get("type") in _OF_ITSELF for record in reading)
    except (AishError, OSError):
        # Whoever goes on with it is told what is wrong.
        return False


def _told(shelf: RunStore, id: str) -> PastSession:
    found = PastSession(id, began(id), 0, "", empty=True)
    try:
        with JournalReading(_open(shelf, id), id) as reading:
            for record in reading:
                found = _with(found, record)
    except (AishError, OSError) as error:
        return replace(found, first=f"cannot be read: {error}", empty=False)
    return found


def _with(found: PastSession, record: Any) -> PastSession:
    kind = record.get("type")
    if kind in _OF_ITSELF:
        return found
    if kind == "question.asked" and not found.first:
        return replace(found, first=_first_line(str(record.get("text"))), empty=False)
    if kind == "turn.added" and _role(record) == "user":
        return replace(found, questions=found.questions + 1, empty=False)
    return replace(found, empty=False) if found.empty else found


def _open(shelf: RunStore, id: str) -> BinaryIO:
    return os.fdopen(shelf.open_journal(id), "rb", buffering=1 << 18)


def _role(record: Any) -> object:
    return record["added"].get("role")


def _first_line(text: str) -> str:
    first = next(iter(text.strip().splitlines()), "")
    return first if len(first) <= _SHORT else first[: _SHORT - 1] + "…"
