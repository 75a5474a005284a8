"""What sinks are told of the part of a run that came before a `--resume` (B3)."""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import field

from aish.cli.options import Format
from aish.core.events import Stamped
from aish.core.frozen import frozen
from aish.output.event_log import Sink
from aish.output.items.results import ItemsFile

_OF_ITEMS = frozenset({"item.started", "item.finished"})
_OF_STEPS = frozenset({"step.finished"})

Retold = Callable[[frozenset[str] | None, int], Iterator[Stamped]]
"""Events of some types, or `None` for all; of items only those that ended after a number."""


@frozen
class Before:
    """What an earlier part of the run has left.

    `journal` is open, and `after` its last number; a run that is only shown again has none.
    `steps` are done, and so are items up to the number `items`; `counts` are those of each step.
    """

    journal: Sink | None
    after: int
    steps: Container[str]
    items: int
    events: Retold
    counts: Mapping[str, int] = field(default_factory=dict)

    def told(
        self, items: ItemsFile | None, result: Sink, form: Format, last_step: str
    ) -> Iterator[tuple[Sink, Stamped]]:
        """Each sink with what it has to be told; of a million items that are few."""
        if items is not None and any(items.count(id) < n for id, n in self.counts.items()):
            # Somebody has taken lines out of it: it is made anew from the journal.
            items.clear()
        behind = items is not None and items.last < self.items
        known = 0 if items is None else items.last
        if self.journal is None or form is Format.JSON:
            for stamped in self.events(None, 0):
                if items is not None and behind:
                    yield items, stamped
                yield result, stamped
            return
        kinds: frozenset[str] = _OF_ITEMS if behind else frozenset()
        if form is Format.TEXT and last_step in self.steps:
            kinds |= _OF_STEPS
        for stamped in self.events(kinds, known) if kinds else ():
            if items is not None and behind:
                yield items, stamped
            if form is Format.TEXT:
                yield result, stamped
