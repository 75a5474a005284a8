"""What a person means by a run, a session or a cassette, and the calls in it (S8)."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from aish.config.pipeline import Pipeline
from aish.core.errors import UsageError
from aish.journal.reader import read_journal
from aish.run.past.shelf import JOURNAL, Shelf, open_project, open_shelves
from aish.run.past.telling import events, find, open_past
from aish.run.suggesting.calls import Calls, made_of_events

_SESSIONS = "sessions"


def calls_of(wanted: str, run_dir: Path | None, pipeline: Pipeline | None) -> Calls:
    """The calls of a run (its id, the end of it, `latest`, or its folder) or of a cassette.

    `pipeline` knows the aliases of servers, where a cassette does not tell.

    Raises:
        UsageError: there is no such thing, or it cannot be read.
    """
    path = Path(wanted)
    if path.name == JOURNAL.name and path.is_file():
        return _of_journal(path)
    if (path / JOURNAL).is_file():
        return _of_journal(path / JOURNAL)
    if path.is_file():
        return _of_cassette(path, pipeline)
    if path.is_dir() or len(path.parts) > 1:
        raise UsageError("there is no run and no cassette", where=wanted, hint=_HINT)
    with ExitStack() as stack:
        shelves = [*open_shelves(run_dir, stack)]
        if run_dir is None:
            shelves += _sessions(stack)
        shelf, id = find(shelves, wanted)
        try:
            reading = open_past(shelf, id, stack).reading
        except FileNotFoundError:
            raise UsageError("it was killed before it began", where=id) from None
        return made_of_events(stamped.event for stamped in events(reading))


def _sessions(stack: ExitStack) -> Iterator[Shelf]:
    """Where the sessions of a project are kept."""
    for project in (Path(), Path("pipelines")):
        with suppress(FileNotFoundError):
            yield stack.enter_context(open_project(project, _SESSIONS))


_HINT = "name a run (`aish runs list` shows what there is), the folder of one, or a cassette"


def _of_journal(path: Path) -> Calls:
    with read_journal(path) as reading:
        return made_of_events(stamped.event for stamped in events(reading))


def _of_cassette(path: Path, pipeline: Pipeline | None) -> Calls:
    # Here and not above: a journal is read without them.
    from aish.cassettes.file import load
    from aish.run.suggesting.aliases import pipeline_of
    from aish.run.suggesting.recorded import made_of_cassette

    interactions = load(path).interactions
    return made_of_cassette(interactions, pipeline or pipeline_of(path))
