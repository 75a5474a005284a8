"""A turn's tool calls, made fit for the history before anything is done with them (L12, L17)."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.tools import Tool, ToolCall
from aish.loop import wording
from aish.loop.arguments import read_arguments
from aish.loop.equipment import Mask
from aish.loop.ids import unique_ids

_MAX_NAME = 64
_ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")


@frozen
class Wanted:
    """A call as it stands in the history, and what is known of it.

    `asked` is the call as it came, but that a name which no tool has is masked, as `why` is: they
    are cut before they are shown or sent back, and half a secret would not be known for one.
    `tool` is `None` for a name that no visible tool has, `arguments` where they are broken, and
    `why` then says how; `known` are the right names.
    """

    call: ToolCall
    asked: ToolCall
    tool: Tool | None
    arguments: JsonObject | None
    why: str
    known: tuple[str, ...]

    @property
    def tool_name(self) -> str:
        """`alias__name`, or what is fit to show of a name that no tool has."""
        return str(self.tool.name) if self.tool else self.call.name

    def refusal(self) -> str:
        """The reply where the call cannot be made."""
        if self.tool is None:
            return wording.unknown_tool(self.asked.name, self.known)
        return wording.not_parseable(self.why)


def make_legal(
    calls: Sequence[ToolCall],
    visible: Mapping[str, Tool],
    place: Place,
    used: Container[str],
    mask: Mask,
) -> tuple[Wanted, ...]:
    """The calls of one turn, with unique ids, sendable names and object arguments.

    `mask` takes the secrets out of what is told of a call that cannot be made.
    """
    ids = unique_ids([call.id for call in calls], place, used)
    known = tuple(visible)
    return tuple(
        _wanted(call, id, visible, known, mask) for call, id in zip(calls, ids, strict=True)
    )


def _wanted(
    call: ToolCall, id: str, visible: Mapping[str, Tool], known: tuple[str, ...], mask: Mask
) -> Wanted:
    tool = visible.get(call.name)
    if tool is None:
        call = replace(call, name=mask(call.name))
    read = read_arguments(call.arguments, tool.input_schema if tool else {})
    legal = ToolCall(id, _sendable(call.name), read.legal, call.extras)
    return Wanted(legal, call, tool, read.value, mask(read.why), known)


def _sendable(name: str) -> str:
    """A name that endpoints take back: a right one as it is, a wrong one made harmless."""
    return _ILLEGAL_IN_NAME.sub("_", name)[:_MAX_NAME] or "unknown"
