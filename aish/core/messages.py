"""A conversation: turns typed by role (L12), and the deltas in which a model streams one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import Media, ToolCall


@frozen
class SystemTurn:
    """The system prompt."""

    text: str


@frozen
class UserTurn:
    """A message from the user, or from the pipeline on the user's behalf."""

    text: str
    media: tuple[Media, ...] = ()


@frozen
class AssistantTurn:
    """A model's answer; `text` may be empty if it requested tools.

    `calls` hold valid arguments only: invalid ones are replaced before (L17). `extras` are the
    endpoint's own message fields, sent back verbatim to the endpoint named by `origin` and to no
    other (L12).
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    extras: Mapping[str, JsonValue] = field(default_factory=dict)
    origin: str = ""


@frozen
class ToolTurn:
    """The reply to one tool call.

    `tool` is the `alias__name` for display and for the format without tool roles (L13).
    """

    call_id: str
    tool: str
    content: str
    media: tuple[Media, ...] = ()


Turn = SystemTurn | UserTurn | AssistantTurn | ToolTurn


@dataclass(eq=False)
class History:
    """The turns so far, in an append-only list.

    Clients cache the encoding of a list (weakly, by identity) and encode only what was added, so
    that the cost of a turn does not grow with the conversation. A shortened conversation (L19) gets
    a new list.
    """

    turns: list[Turn] = field(default_factory=list)


FinishReason = Literal["stop", "tool_calls", "length", "refusal", "other"]


@frozen
class Usage:
    """Tokens; `None` is unknown, never zero (quirk 34)."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None


def add_usage(sum_so_far: Usage | None, more: Usage) -> Usage:
    """The sum of both; `None` is the sum of no usage.

    Input and output are unknown if one summand is unknown, because a partial sum would be
    misleading. The other two are details that endpoints omit if there is nothing to report.
    """
    if sum_so_far is None:
        return more
    return Usage(
        input=_both(sum_so_far.input, more.input),
        output=_both(sum_so_far.output, more.output),
        cached=_either(sum_so_far.cached, more.cached),
        reasoning=_either(sum_so_far.reasoning, more.reasoning),
    )


def add_cost(sum_so_far: float | None, more: float | None) -> float | None:
    """The sum of both; unknown if one of them is unknown."""
    return None if sum_so_far is None or more is None else sum_so_far + more


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _either(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


@frozen
class Spent:
    """Usage of several answers and calls together: of an item, of a step, of a run (B8).

    `usage` is `None` if no model has answered. `cost_usd` is `None` if the cost of an answer is
    unknown; `known_usd` is the known part.
    """

    turns: int = 0
    usage: Usage | None = None
    cost_usd: float | None = 0.0
    tool_calls: int = 0
    seconds: float = 0.0
    known_usd: float = 0.0

    def plus(self, more: "Spent") -> "Spent":
        """The sum of both."""
        return Spent(
            turns=self.turns + more.turns,
            usage=self.usage if more.usage is None else add_usage(self.usage, more.usage),
            cost_usd=add_cost(self.cost_usd, more.cost_usd),
            tool_calls=self.tool_calls + more.tool_calls,
            seconds=self.seconds + more.seconds,
            known_usd=self.known_usd + more.known_usd,
        )


@frozen
class TextPiece:
    """A piece of answer text."""

    text: str


@frozen
class ReasoningPiece:
    """A piece of reasoning text."""

    text: str


@frozen
class Extras:
    """Unknown fields of the assistant message, to be sent back verbatim (L12)."""

    fields: JsonObject


@frozen
class Finish:
    """The end of a complete turn. `raw` is the finish reason as sent by the endpoint."""

    reason: FinishReason
    usage: Usage
    raw: str = ""
    refusal: str | None = None
    model: str = ""
    """The alias that answered, set by the client."""
    cost_usd: float | None = None
    """What the turn cost: as the endpoint says, else set by the client; `None` is unknown."""


@frozen
class Withdrawn:
    """The pieces of this turn so far are void."""

    reason: str


@frozen
class Retrying:
    """The request will be sent again after `delay` seconds."""

    endpoint: str
    attempt: int
    delay: float
    reason: str


@frozen
class FellBack:
    """The next model answers this turn (L9)."""

    source: str
    target: str
    reason: str


@frozen
class StreamNotice:
    """An unusual response that was tolerated."""

    code: str
    text: str


Delta = (
    TextPiece
    | ReasoningPiece
    | ToolCall
    | Extras
    | Finish
    | Withdrawn
    | Retrying
    | FellBack
    | StreamNotice
)
