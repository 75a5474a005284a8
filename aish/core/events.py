"""The events of a run: a closed union of frozen dataclasses.

Renderers, reports, journal and results depend only on these. The field names here are the keys of
`schemas/events.schema.json`; `to_object` adds `v`, `seq`, `time` and `type`, and writes `Place`
as `step`, `item`, `turn`, `call`. Additions are the only change allowed.

Sections: components of events (place, status, failure, exit), events of a run, events of a
conversation, and the type name of each event in the stream.

Events are serialized as JSON objects, one per line: the format of journal and event
stream.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any, Literal, cast

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text, string_text
from aish.core.messages import Served, Usage
from aish.core.tools import FAILED_KINDS, ResultKind

StepStatus = Literal["ok", "failed", "skipped", "denied", "budget", "paused"]
StepKind = Literal["prompt", "call", "run", "pipeline"]
Verdict = Literal["auto", "ask-yes", "ask-no", "deny", "staged"]
REFUSED: frozenset[Verdict] = frozenset({"deny", "ask-no"})
"""Verdicts by which a call is not made."""
Level = Literal["info", "warning", "error", "security"]
DecisionLevel = Literal["info", "security"]
"""`info`: an approved call of a tool that our own marks or rules call read-only."""
AnnotationLevel = Literal["error", "warning", "notice"]
TurnPurpose = Literal["answer", "summary", "sampling", "judge"]
"""The purpose of a model request: a step's own turn, a summary of old rounds, a server's request,
or a verdict on the result of a step."""
AnswerPurpose = TurnPurpose | Literal["paused"]
"""`paused`: it is parts of a turn that was paused and has not come to its end."""
MessagePurpose = Literal["conversation"] | TurnPurpose
"""What messages are written down for: so that a conversation can be continued with all of its
turns, or to show what was sent with requests of one purpose."""


@frozen
class Place:
    """Place in a run where something happened; fields that do not apply are `None`.

    A server has no steps: there `client` is who called, `session` its connection, and `step` the
    client too, so that a digest binds a call to it.
    """

    step: str | None = None
    item: str | None = None
    turn: int | None = None
    call: str | None = None
    client: str | None = None
    session: str | None = None


NOWHERE = Place()

SourceNames = tuple[str, ...] | None
"""Where text came from, in order; `None` where no file of the run asks for it."""


@frozen
class HeldFlow:
    """A rule about flows that holds a call, or warns of it, and the sources of its text."""

    rule: str
    sources: tuple[str, ...]


@frozen
class Failure:
    """Failure as recorded: a stable code, a message, and a hint."""

    code: str
    message: str
    hint: str | None = None


@frozen
class Asked:
    """A requested tool call in `turn.finished`."""

    id: str
    name: str
    arguments: str


@frozen
class Exit:
    """Exit status of the process."""

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
    """A model of the file; `origin` is scheme, host and port, `params` are of its requests."""

    alias: str
    model: str
    origin: str
    params: JsonObject = field(default_factory=dict)


UNCONFINED = "unconfined"
"""The sandbox of a child process that may use all that we may."""


@frozen
class ServerInfo:
    """A server and whether it started; `tools` is the number of tools it offers.

    `address` is its URL without query and credentials, its command line, or the names of its packs.
    `sandbox` says what a child process may use, in words.
    """

    alias: str
    transport: str
    state: ServerState
    tools: int
    error: str | None = None
    address: str = ""
    sandbox: str = ""


@frozen
class RuleInfo:
    """An approval rule: its list and its text."""

    list: str
    rule: str


@frozen
class CassetteInfo:
    """The cassette of a run and its mode."""

    path: str
    mode: CassetteMode


@frozen
class CassetteUse:
    """Use of the cassette: recorded or replayed, and the number of interactions."""

    path: str
    use: Literal["recorded", "replayed"]
    interactions: int


@frozen
class KeySurvey:
    """Result of checking the keys of a step's items before the first one is run.

    `repeated` counts items whose key occurred before; `twice` is such a key with its two lines in
    `file`, or its two items if there is no file. `unusable` counts items without a key, `odd` gives
    the position of the first of them and the reason.
    """

    items: int
    file: str | None = None
    repeated: int = 0
    twice: tuple[str, int, int] | None = None
    unusable: int = 0
    odd: str | None = None

    def runs(self, policy: OnDuplicate) -> int:
        return self.items - (self.repeated if policy == "first" else 0)


@frozen
class Shard:
    """The part of the items that a run has: `index` of `of`, counted from 1 as in `2/8`."""

    index: int
    of: int


@frozen
class TurnAdded:
    """A turn was appended to a conversation.

    `turn` is the result of `agent.turn_json`; in JSON the key is `added`. If `purpose` is to
    continue the conversation, every turn is reported, with everything needed to send it to a model
    again. If it is to record requests, only turns that no other event contains completely are
    reported: answers and tool results are in `TurnFinished` and `ToolFinished`.
    """

    place: Place
    turn: JsonObject
    purpose: MessagePurpose = "conversation"


@frozen
class HistoryReplaced:
    """`turns` replace all previous turns; `reason` says why.

    If `purpose` is to show what was sent, `{"at": 3}` refers to the turn previously at this index,
    counted from 0, so that turns already sent are not repeated.
    """

    place: Place
    turns: tuple[JsonObject, ...]
    reason: str
    purpose: MessagePurpose = "conversation"


FileChange = Literal["shown", "added", "changed", "deleted", "lost", "found"]


@frozen
class FileShown:
    """A file, or a part of one, that a model was shown: whole (`shown`), or what happened to it."""

    path: str
    change: FileChange


@frozen
class ContextFiles:
    """Files of `context.files` were put before a prompt, or have changed after a round.

    `tag` is that of the run. `state` names the file with what a continued conversation has to know.
    """

    place: Place
    tag: str
    files: tuple[FileShown, ...] = ()
    state: str | None = None


@frozen
class QuestionAsked:
    """A user's question: the `text` as typed, and the names of its attachments.

    `tools` are the tool names shown to the model, as `alias__tool`.
    """

    place: Place
    text: str
    attached: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


@frozen
class RuleAdded:
    """The user added a rule for this session; a deny rule still applies after resuming."""

    place: Place
    list: Literal["auto_approve", "deny"]
    tool: str


@frozen
class ServerConnected:
    """The user connected a server: at a `url`, or as the child process of a `command`.

    With `login` a person logs in there.
    """

    place: Place
    alias: str
    url: str | None = None
    command: tuple[str, ...] = ()
    cwd: str | None = None
    auth_env: str | None = None
    login: bool = False


@frozen
class ModelChosen:
    """The session uses the model of this alias from now on."""

    place: Place
    model: str


@frozen
class OutputWaits:
    """The output of a local command is queued to be sent with the next question.

    If `again`, it was sent with a question that was withdrawn: it now precedes all other queued
    output.
    """

    place: Place
    text: str
    again: bool = False
    sources: SourceNames = None


@frozen
class WaitingAttachment:
    """`turn` is what `agent.turn_json` makes of a user turn with nothing else in it."""

    name: str
    turn: JsonObject


@frozen
class AttachmentsWait:
    """All pending attachments, sent with the next question; replaces the previous list."""

    place: Place
    attachments: tuple[WaitingAttachment, ...]


@frozen
class PipelineSpent:
    """Usage of a pipeline that was run in a session; it counts for the session.

    `folder` is the folder of its run. `cost_usd` of `None` is unknown.
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
    | ContextFiles
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
    """First event of the stream: the components of this run; inputs are masked.

    `fingerprint` has a short hash of each part that must be unchanged when the run is resumed.
    `applies` is the run whose staged calls this one executes: it cannot be resumed.
    `uid` and `user` are who runs it: the login name by the user database, if it has one.
    `resume_command` continues the run; there is none if nothing is kept.
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
    uid: int | None = None
    user: str | None = None
    resume_command: str | None = None
    place: Place = NOWHERE


@frozen
class StepStarted:
    """A step begins with `count` items, if known, of which `done` were completed before.

    `given` says whether its items and their keys came with the input of the run, that is, were not
    written by a model or tool of the run. `schema` is that of the answers to its items.
    """

    place: Place
    kind: StepKind
    count: int | None = None
    done: int = 0
    given: tuple[Literal["item", "key"], ...] = ()
    schema: JsonObject | None = None


@frozen
class StepFinished:
    """A step has ended, whatever its status.

    `exit_code` is that of the run, if nothing else decides it: 0 for a denial that the file
    accepts.
    """

    place: Place
    status: StepStatus
    text: str | None
    output: JsonValue
    usage: Usage
    cost_usd: float | None
    seconds: float
    error: Failure | None = None
    exit_code: int | None = None
    sources: SourceNames = None
    output_sources: SourceNames = None


@frozen
class ItemStarted:
    """An item of a `foreach` step begins; `place.item` is its key.

    `digest` is of the item's value: the first 16 hexadecimal digits of a SHA-256.
    """

    place: Place
    key: str
    index: int
    digest: str
    value: JsonValue = None


@frozen
class ItemFinished:
    """An item has ended; an interrupted item has no such event and is run again."""

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
    exit_code: int | None = None
    sources: SourceNames = None
    output_sources: SourceNames = None


@frozen
class ItemMoved:
    """An item with a result stands elsewhere among the items of a resumed run: at `index`."""

    place: Place
    key: str
    index: int


@frozen
class TurnStarted:
    """A request is about to be sent; `messages` counts the turns in it.

    `params` are its own, which replace those of its model. `sources` are those that no earlier
    request of this conversation had.
    """

    place: Place
    model: str
    messages: int
    purpose: TurnPurpose = "answer"
    params: JsonObject = field(default_factory=dict)
    sources: SourceNames = None


@frozen
class TurnProgress:
    """A model has not answered yet: sent periodically, with the approximate tokens so far."""

    place: Place
    model: str
    tokens: int
    seconds: float


@frozen
class TurnFinished:
    """A model has answered; has the whole text, which is the step's text for one `purpose` only."""

    place: Place
    model: str
    finish: str
    text: str
    calls: tuple[Asked, ...]
    usage: Usage
    first_token_seconds: float | None
    seconds: float
    cost_usd: float | None = None
    purpose: AnswerPurpose = "answer"
    served: Served | None = None


