"""What each step and item has used so far, told from the events of its turns."""

from dataclasses import field

from aish.agent.runtime import add_cost, add_usage
from aish.core.events import Event, Place, TurnFinished, TurnStarted
from aish.core.frozen import frozen, slotted
from aish.core.messages import Usage
from aish.engine.limits.budget import scopes


@frozen
class Used:
    """Requests sent, and what their answers came to; `cost_usd` of `None` is unknown."""

    turns: int = 0
    usage: Usage | None = None
    cost_usd: float | None = 0.0


_NOTHING = Used()
_Unit = tuple[str | None, str]


@slotted
class Spending:
    """Counts while a unit of work is in flight; a step that ends by an error has no other count."""

    steps: dict[str | None, Used] = field(default_factory=dict)
    items: dict[_Unit, Used] = field(default_factory=dict)
    whole: Used = _NOTHING

    def take(self, event: Event) -> None:
        """Count a turn, for its item, its step and the whole run."""
        if not isinstance(event, TurnStarted | TurnFinished):
            return
        step, item = event.place.step, event.place.item
        self.whole = _more(self.whole, event)
        # What runs within a step is the step's too.
        for id in scopes(step) if step is not None else (None,):
            self.steps[id] = _more(self.steps.get(id, _NOTHING), event)
        if item is not None:
            self.items[step, item] = _more(self.items.get((step, item), _NOTHING), event)

    def add(self, used: Used) -> None:
        """Count what was used elsewhere, for the whole run."""
        was = self.whole
        self.whole = Used(
            was.turns + used.turns,
            add_usage(was.usage, used.usage or Usage()),
            add_cost(was.cost_usd, used.cost_usd),
        )

    def of(self, place: Place) -> Used:
        """What the step or item at `place` has used: a step with all of its items."""
        if place.item is None:
            return self.steps.get(place.step, _NOTHING)
        return self.items.get((place.step, place.item), _NOTHING)

    def forget(self, place: Place) -> None:
        """The item has ended."""
        if place.item is not None:
            self.items.pop((place.step, place.item), None)


def _more(was: Used, event: TurnStarted | TurnFinished) -> Used:
    if isinstance(event, TurnStarted):
        return Used(was.turns + 1, was.usage, was.cost_usd)
    cost = add_cost(was.cost_usd, event.cost_usd)
    return Used(was.turns, add_usage(was.usage, event.usage), cost)
