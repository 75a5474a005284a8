"""What each step and item has used so far, told from the events of its turns."""

from dataclasses import dataclass, field

from aish.loop.usage import add_usage
from aish.vocab.deltas import Usage
from aish.vocab.event_parts import Place
from aish.vocab.events import Event, TurnFinished, TurnStarted
from aish.vocab.frozen import frozen


@frozen
class Used:
    """Requests sent, and what their answers came to; `cost_usd` of `None` is unknown."""

    turns: int = 0
    usage: Usage | None = None
    cost_usd: float | None = 0.0


_NOTHING = Used()
Unit = tuple[str | None, str | None]


@dataclass(slots=True)
class Spending:
    """Counts while a unit of work is in flight; a step that ends by an error has no other count."""

    units: dict[Unit, Used] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Count a turn."""
        match event:
            case TurnStarted(place=place):
                was = self.of(place)
                now = Used(was.turns + 1, was.usage, was.cost_usd)
            case TurnFinished(place=place, usage=usage, cost_usd=cost):
                was = self.of(place)
                total = None if cost is None or was.cost_usd is None else was.cost_usd + cost
                now = Used(was.turns, add_usage(was.usage, usage), total)
            case _:
                return
        self.units[place.step, place.item] = now

    def of(self, place: Place) -> Used:
        """What the step or item at `place` has used."""
        return self.units.get((place.step, place.item), _NOTHING)

    def forget(self, place: Place) -> None:
        """The unit has ended."""
        self.units.pop((place.step, place.item), None)
