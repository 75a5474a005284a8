"""A conversation: turns typed by role, and the deltas in which a model streams one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.sources import NO_SOURCES, Sources, union
from aish.core.tools import Media, ToolCall


@frozen
class SystemTurn:
    text: str
    sources: Sources = NO_SOURCES


@frozen
class UserTurn:
    """A message from the user, or from the pipeline on the user's behalf."""

    text: str
    media: tuple[Media, ...] = ()
    sources: Sources = NO_SOURCES


@frozen
class AssistantTurn:
    """A model's answer; `text` may be empty if it requested tools.

    `calls` hold valid arguments only: invalid ones are replaced before. `extras` are the
    endpoint's own message fields, sent back verbatim to the endpoint named by `origin` and to no
    other: an alias, with what else tells endpoints apart after a space.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    extras: Mapping[str, JsonValue] = field(default_factory=dict)
    origin: str = ""
    sources: Sources = NO_SOURCES


@frozen
class ToolTurn:
    """The reply to one tool call.

    `tool` is the `alias__name` for display and for the format without tool roles. `is_error`: the
    tool failed, or the call was not made.
    """

    call_id: str
    tool: str
    content: str
    media: tuple[Media, ...] = ()
    is_error: bool = False
    sources: Sources = NO_SOURCES


Turn = SystemTurn | UserTurn | AssistantTurn | ToolTurn


class History:
    """The turns so far, in an append-only list.

    Clients cache the encoding of a list (weakly, by identity) and encode only what was added, so
    that the cost of a turn does not grow with the conversation. A shortened conversation gets
    a new list.
    """

    def __init__(self, turns: list[Turn] | None = None) -> None:
        self.turns = [] if turns is None else turns

    @property
    def sources(self) -> Sources:
        """The sources of all turns: an answer has those of what it was asked with."""
        return union(_sources_from_end(self.turns))


def _sources_from_end(turns: Sequence[Turn]) -> Iterator[Sources]:
    for turn in reversed(turns):
        yield turn.sources
        if isinstance(turn, AssistantTurn):
            return


FinishReason = Literal["stop", "tool_calls", "length", "refusal", "other"]


@frozen
class Usage:
    """Tokens; `None` is unknown, never zero."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    """Read from the endpoint's cache, part of `input`."""
    reasoning: int | None = None
    cache_written: int | None = None
    """Written to the endpoint's cache, part of `input`."""


def add_usage(sum_so_far: Usage | None, more: Usage) -> Usage:
    """The sum of both; `None` is the sum of no usage.

    Input and output are unknown if one summand is unknown, because a partial sum would be
    misleading. The others are details that endpoints omit if there is nothing to report.
    """
    if sum_so_far is None:
        return more
    one, other = sum_so_far, more
    cached, reasoning, written = other.cached, other.reasoning, other.cache_written
    # A resumed run adds up millions of answers, so nothing is called for each count.
    if one.cached is not None:
        cached = one.cached + (cached or 0)
    if one.reasoning is not None:
        reasoning = one.reasoning + (reasoning or 0)
    if one.cache_written is not None:
        written = one.cache_written + (written or 0)
    return Usage(
        None if one.input is None or other.input is None else one.input + other.input,
        None if one.output is None or other.output is None else one.output + other.output,
        cached,
        reasoning,
        written,
    )


def add_cost(sum_so_far: float | None, more: float | None) -> float | None:
    """The sum of both; unknown if one of them is unknown."""
    return None if sum_so_far is None or more is None else sum_so_far + more


def sum_costs(costs: Iterable[float | None]) -> float | None:
    """The sum; unknown if one of them is unknown."""
    known = tuple(costs)
    return None if None in known else sum(cost for cost in known if cost is not None)


@frozen
class Spent:
    """Usage of several answers and calls together: of an item, of a step, of a run.

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
        cost = self.cost_usd
        return Spent(
            self.turns + more.turns,
            self.usage if more.usage is None else add_usage(self.usage, more.usage),
            None if cost is None or more.cost_usd is None else cost + more.cost_usd,
            self.tool_calls + more.tool_calls,
            self.seconds + more.seconds,
            self.known_usd + more.known_usd,
        )


class SpentSum:
    """A sum of usage that is added to in place: a resumed run adds up millions of answers."""

    __slots__ = (
        "_cached", "_cost", "_input", "_known", "_output", "_reasoning", "_turns", "_used",
        "_written",
    )  # fmt: skip

    def __init__(self) -> None:
        self._turns = 0
        self._used = False
        self._input: int | None = 0
        self._output: int | None = 0
        self._cached: int | None = None
        self._reasoning: int | None = None
        self._written: int | None = None
        self._cost: float | None = 0.0
        self._known = 0.0

    def add(self, usage: Usage | None, cost_usd: float | None, turns: int = 0) -> None:
        """Add as `Spent.plus` does; `turns` are answers: only what is known of these counts."""
        if usage is not None:
            self._used = True
            nothing = 0 if turns else None
            total, more = self._input, nothing if usage.input is None else usage.input
            self._input = None if total is None or more is None else total + more
            total, more = self._output, nothing if usage.output is None else usage.output
            self._output = None if total is None or more is None else total + more
            if usage.cached is not None:
                self._cached = (self._cached or 0) + usage.cached
            if usage.reasoning is not None:
                self._reasoning = (self._reasoning or 0) + usage.reasoning
            if usage.cache_written is not None:
                self._written = (self._written or 0) + usage.cache_written
        if turns:
            self._turns += turns
            self._known += cost_usd or 0.0
        cost = self._cost
        self._cost = None if cost is None or cost_usd is None else cost + cost_usd

    @property
    def spent(self) -> Spent:
        """The sum so far."""
        usage = Usage(self._input, self._output, self._cached, self._reasoning, self._written)
        return Spent(self._turns, usage if self._used else None, self._cost, known_usd=self._known)


@frozen
class TextPiece:
    text: str


@frozen
class ReasoningPiece:
    text: str


@frozen
class Extras:
    """Unknown fields of the assistant message, to be sent back verbatim."""

    fields: JsonObject


@frozen
class Served:
    """An endpoint's names for the model that answered, for its state, and for the answer.

    Where they change within an answer, the last ones of model and state count, and the first id.
    """

    model: str | None = None
    fingerprint: str | None = None
    id: str | None = None


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
    served: Served | None = None
    origin: str = ""
    """What `AssistantTurn.origin` is to say, set by the client; the alias if empty."""
    long_written: int | None = None
    """Tokens of `usage.cache_written` that are kept longer than usual, which costs more.

    `None` if the endpoint does not tell them apart.
    """
    in_batch: bool | None = None
    """Whether it was charged as a part of a batch, if the endpoint says that."""
    unpinned: Exception | None = None
    """The error that ends the run once the turn is told, if the lock pins another model."""


@frozen
class Paused:
    """A part of this turn has ended, with counts of its own, and the endpoint is asked to go on."""

    part: Finish


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
    """The next model answers this turn."""

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
    | Paused
    | Withdrawn
    | Retrying
    | FellBack
    | StreamNotice
)
