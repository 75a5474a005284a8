"""A conversation: turns typed by role (L12).

`History` only holds turns. `agent.conversation` is the one place that adds them and checks that
each is legal where it stands; `models` encodes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.tools import Media, ToolCall


@frozen
class SystemTurn:
    """What the model is told before anything else."""

    text: str


@frozen
class UserTurn:
    """What a person, or the pipeline in a person's stead, says."""

    text: str
    media: tuple[Media, ...] = ()


@frozen
class AssistantTurn:
    """What a model said; `text` may be empty if it asked for tools.

    `calls` hold legal arguments only: broken ones are replaced before they come here (L17).
    `extras` are the endpoint's own message fields, sent back verbatim to the endpoint named by
    `origin` and to no other (L12).
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    extras: Mapping[str, JsonValue] = field(default_factory=dict)
    origin: str = ""


@frozen
class ToolTurn:
    """The reply to one tool call.

    `tool` is the `alias__name` for people and for the form of L13 without tool roles.
    """

    call_id: str
    tool: str
    content: str
    media: tuple[Media, ...] = ()


Turn = SystemTurn | UserTurn | AssistantTurn | ToolTurn


@dataclass(eq=False)
class History:
    """The turns so far, in a list that is only added to.

    Clients keep what they encoded of one (weakly, by identity) and encode only what was added, so
    that a turn's cost does not grow with the conversation. Where a conversation is shortened (L19)
    it gets another list.
    """

    turns: list[Turn] = field(default_factory=list)