@frozen
class TextDelta:
    """A piece of answer text, as it arrives."""

    place: Place
    text: str


@frozen
class ReasoningDelta:
    """A piece of reasoning text, as it arrives."""

    place: Place
    text: str


@frozen
class TextWithdrawn:
    """The `text.delta` and `reasoning.delta` events of this turn are void."""

    place: Place
    text: str


@frozen
class ToolDecided:
    """Written before the call. `rule` is the rule's text, or who decided.

    `definition` is the hash of the server's definition of a tool whose call is staged.
    `level` is `security` for every call but an approved one that only reads, without `flow`: what
    holds the call because of the text that it follows, or warns of it. `approval` is the question
    that was asked about it. `hint` says how a denied call would be approved.
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
    level: DecisionLevel = "security"
    approval: str | None = None
    hint: str | None = None
    flow: HeldFlow | None = None


ApprovalAnswer = Literal["approve", "deny", "always", "expired", "withdrawn"]
"""How a question ended: answered, by its time, or with the run or the call."""


@frozen
class ApprovalAsked:
    """A call waits for a yes.

    `id` is random, 32 hexadecimal digits; `digest` binds the answer to this call; `reason` says why
    it asks. `expires` is a time as in `time`; without one somebody is at the terminal. `always` is
    the rule that this answer would add.
    """

    place: Place
    id: str
    tool: str
    server: str
    name: str
    arguments: JsonValue
    digest: str
    reason: str
    expires: str | None
    always: str | None = None


@frozen
class ApprovalAnswered:
    """The answer to a question, written and synced before the call goes on.

    `by` is who answered, `way` from where: `terminal`, `command`, `page`, `api`, `elicit` for the
    client of the call itself, a `rule` that was added meanwhile, or `time`. `digest` is that of the
    question.
    """

    place: Place
    id: str
    answer: ApprovalAnswer
    by: str
    way: str
    note: str = ""
    digest: str = ""


@frozen
class ControlCalled:
    """Another program changed something over a socket of the run, or was not allowed to.

    `by` is the name of a token or of a user of this machine; it is empty where none was shown.
    """

    method: str
    path: str
    scope: str
    by: str
    status: int
    place: Place = NOWHERE


@frozen
class ValueSet:
    """A value of the run was changed over a socket; `was` is the one before."""

    path: str
    value: JsonValue
    was: JsonValue
    by: str
    place: Place = NOWHERE


@frozen
class ControlEvent:
    """Another program wrote something into the stream of events, under a name of its own."""

    name: str
    data: JsonValue
    by: str
    place: Place = NOWHERE


@frozen
class AskReceived:
    """Another program asks a question over a socket, and waits for the response.

    `request_id` is random, 32 hexadecimal digits; `expires` is a time as in `time`.
    """

    request_id: str
    title: str
    text: str
    data: JsonValue
    by: str
    expires: str
    place: Place = NOWHERE


AskEnd = Literal["answered", "expired", "withdrawn"]
"""How a question of another program ended: by its time, or because nobody waits any more."""


@frozen
class AskEnded:
    """The end of a question of another program; `by` is who responded, else empty.

    `way` is from where, as in `approval.answered`.
    """

    request_id: str
    end: AskEnd
    response: JsonValue
    by: str
    way: str = "api"
    place: Place = NOWHERE


@frozen
class ToolStarted:
    """A call is sent to its server."""

    place: Place
    tool: str


@frozen
class ToolProgress:
    """A server reports progress of a running call."""

    place: Place
    tool: str
    progress: float
    total: float | None
    message: str | None


@frozen
class ToolOutput:
    """Output of a running call, as it arrives: for display only, `tool.finished` has all of it."""

    place: Place
    tool: str
    text: str
    stream: Literal["stdout", "stderr"]


@frozen
class TextSpan:
    """A range of a text, and the path of the value that starts there."""

    path: tuple[str | int, ...]
    start: int
    end: int


@frozen
class ToolFinished:
    """`content` is truncated as the model saw it; `full` names the file with the complete result.

    `structured_in` says where the structured content is if not in `structured`: in `content`, in
    the step's `output` as JSON, or in a file. The spans in `structured_spans` of the content, or of
    `full`, are omitted from it. `exit_code` is that of a command that has ended by itself.
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
    exit_code: int | None = None
    sources: SourceNames = None


