"""What each step and item has used so far, told from the events of its turns."""

from dataclasses import dataclass, field

from aish.loop.usage import add_cost, add_usage
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
    whole: Used = _NOTHING

    def take(self, event: Event) -> None:
        """Count a turn, for its unit and for the whole run."""
        if isinstance(event, TurnStarted | TurnFinished):
            place = event.place
            self.units[place.step, place.item] = _more(self.of(place), event)
            self.whole = _more(self.whole, event)

    def of(self, place: Place) -> Used:
        """What the step or item at `place` has used."""
        return self.units.get((place.step, place.item), _NOTHING)

    def forget(self, place: Place) -> None:
        """The unit has ended."""
        self.units.pop((place.step, place.item), None)


def _more(was: Used, event: TurnStarted | TurnFinished) -> Used:
    if isinstance(event, TurnStarted):
        return Used(was.turns + 1, was.usage, was.cost_usd)
    cost = add_cost(was.cost_usd, event.cost_usd)
    return Used(was.turns, add_usage(was.usage, event.usage), cost)
