"""Merges the shards of one run, after checking that they belong together.

Based on their journals alone, so the machines on which they ran do not matter.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from aish.core.errors import UsageError
from aish.core.events import (
    ItemFinished,
    ItemMoved,
    ItemStarted,
    RunFinished,
    RunStarted,
    Shard,
    Stamped,
    StepFinished,
    StepStarted,
)
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import backticked, counted, first_of
from aish.features.history.run_store import RunStore
from aish.features.history.summary import events, open_past
from aish.items.shards import holds
from aish.output.items.results import ItemsFile
from aish.output.items.table import came_through, step_of

_SHOWN = 5
_SHARD = "--shard"
_GO_ON = "`aish run FILE --resume ID` continues it"


class MergeError(UsageError):
    """Runs that are not the shards of one run; `where` names the run."""

    code = "merge"


@frozen
class MergedRun:
    """A run: its location and its shard."""

    store: RunStore
    id: str
    shard: Shard
    pipeline: str
    fingerprint: Mapping[str, JsonValue]

    @property
    def name(self) -> str:
        return str(self.store.path / self.id)


def merge(runs: Sequence[tuple[RunStore, str]], step: str | None, into: ItemsFile) -> str:
    """Put the results of all runs into one file; returns their step.

    Raises:
        MergeError: they are not one run, a shard is missing or double, or one has not reached its
            end; names which.
        JournalError: a journal is damaged.
        OSError: the file cannot be written.
    """
    parts = [_take(store, id, into) for store, id in runs]
    first = parts[0]
    for part in parts[1:]:
        if part.shard.of != first.shard.of:
            message = f"it is one of {counted(part.shard.of, 'shard')}, not of {first.shard.of}"
            raise MergeError(f"{message} as `{first.name}`", where=part.name)
        different = sorted(_different(first, part))
        if different:
            message = (
                f"it is not the same run as `{first.name}`: {backticked(different, _SHOWN)} differ"
            )
            raise MergeError(message, where=part.name)
    _check_shards(parts)
    try:
        step_id = step_of(into.steps(), step)
    except UsageError as error:
        raise MergeError(error.message, where=error.where, hint=error.hint) from error
    _check_rows(into, step_id)
    return step_id


def _take(store: RunStore, id: str, into: ItemsFile) -> MergedRun:
    """Add the results of a run to the existing ones."""
    started: RunStarted | None = None
    finished: RunFinished | None = None
    ends: dict[str, StepFinished] = {}
    name = str(store.path / id)
    for event in _events(store, id):
        match event:
            case RunStarted():
                started, finished = event, None
            case RunFinished():
                finished = event
            case StepFinished() if event.place.step is not None:
                ends[event.place.step] = event
            case StepStarted():
                into(Stamped(into.last + 1, 0.0, event))
            case ItemStarted() | ItemFinished() | ItemMoved() if "/" not in (
                event.place.step or "/"
            ):
                if not isinstance(event, ItemStarted) and started is not None:
                    _check_item(event, started.shard, into, name)
                # Renumbered: each journal counts from 1.
                into(Stamped(into.last + 1, 0.0, event))
            case _:
                pass
    if started is None:
        raise MergeError("nothing was run", where=name)
    if started.shard is None:
        hint = "its results are complete: `aish run -o FILE` writes them"
        raise MergeError("it is not a shard: it has all items", where=name, hint=hint)
    _check_ended(name, finished, ends)
    return MergedRun(store, id, started.shard, started.pipeline, started.fingerprint)


def _check_item(
    event: ItemFinished | ItemMoved, shard: Shard | None, into: ItemsFile, name: str
) -> None:
    if shard is not None and not holds(shard, event.key):
        message = f"the item `{event.key}` is not of the shard {shard.index}/{shard.of}"
        raise MergeError(message, where=name)
    # A key belongs to one shard only, so the same key is a retry of the same item; and what one of
    # the same shard has displaced may have moved.
    other = into.row(event.place.step or "", event.index)
    moves = other is not None and shard is not None and holds(shard, other["key"])
    if other is not None and other["key"] != event.key and not moves:
        message = f"the item {event.index} appears twice: as `{other['key']}` and as `{event.key}`"
        raise MergeError(message, where=name, hint="was a shard run on other items?")


def _events(store: RunStore, id: str) -> Iterator[object]:
    with ExitStack() as stack:
        try:
            journal = open_past(store, id, stack)
        except FileNotFoundError as error:
            message = "there is no journal of a run"
            raise MergeError(message, where=str(store.path / id)) from error
        for stamped in events(journal.reading):
            yield stamped.event


def _check_ended(name: str, finished: RunFinished | None, ends: Mapping[str, StepFinished]) -> None:
    if finished is None:
        raise MergeError("it has not finished", where=name, hint=_GO_ON)
    if finished.status == "paused":
        said = "it is paused: calls of it wait for an answer"
        raise MergeError(said, where=name, hint=f"`aish runs pending` lists them; then {_GO_ON}")
    for step, end in ends.items():
        # Also for steps without items: an incomplete shard is refused.
        if end.status != "skipped" and not came_through(end):
            said = f"the step `{step}` has not finished its items"
            raise MergeError(said, where=name, hint=f"{_GO_ON}, `--retry-failed` with what failed")
    if finished.exit.code > 1:
        said = f"it ended early: {finished.exit.name}"
        raise MergeError(said, where=name, hint=_GO_ON)


def _different(part: MergedRun, other: MergedRun) -> Iterator[str]:
    if part.pipeline != other.pipeline:
        yield "name"
    for name in part.fingerprint.keys() | other.fingerprint.keys():
        if name != _SHARD and part.fingerprint.get(name) != other.fingerprint.get(name):
            yield name


def _check_shards(parts: Sequence[MergedRun]) -> None:
    of = parts[0].shard.of
    there: dict[int, MergedRun] = {}
    for part in parts:
        twice = there.setdefault(part.shard.index, part)
        if twice is not part:
            message = f"the shard {part.shard.index}/{of} appears twice: also in `{twice.name}`"
            raise MergeError(message, where=part.name)
    missing = [index for index in range(1, of + 1) if index not in there]
    if missing:
        names = first_of([f"{index}/{of}" for index in missing], _SHOWN)
        noun, verb = ("shards", "are") if len(missing) > 1 else ("shard", "is")
        hint = f"`aish run FILE --shard {missing[0]}/{of}` runs it, with what the others were given"
        raise MergeError(f"the {noun} {names} {verb} missing", hint=hint)


def _check_rows(into: ItemsFile, step: str) -> None:
    hint = "was a shard run on other items?"
    for expected, row in enumerate(into.rows(step)):
        if row["index"] > expected:
            last = row["index"] - 1
            gap = f"item {expected} is" if last == expected else f"items {expected} to {last} are"
            raise MergeError(f"the {gap} missing", hint=hint)
        if row["index"] < expected:
            message = f"the item {row['index']} appears twice: once as `{row['key']}`"
            raise MergeError(message, hint=hint)
