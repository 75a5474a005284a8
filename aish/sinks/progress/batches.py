"""The `foreach` steps that run now, and which of a run's events are theirs.

What happens inside an item is counted and not told one by one: there may be a million of them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import field

from aish.core.events import Event, ItemStarted, Notice, Place, Retry, StepStarted
from aish.core.frozen import slotted
from aish.sinks.progress.batch import Batch

TOLD = 3
"""How many notices of one kind are told; the others are counted."""


@slotted
class Batches:
    """The running batches by step, in the order they began."""

    running: dict[str, Batch] = field(default_factory=dict)
    _known: dict[str, tuple[int | None, float, int]] = field(default_factory=dict)
    _notices: Counter[tuple[str, str]] = field(default_factory=Counter)

    def of(self, place: Place) -> Batch | None:
        """The batch that something at this place belongs to; sub-steps belong to their step's."""
        if place.item is None or place.step is None:
            return None
        step = place.step
        while (batch := self.running.get(step)) is None:
            step, cut, _ = step.rpartition("/")
            if not cut:
                return None
        return batch

    def step_started(self, event: StepStarted, now: float) -> None:
        """A step begins; whether it has items shows when the first of them does."""
        if event.place.item is None and event.place.step is not None:
            self._known[event.place.step] = (event.count, now, event.done)

    def item_started(self, event: ItemStarted, now: float) -> Batch | None:
        """The batch of an item that begins; none where the item is part of another one."""
        step = event.place.step or ""
        batch = self.of(event.place)
        if batch is None:
            total, began, before = self._known.get(step, (None, now, 0))
            batch = self.running[step] = Batch(step, total, began, before)
        elif batch.step != step:
            return None
        batch.start(event, now)
        return batch

    def ended(self, step: str | None) -> Batch | None:
        """The batch of a step that is over, if it was one."""
        self._known.pop(step or "", None)
        return self.running.pop(step or "", None)

    def counted(self, batch: Batch, event: Event) -> bool:
        """Count what happened inside an item; whether it is worth a line all the same."""
        if isinstance(event, Retry):
            batch.retries += 1
        elif isinstance(event, Notice):
            if event.code in {"throttled", "unthrottled"}:
                batch.limit = event.text if event.code == "throttled" else None
            key = (batch.step, event.code)
            self._notices[key] += 1
            return self._notices[key] <= TOLD
        return False

    def untold(self, batch: Batch) -> Iterable[tuple[str, int]]:
        """Each kind of notice that was told too seldom, and how many more of it there were."""
        for (step, code), count in list(self._notices.items()):
            if step == batch.step:
                del self._notices[step, code]
                if count > TOLD:
                    yield code, count - TOLD
