"""What a model stream says, piece by piece.

Order in one turn: any number of `TextPiece`, `ReasoningPiece`, `Notice`; then the `ToolCall`s,
each once and whole; then `Extras` if the endpoint sent unknown fields; then `Finish`, always and
last. `Withdrawn` says that everything since the turn's beginning did not happen (a broken stream
is about to be tried again).
"""

from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.tools import ToolCall

FinishReason = Literal["stop", "tool_calls", "length", "refusal", "other"]


@frozen
class Usage:
    """Tokens; `None` is unknown, never zero (quirk 34)."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None


@frozen
class TextPiece:
    """Some text of the answer."""

    text: str


@frozen
class ReasoningPiece:
    """Some text of the thinking."""

    text: str


@frozen
class Extras:
    """Unknown fields of the assistant message, to be sent back verbatim (L12)."""

    fields: JsonObject


@frozen
class Finish:
    """The end of a complete turn. `raw` is the endpoint's own word for the reason."""

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
    """What was said of this turn so far is void."""

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
    """Something odd that was tolerated."""

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
