"""Everything a run says of itself (design 11): a closed union of frozen dataclasses.

Renderers, reports, journal and results know nothing else. The field names here are the keys of
`schemas/events.schema.json`; `core.events` puts `v`, `seq`, `time` and `type` around them and
spells `Place` as `step`, `item`, `turn`, `call`. Additions are the only change allowed.

Below: what events are made of (place, status, failure, exit), what a run is made of, the events of
a conversation as a whole, and the word for each event in the stream.

Events as JSON objects, one a line (design 11): the spelling of journal and event stream.
"""

import time
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text, string_text
from aish.core.messages import Usage
from aish.core.tools import ResultKind

StepStatus = Literal["ok", "failed", "skipped", "denied", "budget"]
StepKind = Literal["prompt", "call", "run", "pipeline"]
Verdict = Literal["auto", "ask-yes", "ask-no", "deny", "staged"]
Level = Literal["info", "warning", "error"]
AnnotationLevel = Literal["error", "warning", "notice"]
TurnPurpose = Literal["answer", "summary", "sampling", "judge"]
"""What a model is asked for: the step's own turn, old rounds in short (L19), a server's request
(M11), or a verdict on the step's result (F12)."""
MessagePurpose = Literal["conversation"] | TurnPurpose
"""What messages are written down for: so that a conversation can be continued with all of its
turns, or to show what was sent with requests of one purpose."""


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


ServerState = Literal["connecting", "ready", "failed"]
OnDuplicate = Literal["fail", "first", "number"]
"""What becomes of an item whose key was there before."""
CassetteMode = Literal["none", "once", "new_episodes", "all"]


@frozen
class ModelInfo:
    """A model of the file; `origin` is scheme, host and port."""

    alias: str
    model: str
    origin: str


@frozen
class ServerInfo:
    """A server and whether it came up; `tools` counts what it offers.

    `address` is its URL without query and credentials, its command line, or the names of its packs.
    """

    alias: str
    transport: str
    state: ServerState
    tools: int
    error: str | None = None
    address: str = ""


@frozen
class RuleInfo:
    """One approval rule: the list it stands in and its text."""

    list: str
    rule: str


@frozen
class CassetteInfo:
    """The cassette of a run and its mode (C7)."""

    path: str
    mode: CassetteMode


@frozen
class CassetteUse:
    """What became of a run's cassette: written, or played from; how many interactions."""

    path: str
    use: Literal["recorded", "replayed"]
    interactions: int


@frozen
class KeySurvey:
    """What the keys of a step's items are like, looked at before the first one is run.

    `repeated` items have a key that was there before; `twice` is such a key, and the two lines of
    `file` where it stands, or the two items where there is no file. `unusable` items have no key,
    `odd` says where the first of them stands and why.
    """

    items: int
    file: str | None = None
    repeated: int = 0
    twice: tuple[str, int, int] | None = None
    unusable: int = 0
    odd: str | None = None

    def runs(self, policy: OnDuplicate) -> int:
        """How many items are run."""
        return self.items - (self.repeated if policy == "first" else 0)


@frozen
class Shard:
    """Which part of the items a run has (B6): `index` of `of`, counted from 1 as in `2/8`."""

    index: int
    of: int


@frozen
class TurnAdded:
    """A turn now stands at the end of a conversation.

    `turn` is what `agent.turn_json` makes of it; in JSON it is `added`. Where the `purpose` is that
    the conversation can be continued, every turn of it is told, with all it takes to say the same
    to a model again. Where it is that of requests, a turn is told that no other event has whole:
    answers and results of tools are in `TurnFinished` and `ToolFinished`.
    """

    place: Place
    turn: JsonObject
    purpose: MessagePurpose = "conversation"


@frozen
class HistoryReplaced:
    """`turns` stand in the place of all turns there were, and `reason` says why (L19).

    Where the `purpose` is to show what was sent, `{"at": 3}` is the turn that stood at this place
    before, counted from 0: what was sent already is not told again.
    """

    place: Place
    turns: tuple[JsonObject, ...]
    reason: str
    purpose: MessagePurpose = "conversation"


@frozen
class QuestionAsked:
    """A person asks: the `text` as it was typed, and the names of what is attached to it.

    `tools` are the names that the model is shown, as `alias__tool`.
    """

    place: Place
    text: str
    attached: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


@frozen
class RuleAdded:
    """A person has added a rule for this session; one that denies holds when it is gone on with."""

    place: Place
    list: Literal["auto_approve", "deny"]
    tool: str


@frozen
class ServerConnected:
    """A person has connected a server: at a `url`, or as the child process of a `command`."""

    place: Place
    alias: str
    url: str | None = None
    command: tuple[str, ...] = ()
    cwd: str | None = None
    auth_env: str | None = None


@frozen
class ModelChosen:
    """The model of this alias is asked from now on, in a session."""

    place: Place
    model: str


@frozen
class OutputWaits:
    """What a local command has printed waits to go out with the next question (L14).

    Where it waits `again`, it has gone out with a question that was taken back: it is now before
    all other output that waits.
    """

    place: Place
    text: str
    again: bool = False


@frozen
class WaitingAttachment:
    """`turn` is what `agent.turn_json` makes of a user turn with nothing else in it."""

    name: str
    turn: JsonObject


@frozen
class AttachmentsWait:
    """All that is attached now, and goes out with the next question; what was, before, is not."""

    place: Place
    attachments: tuple[WaitingAttachment, ...]


