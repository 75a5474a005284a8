"""Which tool calls a run made, and which were denied, told from its events (S8)."""

from collections.abc import Iterable, Mapping

from aish.core.events import Event, Place, ToolDecided, ToolStarted
from aish.core.frozen import frozen
from aish.core.tools import ToolName
from aish.policy.suggest_rules import Made

_YES = frozenset({"auto", "ask-yes"})
_NO = frozenset({"deny", "ask-no"})


@frozen
class Calls:
    """What was called and what was denied, in order; `untold` says what cannot be told, and why."""

    made: tuple[Made, ...] = ()
    denied: tuple[Made, ...] = ()
    untold: tuple[str, ...] = ()


def made_of_events(events: Iterable[Event]) -> Calls:
    """The calls in the events of a run or a session; what was staged is neither.

    What was approved and never begun was not made.
    """
    made: list[Made] = []
    denied: list[Made] = []
    approved: dict[tuple[Place, str], Made] = {}
    for event in events:
        match event:
            case ToolDecided(arguments=arguments) if isinstance(arguments, Mapping):
                call = Made(ToolName(event.server, event.name), arguments)
                if event.verdict in _YES:
                    approved[event.place, event.tool] = call
                elif event.verdict in _NO:
                    denied.append(call)
            case ToolStarted():
                begun = approved.pop((event.place, event.tool), None)
                if begun is not None:
                    made.append(begun)
            case _:
                pass
    return Calls(tuple(made), tuple(denied))
