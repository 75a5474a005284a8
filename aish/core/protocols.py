"""Interfaces of the objects that the tool loop and the runner receive at construction.

Each has an implementation in a higher-level package and a substitute that ships with aish
(`models.scripted.Scripted`, `terminal.unattended.Unattended`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal, Protocol

from aish.core.events import Event, Place, Stamped
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Delta, Finish, History
from aish.core.sources import NO_SOURCES, Sources
from aish.core.tools import MediaKinds, Tool, ToolName, ToolResult

Emit = Callable[[Event], None]
Follow = Callable[[Callable[[Stamped], None]], Callable[[], None]]
"""Follows the events of a run as its sinks get them, masked; what it returns ends that.

Whoever is told of an event must neither wait nor fail.
"""


@frozen
class AnswerSchema:
    """The JSON Schema of an answer, with the name used in the request."""

    name: str
    schema: JsonObject


class Received:
    """Progress of an answer, for display; filled in by the model.

    One `in_batch` comes after hours, and all at once.
    """

    __slots__ = ("in_batch", "source")

    def __init__(self) -> None:
        self.source: Growing | None = None
        self.in_batch = False

    @property
    def tokens(self) -> int:
        """Approximate number of tokens received: endpoints send one or a few at a time."""
        return 0 if self.source is None else self.source.progress


class Growing(Protocol):
    """An answer being received: the decoder of its wire."""

    @property
    def progress(self) -> int:
        """Number of pieces received."""


class Signal(Protocol):
    """An event that is set once, such as an `anyio.Event`."""

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


Park = Callable[[Signal], Awaitable[None]]
"""Waits until a signal is set; the step or item does nothing else meanwhile.

Raises what says that the run is paused before.
"""


class PendingAnswer(Protocol):
    """An answer that comes after hours, while no task waits for it.

    `hold` and `attempts` are what the model keeps for the request meanwhile.
    """

    hold: "Hold | None"
    attempts: tuple[int, int, int]

    def on_answer(self, call: Callable[[], None]) -> None:
        """Call `call` once the answer is there, or the error that takes its place."""

    def drop(self) -> None:
        """Nobody will ask for the answer."""


class PendingError(Exception):
    """A request waits for a batch; its conversation is to ask again with `pending` later."""

    def __init__(self, pending: PendingAnswer) -> None:
        super().__init__("the request waits for a batch")
        self.pending = pending


@frozen
class ModelRequest:
    """A turn to be answered.

    `tool_choice` is `auto`, `required`, `none`, or the wire name of one tool. `params` are merged
    into the body unchanged and override those of the model entry. `schema` is sent as
    `response_format` if the entry has `json_schema` and ignored otherwise (the caller adds
    instructions). `place` makes ids omitted by the endpoint reproducible in every run. `park` waits
    for an answer that the run need not wait for; without one it waits. With `suspends` a
    `PendingError` is raised instead of waiting for hours, and `pending` is the answer to the same
    request, which was sent before.
    """

    history: History
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    schema: AnswerSchema | None = None
    place: Place = field(default_factory=Place)
    received: Received = field(default_factory=Received, compare=False)
    park: Park | None = field(default=None, compare=False)
    suspends: bool = field(default=False, compare=False)
    pending: PendingAnswer | None = field(default=None, compare=False)


class Model(Protocol):
    """A model endpoint, retries and fallbacks included."""

    @property
    def alias(self) -> str: ...

    @property
    def enforces_schema(self) -> bool:
        """True if `ModelRequest.schema` reaches the endpoint (`json_schema` is not false)."""

    @property
    def schema_with_tools(self) -> bool:
        """True if this also holds beside tools in a request; a refusal is remembered."""

    @property
    def nulls_for_absent(self) -> bool:
        """True if the endpoint can only answer null for a property that may be missing."""

    @property
    def media_kinds(self) -> MediaKinds:
        """The media that may be put into turns (`vision: true`, `pdf: true`)."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Delta]]:
        """Answer one turn; batches of deltas as they arrive, `Finish` last.

        Raises:
            UnavailableError: the endpoint is unreachable, or refused the credentials.
            StepFailedError: the endpoint refused the request, or its answer is unusable.
        """