@frozen
class Retry:
    """A model request will be sent again after `delay` seconds."""

    place: Place
    endpoint: str
    attempt: int
    delay: float
    reason: str


@frozen
class Notice:
    """Information for the user."""

    place: Place
    level: Level
    code: str
    text: str


QuoteState = Literal["found", "missing", "not_shown", "own_words", "short", "elsewhere"]
"""`not_shown`: only in the part of a result that the model was not shown; `own_words`: also in
arguments of the model; `elsewhere`: in another file, or at another line, than the answer says."""


@frozen
class QuoteEvidence:
    """A quote at `path` of an answer, and where it was found.

    That is a call, by its step, turn and id, or another `source`; `file` and `line` are known of
    some. `around` is the text around it, `left_out` what an ellipsis stands for.
    """

    path: str
    state: QuoteState
    quote: str
    step: str | None = None
    turn: int | None = None
    call: str | None = None
    tool: str | None = None
    source: str | None = None
    file: str | None = None
    line: int | None = None
    around: str | None = None
    left_out: tuple[str, ...] = ()


@frozen
class FileDigest:
    """The SHA-256 of a file of the project, at the time when it was read."""

    path: str
    sha256: str


@frozen
class ExpectChecked:
    """An expectation of a step was checked; `message` describes expected and actual value.

    `evidence` has the quotes of a `quoted`, `file_digests` the files that they were looked up in.
    """

    place: Place
    kind: str
    ok: bool
    message: str
    evidence: tuple[QuoteEvidence, ...] | None = None
    file_digests: tuple[FileDigest, ...] | None = None


