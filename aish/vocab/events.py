"""Everything a run says of itself (design 11): a closed union of frozen dataclasses.

Renderers, reports, journal and results know nothing else. The field names here are the keys of
`schemas/events.schema.json`; `sinks.lines` puts `v`, `seq`, `time` and `type` around them and
spells `Place` as `step`, `item`, `turn`, `call`. Additions are the only change allowed.
"""

from typing import Literal

from aish.vocab.deltas import Usage
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue
from aish.vocab.run_parts import CassetteInfo, CassetteUse, ModelInfo, RuleInfo, ServerInfo
from aish.vocab.tools import ResultKind

StepStatus = Literal["ok", "failed", "skipped", "denied", "budget"]
StepKind = Literal["prompt", "call", "run"]
Verdict = Literal["auto", "ask-yes", "ask-no", "deny", "staged"]
Level = Literal["info", "warning", "error"]


@frozen
class Place:
    """Where in the run something happened; `None` where it does not apply."""

    step: str | None = None
    item: str | None = None
    turn: int | None = None
    call: str | None = None


NOWHERE = Place()


@frozen
class Failure:
    """What went wrong: a stable code, a sentence, and what to do next."""

    code: str
    message: str
    hint: str | None = None


@frozen
class Asked:
    """A tool call in `turn.finished`: what the model asked for."""

    id: str
    name: str
    arguments: str


@frozen
class Exit:
    """How the process ends (design 1.3)."""

    code: int
    name: str
    retryable: bool
    reason: str
    hint: str | None = None


@frozen
class RunStarted:
    """The head of the stream: what this run is made of; inputs are masked."""

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
    cassette: CassetteInfo | None = None
    place: Place = NOWHERE


@frozen
class StepStarted:
    """A step begins."""

    place: Place
    kind: StepKind
    count: int | None = None


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
class TurnStarted:
    """A request is about to be sent; `messages` counts the turns in it."""

    place: Place
    model: str
    messages: int


@frozen
class TurnFinished:
    """A model has answered; has the whole text."""

    place: Place
    model: str
    finish: str
    text: str
    calls: tuple[Asked, ...]
    usage: Usage
    first_token_seconds: float | None
    seconds: float


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
    """Written before the call (P7). `rule` is the rule's text, or who decided."""

    place: Place
    tool: str
    server: str
    name: str
    arguments: JsonValue
    digest: str
    verdict: Verdict
    rule: str


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
class ToolFinished:
    """`content` is cut as the model saw it; `full` names the file with the rest."""

    place: Place
    tool: str
    kind: ResultKind
    content: str
    full: str | None
    seconds: float


@frozen
class Retry:
    """A model request will be sent again after `delay` seconds (L8)."""

    place: Place
    endpoint: str
    attempt: int
    delay: float
    reason: str


@frozen
class Fallback:
    """`from` and `to` in JSON."""

    place: Place
    source: str
    target: str
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
    """An expectation of a step was looked at (F12).

    `message` says what is expected and, if that is not so, what there is instead, maybe with the
    lines of a diff.
    """

    place: Place
    kind: str
    ok: bool
    message: str


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
    | TurnStarted
    | TurnFinished
    | TextDelta
    | ReasoningDelta
    | TextWithdrawn
    | ToolDecided
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | Retry
    | Fallback
    | Notice
    | ExpectChecked
    | RunFinished
)


@frozen
class Stamped:
    """An event with its place in the stream: `seq` from 1, `time` in seconds since the epoch."""

    seq: int
    time: float
    event: Event
