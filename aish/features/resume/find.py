"""The run to be resumed: found by the beginning of its journal, and locked.

No other process may resume it meanwhile.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from aish.config.model import Pipeline
from aish.core.errors import UsageError
from aish.core.events import Shard
from aish.core.frozen import frozen
from aish.core.json import JsonObject, json_text
from aish.engine.resume_state import ResumeRefusedError
from aish.engine.run_folder import STDIN, RunsPlace, read_kept
from aish.features.history.run_store import (
    LATEST,
    RunStore,
    find_run,
    newest_of,
    open_project,
    open_stores,
    places_of,
)
from aish.features.resume.scan import tags
from aish.journal.reader import JournalReading, read_journal
from aish.journal.writer import HeldJournal, JournalError, hold_journal, open_record
from aish.system.files import open_own

# `v`, `seq` and `time` precede it.
_TYPE = b'"type":"run.started"'
_HEAD = 120
_BLOCK = 1 << 18


def starts(path: Path) -> list[JsonObject]:
    """Each `run.started` of a journal; empty if there is none.

    Damage is left to the reader of all records, except in the first record.

    Raises:
        JournalError: this is no journal of a run.
        UsageError: it is not a regular file of our own.
    """
    try:
        descriptor = open_own(path)
    except FileNotFoundError:
        return []
    found = []
    with os.fdopen(descriptor, "rb", buffering=_BLOCK) as file:
        first = file.readline()
        for line in chain([first], _lines_near(file, _TYPE)):
            if _TYPE in line[:_HEAD]:
                body = open_record(line.rstrip(b"\r\n"))
                if body is not None:
                    found.append(json.loads(body))
            if line is first and not found and line.endswith(b"\n"):
                raise _no_journal(path)
    return found


def _lines_near(file: BinaryIO, text: bytes) -> Iterator[bytes]:
    """All lines with `text`, and those around them: most blocks of a long journal have none."""
    rest: list[bytes] = []
    while block := file.read(_BLOCK):
        lines, end, tail = block.rpartition(b"\n")
        if end:
            lines = b"".join((*rest, lines))
            yield from lines.split(b"\n") if text in lines else ()
            rest = []
        rest.append(tail)
    yield b"".join(rest)


def _no_journal(path: Path) -> JournalError:
    with read_journal(path) as reading:
        # Damage of the first record is better reported by the reader of all records.
        next(iter(reading), None)
    said = "this is not the journal of a run: it does not begin with `run.started`"
    return JournalError(said, where=f"{path}:1")


_ANEW = "`aish run` without `--resume` starts one; `aish runs list` lists them"


@frozen
class PastPart:
    """A locked run, as of its last part: `started` is the record of that."""

    id: str
    path: Path
    journal: HeldJournal
    started: JsonObject

    def read(self) -> JournalReading:
        """Its journal from the first record on; use it in a `with`."""
        return read_journal(self.journal.path)

    @property
    def inputs(self) -> dict[str, Any]:
        """Its inputs; a secret in one is replaced by its tag."""
        inputs: Any = self.started.get("inputs")
        return dict(inputs) if isinstance(inputs, dict) else {}

    @property
    def masked_inputs(self) -> list[str]:
        """The names of the inputs that had a secret in them, which is not stored."""
        return [name for name, value in self.inputs.items() if tags([json_text(value)])]

    @property
    def shard(self) -> Shard | None:
        """The part of the items that it processes."""
        return _shard_of(self.started)

    @property
    def fingerprint(self) -> dict[str, Any]:
        found: Any = self.started.get("fingerprint")
        return dict(found) if isinstance(found, dict) else {}

    @property
    def delivery(self) -> str | None:
        """The delivery of its requests that the command line named: what waits is collected so."""
        named = (part.partition("--delivery ")[2] for part in self.fingerprint)
        return next(filter(None, named), None)

    def kept(self, name: str) -> bytes | None:
        """A file stored in its folder under this name, if present."""
        return read_kept(self.path, name)

    def stdin(self) -> str | None:
        try:
            descriptor = open_own(self.path / "files" / STDIN)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read().decode("utf-8", "surrogatepass")


def hold_past(
    pipeline: Pipeline, place: RunsPlace, name: str, stack: ExitStack, shard: Shard | None = None
) -> PastPart:
    """The run called `name`, or the newest of `pipeline`, locked against other writers.

    Of sharded runs, the newest of that `shard`, if one is given.

    Raises:
        UsageError: there is none, another process writes it, or it is one of another pipeline.
        JournalError: its journal is damaged.
    """
    stores = _shelves(place, stack)
    if name == LATEST:
        store, id = _newest(pipeline, stores, shard)
    else:
        store, id = find_run(stores, name)
    path = (store.path / id).resolve()
    journal = stack.enter_context(hold_journal(path))
    begun = starts(journal.path)
    if not begun:
        raise ResumeRefusedError("the run was killed before it started", where=id, hint=_ANEW)
    _check_pipeline(begun[-1], pipeline, id)
    return PastPart(id, path, journal, begun[-1])


def _shelves(place: RunsPlace, stack: ExitStack) -> Sequence[RunStore]:
    if place.wanted is not None:
        return open_stores(place.wanted, stack)
    try:
        return [stack.enter_context(open_project(place.project.resolve()))]
    except FileNotFoundError:
        said = "there are no runs to resume"
        raise UsageError(said, where=str(place.project / ".aish" / "runs"), hint=_ANEW) from None


def _newest(
    pipeline: Pipeline, stores: Sequence[RunStore], shard: Shard | None
) -> tuple[RunStore, str]:
    """The newest run of this pipeline that has begun."""
    for id, store in newest_of(stores, pipeline.name):
        begun = starts(store.path.resolve() / id / "events.jsonl")
        of_this = begun and begun[-1].get("pipeline") == pipeline.name
        if of_this and shard in {None, _shard_of(begun[-1])}:
            return store, id
    said = f"there is no run of `{pipeline.name}`"
    raise UsageError(said, where=places_of(stores), hint=_ANEW)


def _shard_of(started: JsonObject) -> Shard | None:
    told: Any = started.get("shard")
    return None if told is None else Shard(told["index"], told["of"])


def _check_pipeline(started: JsonObject, pipeline: Pipeline, id: str) -> None:
    name = started.get("pipeline")
    if name != pipeline.name:
        said = f"this is a run of the pipeline `{name}`, not of `{pipeline.name}`"
        raise ResumeRefusedError(said, where=id, hint=_ANEW)
    if started.get("applies") is not None:
        said = "this run applied staged calls, and `aish apply` continues it"
        raise ResumeRefusedError(said, where=id)