@frozen
class AnnotationAdded:
    """An annotation of a place in a file; `place` is set for a step of a sub-pipeline.

    Lines count from 1; without `line` it applies to the whole file, without `path` to no file.
    """

    path: str | None
    line: int | None
    end_line: int | None
    level: AnnotationLevel
    message: str
    place: Place = NOWHERE


Counts = Mapping[str, int]
"""Numbers by name: a record of a run must not grow with its items."""


@frozen
class CallCounts:
    """The tool calls of a run; `exit_nonzero` are commands that ended with another code than 0."""

    total: int = 0
    failed: int = 0
    denied: int = 0
    exit_nonzero: int = 0

    def plus(self, kind: str, exit_code: object) -> "CallCounts":
        """The same, with a call that has ended."""
        return CallCounts(
            self.total + 1,
            self.failed + (kind in FAILED_KINDS),
            self.denied + (kind == "denied"),
            self.exit_nonzero + bool(exit_code),
        )


_MOST_NAMES = 20


@frozen
class ServedModels:
    """The names by which what answered under an alias called itself, each once, in their order.

    `None` is an answer that named no model. More than a few names are not kept.
    """

    alias: str
    models: tuple[str | None, ...] = ()
    fingerprints: tuple[str, ...] = ()

    def plus(self, served: Served | None) -> "ServedModels":
        """The same, with an answer more."""
        model, state = (None, None) if served is None else (served.model, served.fingerprint)
        models, states = self.models, self.fingerprints
        if model not in models and len(models) < _MOST_NAMES:
            models = (*models, model)
        if state is not None and state not in states and len(states) < _MOST_NAMES:
            states = (*states, state)
        is_same = models is self.models and states is self.fingerprints
        return self if is_same else ServedModels(self.alias, models, states)

    @property
    def names(self) -> tuple[str, ...]:
        """The models that were named."""
        return tuple(model for model in self.models if model is not None)