@frozen
class Progress:
    """A progress notification of a running call."""

    progress: float
    total: float | None = None
    message: str | None = None


class Tools(Protocol):
    def listed(self) -> tuple[Tool, ...]:
        """Every tool, in the order of the file's servers and the servers' own order."""

    def by_wire_name(self, wire: str) -> Tool | None:
        """The tool a model named, or `None`."""

    def by_name(self, name: ToolName) -> Tool | None:
        """The tool with a name from a file or user, or `None`; older names count."""

    async def call(
        self,
        tool: Tool,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: "Sampler | None" = None,
    ) -> ToolResult:
        """Call a tool; every failure is a result. Only cancellation passes through.

        `sample` answers the server's own sampling requests while this call runs.
        """


class Sampler(Protocol):
    """Answers a server's `sampling/createMessage` with the step's model."""

    async def sample(self, params: JsonObject) -> JsonObject:
        """A `CreateMessageResult` for `CreateMessageRequest` params."""


OnAsk = Literal["deny", "wait", "pause"]
"""What becomes of a call that nobody at a terminal can be asked about."""
_TIMEOUTS: Mapping[OnAsk, float] = {"deny": 0.0, "wait": 15 * 60.0, "pause": 7 * 86_400.0}


@frozen
class Asking:
    """Way to ask about a call; `timeout` in seconds, `None` is the default of `on_ask`."""

    on_ask: OnAsk = "deny"
    timeout: float | None = None

    @property
    def waits(self) -> bool:
        """True if a question stays open for somebody who is not at the terminal."""
        return self.on_ask != "deny"

    @property
    def seconds(self) -> float:
        """Number of seconds for which a question is open."""
        return _TIMEOUTS[self.on_ask] if self.timeout is None else self.timeout


Answer = Literal["no", "yes", "always"]
"""A person's answer to a question; `always` is a yes that approves later calls too."""


def _no_answer() -> str | None:
    return None


async def _always_open() -> bool:  # ruff: ignore[unused-async] - the type of others that wait
    return True


@frozen
class Question:
    """A tool call that needs approval: exactly what will be sent.

    `always` is the text of the rule that this answer would store for the session; empty if it is
    not offered. `is_open` says whether it still waits for an answer: somebody else may have given
    one, or a rule; `answered` then says what, and by whom. `sources` are those of the call.
    """

    tool: Tool
    arguments: JsonObject
    reason: str
    place: Place
    always: str | None = None
    sources: Sources = NO_SOURCES
    is_open: Callable[[], Awaitable[bool]] = field(default=_always_open, compare=False)
    answered: Callable[[], str | None] = field(default=_no_answer, compare=False)


class Approver(Protocol):
    """Asks the user for approval; `Unattended` is the substitute that always denies."""

    @property
    def attended(self) -> bool: ...

    async def ask(self, question: Question) -> Answer:
        """`yes` and `always` only if the user chose them, `always` only if it is offered."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float: ...


Every = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Calls something each time so many seconds have passed, until what it gave back is called."""


class Hold(Protocol):
    """The amount reserved for a request in progress."""

    def settle(self, finish: Finish) -> Finish:
        """The request was answered: record its usage and release the rest of the reservation.

        Returns the same finish with its cost.
        """

    def close(self, *, begun: bool) -> None:
        """End the reservation; does nothing after `settle`.

        If `begun`, the worst case counts as used, because the actual cost is unknown.
        """


class Meter(Protocol):
    """Counts the usage of a run and stops it at its limits."""

    async def reserve(self, place: Place, alias: str, size: int, max_tokens: int | None) -> Hold:
        """Reserve what a request may use; waits while others hold the rest of a limit.

        `size` is the body size in bytes, `max_tokens` the maximum length of the answer.

        Raises:
            BudgetError: a limit would be exceeded.
        """

    async def count_call(self, place: Place) -> None:
        """A tool is about to be called.

        Raises:
            BudgetError: a limit would be exceeded.
        """
