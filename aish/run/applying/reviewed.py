"""The calls that a person applies, as the gate asks for them (B16, P10)."""

from collections.abc import Iterable, Mapping

from aish.core.events import Place
from aish.core.json import JsonObject
from aish.core.tools import Tool
from aish.policy.digest import canonical
from aish.run.staging.call import StagedCall


class ReviewedCalls:
    """A `policy.staging.Reviewed`: approves these calls, to the letter, and no others."""

    def __init__(self, calls: Iterable[StagedCall], source: str) -> None:
        self._calls: Mapping[str, StagedCall] = {call.id: call for call in calls}
        self._source = source

    def rule(self, tool: Tool, arguments: JsonObject, place: Place) -> str | None:
        """What a call that is one of them is approved by; `None` for any other call."""
        call = self._calls.get(place.call or "")
        if call is None or call.name != tool.name:
            return None
        if canonical(call.arguments) != canonical(arguments):
            return None
        return f"apply {self._source}#{call.id}"


def place_of(call: StagedCall) -> Place:
    """Where a call is in the run that applies it: a step of its own."""
    return Place(step=f"call-{call.id}", call=call.id)