class ServedLog:
    """Names of the models that answered, by alias; those of sub-pipelines as `step/alias`."""

    __slots__ = ("_of",)

    def __init__(self, earlier: Iterable[ServedModels] = ()) -> None:
        self._of = {one.alias: one for one in earlier}

    def add(self, step: str | None, alias: str, served: Served | None) -> ServedModels | None:
        """Add an answer; return the names of its alias if it is the second one with a name."""
        outer, slash, _ = (step or "").rpartition("/")
        alias = f"{outer}{slash}{alias}"
        before = self._of.get(alias) or ServedModels(alias)
        after = self._of[alias] = before.plus(served)
        second = 2
        return after if len(before.names) < len(after.names) == second else None

    @property
    def all(self) -> tuple[ServedModels, ...]:
        return tuple(self._of.values())


@frozen
class ChangedFile:
    """A file that differs from what it was before the run; its path is below the work tree.

    The counts of lines are missing if it is not compared: it is no text, large, or hidden.
    """

    path: str
    change: Literal["added", "changed", "deleted"]
    added: int | None = None
    removed: int | None = None


@frozen
class FilesChanged:
    """Changes of files during the run, in the git work tree `root`.

    `more` counts files that are not listed. `patch` is a unified diff, up to 1 MiB, and `kept` the
    same in the folder of the run; `cut` says that it is not whole. `dirty`: the files
    differed from the last commit before the run. `problem` says why nothing is known.
    """

    root: str
    files: tuple[ChangedFile, ...] = ()
    more: int = 0
    patch: str = ""
    cut: bool = False
    dirty: bool = False
    kept: str | None = None
    problem: str | None = None
    place: Place = NOWHERE


@frozen
class RunFinished:
    """Last event of the stream: the final state, the exit code and its reason.

    `denials` counts the denied calls of each tool, `waiting` the questions that are open, and can
    be answered for `--resume`. `calls` is missing where nobody counts them, as in a server.
    `served` are the models that have answered in all parts of the run.
    `released_bits` are those of all outputs that lost labels, `output_sources` the sources of each
    of the `outputs`.
    """

    status: StepStatus | Literal["interrupted"]
    exit: Exit
    outputs: JsonValue
    usage: Usage
    cost_usd: float | None
    seconds: float
    denials: Counts
    folder: str | None
    cassette: CassetteUse | None = None
    waiting: int = 0
    calls: CallCounts | None = None
    released_bits: int = 0
    output_sources: Mapping[str, tuple[str, ...]] | None = None
    served: tuple[ServedModels, ...] = ()
    place: Place = NOWHERE


@frozen
class SessionOpened:
    """A client has connected to the server; `place` has its name and the session's id.

    `peer` says from where: `transport`, and what the system knows of the process or address.
    """

    peer: JsonObject
    place: Place = NOWHERE


