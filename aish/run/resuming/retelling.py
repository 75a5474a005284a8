"""What an earlier part of a run has said, for sinks that tell of the whole run."""

from collections.abc import Iterable, Iterator
from typing import Any

from aish.run.resuming.carried import Carried
from aish.sinks.event_reading import event_of
from aish.sinks.journal_record import JournalError
from aish.vocab.events import Stamped
from aish.vocab.json import JsonObject

_OF_THE_RUN = frozenset({"run.started", "run.finished"})


def retold(records: Iterable[JsonObject], carried: Carried) -> Iterator[Stamped]:
    """The events of what is done and stays done; attempts that came to nothing are left out.

    Raises:
        JournalError: the journal is not as it was written.
    """
    for record in records:
        if record.get("type") not in _OF_THE_RUN and _stays(record, carried):
            yield from _event(record)


def retold_whole(records: Iterable[JsonObject], carried: Carried) -> Iterator[Stamped]:
    """The events of a run that has ended well, as if it had never been interrupted."""
    for record in records:
        seq: Any = record.get("seq")
        if seq >= carried.part_seq or _stays(record, carried):
            yield from _event(record)


def _stays(record: Any, carried: Carried) -> bool:
    step, item = record.get("step"), record.get("item")
    while isinstance(step, str):
        begun = carried.begun.get(step) if item is None else _item_begun(step, item, carried)
        if begun is not None:
            return bool(record["seq"] >= begun)
        # In a sub-pipeline: what it is a part of decides.
        step = step.rpartition("/")[0] or None
    return False


def _item_begun(step: str, item: str, carried: Carried) -> int | None:
    items = carried.items.get(step)
    return None if items is None else items.begun(item)


def _event(record: JsonObject) -> Iterator[Stamped]:
    try:
        stamped = event_of(record)
    except ValueError as error:
        said = f"a record of type {record.get('type')!r} is no such event: {error}"
        raise JournalError(said, where=f"record {record.get('seq')}") from error
    if stamped is not None:
        yield stamped