@frozen
class PipelineSpent:
    """A pipeline that was run in a session has used this, which counts for the session (B8).

    `folder` is that of its run. `cost_usd` of `None` is unknown.
    """

    place: Place
    folder: str | None
    turns: int
    tool_calls: int
    usage: Usage
    cost_usd: float | None


@frozen
class Fallback:
    """`from` and `to` in JSON."""

    place: Place
    source: str
    target: str
    reason: str


JournalOnly = (
    QuestionAsked
    | TurnAdded
    | HistoryReplaced
    | ModelChosen
    | OutputWaits
    | AttachmentsWait
    | RuleAdded
    | ServerConnected
    | PipelineSpent
)
"""What a conversation is gone on with from; what a person reads says the same in other events."""

OfConversation = JournalOnly | Fallback


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
class TextSpan:
    """A part of a text, and the path of the value that it is the beginning of."""

    path: tuple[str | int, ...]
    start: int
    end: int


@frozen
class ToolFinished:
    """`content` is cut as the model saw it; `full` names the file with the rest.

    `structured_in` says what else holds the structured content, where `structured` does not: the
    `content` or the step's `output` as JSON, or a file. What `structured_spans` names of the
    content, or of `full`, is left out of it.
    """

    place: Place
    tool: str
    kind: ResultKind
    content: str
    full: str | None
    seconds: float
    structured: JsonValue = None
    structured_in: str | None = None
    structured_spans: tuple[TextSpan, ...] = ()


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


EVENT_TYPES: Mapping[type[Event], str] = {
    RunStarted: "run.started",
    StepStarted: "step.started",
    StepFinished: "step.finished",
    ItemStarted: "item.started",
    ItemFinished: "item.finished",
    TurnStarted: "turn.started",
    TurnProgress: "turn.progress",
    TurnFinished: "turn.finished",
    QuestionAsked: "question.asked",
    TurnAdded: "turn.added",
    HistoryReplaced: "history.replaced",
    ModelChosen: "model.chosen",
    OutputWaits: "output.waits",
    AttachmentsWait: "attachments.wait",
    RuleAdded: "rule.added",
    ServerConnected: "server.connected",
    PipelineSpent: "pipeline.spent",
    TextDelta: "text.delta",
    ReasoningDelta: "reasoning.delta",
    TextWithdrawn: "text.withdrawn",
    ToolDecided: "tool.decided",
    ToolStarted: "tool.started",
    ToolProgress: "tool.progress",
    ToolOutput: "tool.output",
    ToolFinished: "tool.finished",
    Retry: "retry",
    Fallback: "fallback",
    Notice: "notice",
    ExpectChecked: "expect.checked",
    AnnotationAdded: "annotation.added",
    RunFinished: "run.finished",
}


VERSION = 1
PLACE = ("step", "item", "turn", "call")

# `from` is no name in Python, and `turn` the number of one in a place.
_KEYS: Mapping[type[Event], Mapping[str, str]] = {
    Fallback: {"source": "from", "target": "to"},
    TurnAdded: {"turn": "added"},
}


def to_object(stamped: Stamped) -> dict[str, JsonValue]:
    """A line of the stream as an object: `v`, `seq`, `time`, `type`, the place, the event."""
    event = stamped.event
    kind = type(event)
    line: dict[str, JsonValue] = {
        "v": VERSION,
        "seq": stamped.seq,
        "time": rfc3339(stamped.time),
        "type": EVENT_TYPES[kind],
    }
    place = event.place
    for key in PLACE:
        value = getattr(place, key)
        if value is not None:
            line[key] = value
    for name, key in _FIELDS[kind]:
        line[key] = plain(getattr(event, name))
    return line


def to_line(stamped: Stamped) -> bytes:
    """The same as UTF-8 with a line end."""
    event = stamped.event
    if isinstance(event, (TextDelta, ReasoningDelta)):
        # Written once for each piece of an answer, so it is spelled out.
        head = f'{{"v":{VERSION},"seq":{stamped.seq},"time":"{rfc3339(stamped.time)}"'
        body = f'{_place_text(event.place)}"text":{string_text(event.text)}'
        return f'{head},"type":"{EVENT_TYPES[type(event)]}",{body}}}\n'.encode()
    return f"{json_text(to_object(stamped))}\n".encode()


def plain(value: Any) -> JsonValue:
    """A field of an event as JSON: dataclasses become objects, tuples lists."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    names = _names_of(type(value))
    return {name: plain(getattr(value, name)) for name in names} if names else value


def rfc3339(seconds: float) -> str:
    """A time in UTC, to the millisecond."""
    whole, part = divmod(int(seconds * 1000), 1000)
    return f"{_second(whole)}.{part:03d}Z"


@lru_cache(maxsize=8)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


@lru_cache(maxsize=256)
def _place_text(place: Place) -> str:
    values = {name: getattr(place, name) for name in PLACE}
    present = {key: value for key, value in values.items() if value is not None}
    return f"{json_text(present)[1:-1]}," if present else ""


def keys_of(kind: type[Event]) -> tuple[tuple[str, str], ...]:
    """The fields of an event, its place aside, each with its key in a line."""
    keys = _KEYS.get(kind, {})
    names = (field.name for field in fields(kind) if field.name != "place")
    return tuple((name, keys.get(name, name)) for name in names)


_FIELDS = {kind: keys_of(kind) for kind in EVENT_TYPES}
_NAMES: dict[type, tuple[str, ...]] = {}


def _names_of(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass, of nothing else."""
    names = _NAMES.get(kind)
    if names is None:
        names = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
        _NAMES[kind] = names
    return names
