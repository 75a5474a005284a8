"""The seams: what the loop and the runner are given at construction.

Each has a real implementation in a room of floor 4 or 3 and a twin that ships in the package
(`models.scripted.Scripted`, `terminal.unattended.Unattended`).
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal, Protocol

from aish.core.events import Event, Place
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Delta, Finish, History
from aish.core.tools import Tool, ToolName, ToolResult

Emit = Callable[[Event], None]


@frozen
class AnswerSchema:
    """The JSON Schema an answer has to fit, with a name for the wire."""

    name: str
    schema: JsonObject


class Received:
    """How much of an answer has come, for who waits for it; filled in by the model."""

    __slots__ = ("source",)

    def __init__(self) -> None:
        self.source: Growing | None = None

    @property
    def tokens(self) -> int:
        """About as many tokens as have come: endpoints send one at a time, or a few."""
        return 0 if self.source is None else self.source.progress


class Growing(Protocol):
    """An answer that grows: `wire.chat.decode.ChatDecoder`."""

    @property
    def progress(self) -> int:
        """How often something of it has come."""
        ...


@frozen
class ModelRequest:
    """One turn to be answered.

    `tool_choice` is `auto`, `required`, `none`, or the wire name of one tool. `params` are merged
    into the body as they are, over the model entry's own. `schema` goes out as `response_format`
    where the entry has `json_schema` and is ignored elsewhere (the caller instructs).
    `place` makes ids that the endpoint left out (L16) the same in every run.
    """

    history: History
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    schema: AnswerSchema | None = None
    place: Place = field(default_factory=Place)
    received: Received = field(default_factory=Received, compare=False)


class Model(Protocol):
    """A model endpoint, retries and fallbacks included (L8, L9)."""

    @property
    def alias(self) -> str:
        """The name in the pipeline file."""
        ...

    @property
    def enforces_schema(self) -> bool:
        """Whether `ModelRequest.schema` reaches the endpoint (`json_schema` is not false)."""
        ...

    @property
    def schema_with_tools(self) -> bool:
        """Whether it does so in a request that has tools too; an endpoint's no is remembered."""
        ...

    @property
    def sees_images(self) -> bool:
        """Whether media may be put into turns (`vision: true`)."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Delta]]:
        """Answer one turn; batches of deltas as they arrive, `Finish` last.

        Raises:
            UnavailableError: the endpoint stayed out of reach, or refused the credentials.
            StepFailedError: the endpoint refused the request, or its answer is unusable.
        """
        ...


@frozen
class Progress:
    """A progress notification of a running call (M9)."""

    progress: float
    total: float | None = None
    message: str | None = None


class Tools(Protocol):
    """The tools of all connected servers."""

    def listed(self) -> tuple[Tool, ...]:
        """Every tool, in the order of the file's servers and the servers' own order."""
        ...

    def by_wire_name(self, wire: str) -> Tool | None:
        """The tool a model named, or `None`."""
        ...

    def by_name(self, name: ToolName) -> Tool | None:
        """The tool a file or a person named, or `None`; unlisted older names included."""
        ...

    async def call(
        self,
        tool: Tool,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: "Sampler | None" = None,
    ) -> ToolResult:
        """Call a tool; every failure is a result (M8). Only cancellation passes through.

        `sample` answers the server's own sampling requests while this call runs (M11).
        """
        ...


class Sampler(Protocol):
    """Answers a server's `sampling/createMessage` with the step's model (M11)."""

    async def sample(self, params: JsonObject) -> JsonObject:
        """A `CreateMessageResult` for `CreateMessageRequest` params."""
        ...


Answer = Literal["no", "yes", "always"]
"""A person's answer to a question; `always` is a yes that approves later calls too."""


@frozen
class Question:
    """A tool call a person is asked about: exactly what will be sent (P2).

    `always` is the text of the rule that this answer would store for the session; without one
    it is not offered.
    """

    tool: Tool
    arguments: JsonObject
    reason: str
    place: Place
    always: str | None = None


class Approver(Protocol):
    """Asks a person; `Unattended` is the twin that says no at once (P3)."""

    @property
    def attended(self) -> bool:
        """Whether there is a person at all."""
        ...

    async def ask(self, question: Question) -> Answer:
        """`yes` and `always` only where a person said so, `always` only where it is offered."""
        ...


class Clock(Protocol):
    """Time, so that tests need not wait for it."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...


Every = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Calls something each time so many seconds have passed, until what it gave back is called."""


class Hold(Protocol):
    """What one request may cost at most, set aside while it is under way (B8)."""

    def settle(self, finish: Finish) -> Finish:
        """The request was answered: what it used is spent, what was set aside is free again.

        The same finish, with what it cost.
        """
        ...

    def close(self, *, begun: bool) -> None:
        """The request is over; does nothing after `settle`.

        One that had `begun` to be answered is spent at its worst, for nobody says what it cost.
        """
        ...


class Meter(Protocol):
    """Counts what a run uses, and stops it at its limits (B8)."""

    async def reserve(self, place: Place, alias: str, size: int, max_tokens: int | None) -> Hold:
        """Set aside what a request to a model may use; waits while others hold what it needs.

        `size` is the body's in bytes, `max_tokens` what the endpoint may answer at most.

        Raises:
            BudgetError: a limit does not allow for it.
        """
        ...

    async def count_call(self, place: Place) -> None:
        """A tool is about to be called.

        Raises:
            BudgetError: a limit does not allow for it.
        """
        ...