@frozen
class SessionClosed:
    """A client of the server is gone."""

    place: Place = NOWHERE


@frozen
class BatchPlanned:
    """Requests are about to be submitted to the provider of a model as one batch.

    Written and synced before that. `batch` numbers it in the run; `digests` are those of its
    requests, in their order, with a space between them.
    """

    batch: int
    model: str
    requests: int
    digests: str
    place: Place = NOWHERE


@frozen
class BatchSubmitted:
    """The provider has taken a batch; `id` is its own, `ends` when it is over at the latest."""

    batch: int
    model: str
    requests: int
    id: str
    ends: str | None
    place: Place = NOWHERE


@frozen
class BatchCollected:
    """A part of the run has ended after it collected answers of a batch; they are in the journal.

    `left` are the numbers of the requests, from 0, whose answers it has not collected.
    """

    batch: int
    left: tuple[int, ...] = ()
    place: Place = NOWHERE


OfBatches = BatchPlanned | BatchSubmitted | BatchCollected
"""What becomes of the batches that a run submits to the providers of its models."""

OfServing = SessionOpened | SessionClosed
"""What happens to the clients of a server, beside their calls."""

OfControl = ControlCalled | ValueSet | ControlEvent | AskReceived | AskEnded
"""What other programs do over a socket of the run, beside answers about calls."""

Event = (
    RunStarted
    | StepStarted
    | StepFinished
    | ItemStarted
    | ItemFinished
    | ItemMoved
    | TurnStarted
    | TurnProgress
    | TurnFinished
    | OfConversation
    | TextDelta
    | ReasoningDelta
    | TextWithdrawn
    | ApprovalAsked
    | ApprovalAnswered
    | OfControl
    | OfServing
    | OfBatches
    | ToolDecided
    | ToolStarted
    | ToolProgress
    | ToolOutput
    | ToolFinished
    | Retry
    | Notice
    | ExpectChecked
    | AnnotationAdded
    | FilesChanged
    | RunFinished
)


@frozen
class Stamped:
    """An event with its position in the stream: `seq` from 1, `time` in seconds since the epoch."""

    seq: int
    time: float
    event: Event


EVENT_TYPES: Mapping[type[Event], str] = {
    RunStarted: "run.started",
    StepStarted: "step.started",
    StepFinished: "step.finished",
    ItemStarted: "item.started",
    ItemFinished: "item.finished",
    ItemMoved: "item.moved",
    TurnStarted: "turn.started",
    TurnProgress: "turn.progress",
    TurnFinished: "turn.finished",
    QuestionAsked: "question.asked",
    TurnAdded: "turn.added",
    HistoryReplaced: "history.replaced",
    ContextFiles: "context.files",
    ModelChosen: "model.chosen",
    OutputWaits: "output.waits",
    AttachmentsWait: "attachments.wait",
    RuleAdded: "rule.added",
    ServerConnected: "server.connected",
    PipelineSpent: "pipeline.spent",
    TextDelta: "text.delta",
    ReasoningDelta: "reasoning.delta",
    TextWithdrawn: "text.withdrawn",
    ApprovalAsked: "approval.asked",
    ApprovalAnswered: "approval.answered",
    ControlCalled: "control.called",
    ValueSet: "value.set",
    ControlEvent: "control.event",
    AskReceived: "ask_received",
    AskEnded: "ask_ended",
    SessionOpened: "session.opened",
    SessionClosed: "session.closed",
    BatchPlanned: "batch.planned",
    BatchSubmitted: "batch.submitted",
    BatchCollected: "batch.collected",
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
    FilesChanged: "files.changed",
    RunFinished: "run.finished",
}


VERSION = 1
PLACE = ("step", "item", "turn", "call", "client", "session")

# `from` is a keyword in Python, and `turn` is the turn number in a place.
_KEYS: Mapping[type[Event], Mapping[str, str]] = {
    Fallback: {"source": "from", "target": "to"},
    TurnAdded: {"turn": "added"},
}


