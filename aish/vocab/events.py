"""Everything a run says of itself (design 11): a closed union of frozen dataclasses.

Renderers, reports, journal and results know nothing else. The field names here are the keys of
`schemas/events.schema.json`; `sinks.lines` puts `v`, `seq`, `time` and `type` around them and
spells `Place` as `step`, `item`, `turn`, `call`. Additions are the only change allowed.
"""

from dataclasses import field
from typing import Literal

from aish.vocab.deltas import Usage
from aish.vocab.event_parts import (
    NOWHERE,
    AnnotationLevel,
    Asked,
    Exit,
    Failure,
    Level,
    Place,
    StepKind,
    StepStatus,
    TurnPurpose,
    Verdict,
)
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue
from aish.vocab.run_parts import CassetteInfo, CassetteUse, ModelInfo, RuleInfo, ServerInfo, Shard
from aish.vocab.tools import ResultKind
from aish.vocab.turn_events import OfConversation


@frozen
class RunStarted:
    """The head of the stream: what this run is made of; inputs are masked.

    `fingerprint` has a short hash of each thing that a resumed run must have unchanged (B3).
    `applies` is the run whose staged calls this one executes (B16): it cannot be resumed.
    """

    aish: str
    pipeline: str
    digest: str
    models: tuple[ModelInfo, ...]
    servers: tuple[ServerInfo, ...]
    rules: tuple[RuleInfo, ...]
    limits: JsonObject
    inputs: JsonObject
    overrides: tuple[str, ...] = ()
    folder: str | None = None
    resumed_from: str | None = None
    fingerprint: JsonObject = field(default_factory=dict)
    shard: Shard | None = None
    cassette: CassetteInfo | None = None
    applies: str | None = None
    place: Place = NOWHERE


@frozen
class StepStarted:
    """A step begins; `count` items, if that is known, of which `done` were done before (B3).

    `given` says whether its items, and their keys, came with the input of the run: what no model
    and no tool of the run has written.
    """

    place: Place
    kind: StepKind
    count: int | None = None
    done: int = 0
    given: tuple[Literal["item", "key"], ...] = ()


@frozen
class StepFinished:
    """A step has ended, whatever its status."""

    place: Place
    status: StepStatus
    text: str | None
    output: JsonValue
    usage: Usage
    cost_usd: float | None
    seconds: float
    error: Failure | None = None


@frozen
class ItemStarted:
    """An item of a `foreach` step begins (B3); `place.item` is its key.

    `digest` is of the item's value: the first 16 hexadecimal digits of a SHA-256.
    """

    place: Place
    key: str
    index: int
    digest: str
    value: JsonValue = None


@frozen
class ItemFinished:
    """An item has ended; one that was cut off has no such event, and is run again."""

    place: Place
    key: str
    index: int
    status: StepStatus
    text: str | None
    output: JsonValue
    usage: Usage
    cost_usd: float | None
    seconds: float
    error: Failure | None = None


@frozen
class TurnStarted:
    """A request is about to be sent; `messages` counts the turns in it."""

    place: Place
    model: str
    messages: int
    purpose: TurnPurpose = "answer"


@frozen
class TurnProgress:
    """A model has not answered yet: told now and then, with about as many tokens as came so far."""

    place: Place
    model: str
    tokens: int
    seconds: float


@frozen
class TurnFinished:
    """A model has answered; has the whole text, which is the step's for one `purpose` only."""

    place: Place
    model: str
    finish: str
    text: str
    calls: tuple[Asked, ...]
    usage: Usage
    first_token_seconds: float | None
    seconds: float
    cost_usd: float | None = None
    purpose: TurnPurpose = "answer"


@frozen
class TextDelta:
    """Some text of an answer, as it arrives."""

    place: Place
    text: str


@frozen
class ReasoningDelta:
    """Some text of the thinking, as it arrives."""

    place: Place
    text: str


@frozen
class TextWithdrawn:
    """What `text.delta` and `reasoning.delta` said of this turn is void."""

    place: Place
    text: str


@frozen
class ToolDecided:
    """Written before the call (P7). `rule` is the rule's text, or who decided.

    `definition` is the hash of what the server says of a tool whose call is staged (B16).
    """

    place: Place
    tool: str
    server: str
    name: str
    arguments: JsonValue
    digest: str
    verdict: Verdict
    rule: str
    definition: str | None = None


@frozen
class ToolStarted:
    """A call leaves for its server."""

    place: Place
    tool: str


@frozen
class ToolProgress:
    """A server reports on a running call (M9)."""

    place: Place
    tool: str
    progress: float
    total: float | None
    message: str | None


@frozen
class ToolOutput:
    """Some output of a running call, as it arrives: shown only, for `tool.finished` has it."""

    place: Place
    tool: str
    text: str
    stream: Literal["stdout", "stderr"]


@frozen
class ToolFinished:
    """`content` is cut as the model saw it; `full` names the file with the rest."""

    place: Place
    tool: str
    kind: ResultKind
    content: str
    full: str | None
    seconds: float
    structured: JsonValue = None


@frozen
class Retry:
    """A model request will be sent again after `delay` seconds (L8)."""

    place: Place
    endpoint: str
    attempt: int
    delay: float
    reason: str


@frozen
class Notice:
    """Something a person may want to know."""

    place: Place
    level: Level
    code: str
    text: str


@frozen
class ExpectChecked:
    """An expectation of a step was looked at (F12); `message` says what, and what there is."""

    place: Place
    kind: str
    ok: bool
    message: str


@frozen
class AnnotationAdded:
    """Something to say of a place in a file (B11); `place` is that of a sub-pipeline's step.

    Lines count from 1; without `line` it is about the whole file, without `path` about none.
    """

    path: str | None
    line: int | None
    end_line: int | None
    level: AnnotationLevel
    message: str
    place: Place = NOWHERE


@frozen
class RunFinished:
    """The tail of the stream: the final state, the exit code and its reason."""

    status: StepStatus | Literal["interrupted"]
    exit: Exit
    outputs: JsonValue
    usage: Usage
    cost_usd: float | None
    seconds: float
    denials: tuple[str, ...]
    folder: str | None
    cassette: CassetteUse | None = None
    place: Place = NOWHERE


Event = (
    RunStarted
    | StepStarted
    | StepFinished
    | ItemStarted
    | ItemFinished
    | TurnStarted
    | TurnProgress
    | TurnFinished
    | OfConversation
    | TextDelta
    | ReasoningDelta
    | TextWithdrawn
    | ToolDecided
    | ToolStarted
    | ToolProgress
    | ToolOutput
    | ToolFinished
    | Retry
    | Notice
    | ExpectChecked
    | AnnotationAdded
    | RunFinished
)


@frozen
class Stamped:
    """An event with its place in the stream: `seq` from 1, `time` in seconds since the epoch."""

    seq: int
    time: float
    event: Event
