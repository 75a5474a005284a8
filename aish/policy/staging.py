"""What the gate asks about staged calls (B16): can one be put down, and was it approved since.

`run.staging` puts calls down, `run.applying` has those that a person applies.
"""

from typing import Protocol

from aish.core.events import Place
from aish.core.json import JsonObject
from aish.core.tools import Tool

STAGED = (
    "[aish] staged for review: this call was NOT executed. It is put down and may be executed "
    "later, after a person has reviewed it. Do not call it again, and do not rely on its effect"
)
NOT_KEPT = "[aish] tool call not executed, and it could not be put down for review either"


class Staging(Protocol):
    """Where calls are put down for review."""

    def refusal(self, tool: Tool, arguments: JsonObject) -> str | None:
        """Why this call cannot be put down, if so."""
        ...

    def definition(self, tool: Tool) -> str:
        """The SHA-256 of what its server says of a tool, as a lock has it."""
        ...

    def holds(self, digest: str) -> bool:
        """Whether the call of this digest was put down."""
        ...


class Reviewed(Protocol):
    """The calls that a person applies, having reviewed them."""

    def rule(self, tool: Tool, arguments: JsonObject, place: Place) -> str | None:
        """What a call that is one of them is approved by; `None` for any other call."""
        ...
