"""The batches that a run has submitted to the providers of its models, folded from its events.

Takes events as they come, live or from a journal; does no I/O and reads no clock.
"""

from collections.abc import Collection
from dataclasses import replace

from aish.core.events import (
    BatchCollected,
    BatchPlanned,
    BatchSubmitted,
    Event,
    Stamped,
)
from aish.core.frozen import frozen

EVENTS: Collection[type[Event]] = (BatchPlanned, BatchSubmitted, BatchCollected)
"""The events that the fold needs; all others may be left out."""


@frozen
class RecordedBatch:
    """A batch, submitted after `began`; without an `id` nobody knows whether it was.

    `number` counts those of the run. `requests` are the digests of those whose answers are not
    collected yet, by their numbers. `ends` is when it is over at the latest. `may_repeat`: they are
    submitted again if its provider does not have it, or nobody can tell.
    """

    number: int
    model: str
    size: int
    requests: tuple[tuple[int, str], ...]
    began: float
    id: str | None = None
    ends: str | None = None
    may_repeat: bool = False


class BatchFold:
    """Folds the batches of one run, in order."""

    def __init__(self) -> None:
        self._held: dict[int, RecordedBatch] = {}

    @property
    def all(self) -> tuple[RecordedBatch, ...]:
        return tuple(self._held.values())

    def take(self, stamped: Stamped) -> None:
        event, held = stamped.event, self._held
        match event:
            case BatchPlanned(batch=number):
                requests = tuple(enumerate(event.digests.split()))
                size, began = event.requests, stamped.time
                held[number] = RecordedBatch(number, event.model, size, requests, began)
            case BatchSubmitted(batch=number) if number in held:
                held[number] = replace(held[number], id=event.id, ends=event.ends)
            case BatchCollected(batch=number) if number in held:
                left = frozenset(event.left)
                rest = tuple(one for one in held[number].requests if one[0] in left)
                held[number] = replace(held[number], requests=rest)
            case _:
                pass
