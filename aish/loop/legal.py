"""A turn's tool calls, made fit for the history before anything is done with them (L12, L17)."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from aish.loop import wording
from aish.loop.arguments import read_arguments
from aish.loop.ids import unique_ids
from aish.vocab.events import Place
from aish.vocab.json import JsonObject
from aish.vocab.tools import Tool, ToolCall

_MAX_NAME = 64
_ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call as it stands in the history, and what is known of it.

    `tool` is `None` for a name that no visible tool has, `arguments` where they are broken;
    `refusal` is then the reply. `sent` is the argument text as it came.
    """

    call: ToolCall
    tool: Tool | None
    arguments: JsonObject | None
    sent: str
    refusal: str = ""

    @property
    def tool_name(self) -> str:
        """`alias__name`, or what is fit to show of a name that no tool has."""
        return str(self.tool.name) if self.tool else self.call.name


def make_legal(
    calls: Sequence[ToolCall], visible: Mapping[str, Tool], place: Place, used: Container[str]
) -> tuple[Wanted, ...]:
    """The calls of one turn, with unique ids, sendable names and object arguments."""
    ids = unique_ids([call.id for call in calls], place, used)
    return tuple(_wanted(call, id, visible) for call, id in zip(calls, ids, strict=True))


def _wanted(call: ToolCall, id: str, visible: Mapping[str, Tool]) -> Wanted:
    tool = visible.get(call.name)
    read = read_arguments(call.arguments, tool.input_schema if tool else {})
    legal = ToolCall(id, _sendable(call.name), read.legal, call.extras)
    refusal = ""
    if tool is None:
        refusal = wording.unknown_tool(call.name, tuple(visible))
    elif read.value is None:
        refusal = wording.not_parseable(read.why)
    return Wanted(legal, tool, read.value, call.arguments, refusal)


def _sendable(name: str) -> str:
    """A name that endpoints take back: a right one as it is, a wrong one made harmless."""
    return _ILLEGAL_IN_NAME.sub("_", name)[:_MAX_NAME] or "unknown"