def to_object(stamped: Stamped) -> dict[str, JsonValue]:
    """An event as a JSON object: `v`, `seq`, `time`, `type`, the place, the fields."""
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
    return line | {key: plain(value) for key, value in _fields_of(event, kind).items()}


def _fields_of(event: Event, kind: type[Event]) -> dict[str, Any]:
    """The fields of an event but its place, by their keys in JSON."""
    keys, values_of = _FIELDS[kind]
    values = dict(zip(keys, values_of(event), strict=True))
    for name in _OPTIONAL.get(kind, ()):
        value = getattr(event, name)
        if value is not None and value != 0:
            values[name] = value
    return values


def to_line(stamped: Stamped) -> bytes:
    """The same as a UTF-8 line, including the line end."""
    event = stamped.event
    kind = type(event)
    # The head is written for each event and each piece of an answer, so it is not encoded as JSON.
    head = (
        f'{{"v":{VERSION},"seq":{stamped.seq},"time":"{rfc3339(stamped.time)}",'
        f'"type":"{EVENT_TYPES[kind]}",{_place_text(event.place)}'
    )
    if isinstance(event, (TextDelta, ReasoningDelta)):
        return f'{head}"text":{string_text(event.text)}}}\n'.encode()
    body = json_text(_fields_of(event, kind))[1:]
    return f"{head if body != '}' else head[:-1]}{body}\n".encode()


def plain(value: Any) -> JsonValue:
    """A field of an event as JSON: dataclasses become objects, tuples lists."""
    if value.__class__ in _SCALARS:
        return cast("JsonValue", value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    names = _names_of(type(value))
    if not names:
        return cast("JsonValue", value)
    values = ((name, getattr(value, name)) for name in names)
    return {name: one if one.__class__ in _SCALARS else plain(one) for name, one in values}


def rfc3339(seconds: float) -> str:
    """A time in UTC, to the millisecond."""
    whole, part = divmod(int(seconds * 1000), 1000)
    return f"{_second(whole)}.{part:03d}Z"


@lru_cache(maxsize=8)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


def _place_text(place: Place) -> str:
    text = _names_text((("step", place.step), ("item", place.item)))
    if place.turn is not None:
        text = f'{text}"turn":{place.turn},'
    more = (("call", place.call), ("client", place.client), ("session", place.session))
    return text if more == _NO_MORE else text + _names_text(more)


_NO_MORE = (("call", None), ("client", None), ("session", None))


@lru_cache(maxsize=256)
def _names_text(names: tuple[tuple[str, str | None], ...]) -> str:
    return "".join(f'"{key}":{string_text(name)},' for key, name in names if name is not None)


def keys_of(kind: type[Event]) -> tuple[tuple[str, str], ...]:
    """The fields of an event, without its place, each with its JSON key."""
    keys = _KEYS.get(kind, {})
    names = (field.name for field in fields(kind) if field.name != "place")
    return tuple((name, keys.get(name, name)) for name in names)


ONLY_WITH_VALUE = frozenset(
    {
        *("sources", "flow", "output_sources", "released_bits", "schema", "resume_command"),
        *("evidence", "file_digests"),
    }
)
"""Keys that an event has only with a value: runs without flows are recorded as ever."""


def _keys_and_getter(kind: type[Event]) -> tuple[tuple[str, ...], Callable[[Any], Iterable[Any]]]:
    pairs = [pair for pair in keys_of(kind) if pair[0] not in ONLY_WITH_VALUE]
    names, keys = [name for name, _ in pairs], tuple([key for _, key in pairs])
    if len(names) > 1:
        return keys, attrgetter(*names)
    return keys, lambda event: [getattr(event, name) for name in names]


_FIELDS = {kind: _keys_and_getter(kind) for kind in EVENT_TYPES}
_OPTIONAL = {
    kind: names
    for kind in EVENT_TYPES
    if (names := [name for name, _ in keys_of(kind) if name in ONLY_WITH_VALUE])
}
_NAMES: dict[type, tuple[str, ...]] = {}
_SCALARS = frozenset({str, int, float, bool, NoneType})


def _names_of(kind: type) -> tuple[str, ...]:
    """The field names of a dataclass; empty for anything else."""
    names = _NAMES.get(kind)
    if names is None:
        names = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
        _NAMES[kind] = names
    return names
