"""How far `foreach` steps are, as lines of a log (B4): few, however many items there are.

One at the start, one now and then, one for each failure up to a bound, and what it came to.
"""

from collections.abc import Iterator
from dataclasses import field

from aish.core.frozen import slotted
from aish.output.progress.counts import (
    Batch,
    ItemFailure,
    closing_parts,
    count_text,
    pace_parts,
    spent_parts,
    trouble_parts,
)

TOLD_FAILURES = 20
_AT_LEAST = 10.0
_AT_MOST = 300.0
_SHARE = 10


@slotted
class ItemLog:
    """Remembers of each running batch when it last said something."""

    _told: dict[str, tuple[float, int]] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)

    def began(self, batch: Batch, now: float) -> Iterator[str]:
        """The first item of a batch begins."""
        if batch.step not in self._told:
            self._told[batch.step] = (now, 0)
            of = "items" if batch.total is None else f"{batch.total:,} items"
            of = "1 item" if batch.total == 1 else of
            before = f", {batch.before:,} done before" if batch.before else ""
            yield f"{batch.step}: {of}{before}"

    def finished(self, batch: Batch, failure: ItemFailure | None, now: float) -> Iterator[str]:
        """An item is over."""
        if failure is not None:
            count = self._failures[batch.step] = self._failures.get(batch.step, 0) + 1
            if count <= TOLD_FAILURES:
                yield f"{batch.step} {failure.key}: {failure.status}: {failure.message}"
            if count == TOLD_FAILURES:
                yield f"{batch.step}: other failures are counted from here on"
        if self._is_due(batch, now):
            self._told[batch.step] = (now, batch.done)
            share = f" ({100 * batch.over // batch.total} %)" if batch.total else ""
            parts = [f"{count_text(batch)}{share}", *pace_parts(batch, now)]
            parts += [f"{len(batch.in_flight):,} in flight", *trouble_parts(batch)]
            yield f"{batch.step}: {', '.join([*parts, *spent_parts(batch)])}"

    def ended(self, batch: Batch, seconds: float) -> Iterator[str]:
        """A batch is over."""
        self._told.pop(batch.step, None)
        more = self._failures.pop(batch.step, 0) - TOLD_FAILURES
        if more > 0:
            yield f"{batch.step}: {more:,} more failed"
        yield f"{batch.step}: {', '.join(closing_parts(batch, seconds))}"

    def _is_due(self, batch: Batch, now: float) -> bool:
        """After ten seconds and a tenth of the items, or of the time where nobody knows the end."""
        since, done = self._told.get(batch.step, (batch.began, 0))
        waited = now - since
        if waited < _AT_LEAST or batch.over == batch.total:
            return False
        if batch.total is None:
            return waited >= (now - batch.began) / _SHARE
        return (batch.done - done) * _SHARE >= batch.total or waited >= _AT_MOST
