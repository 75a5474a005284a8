"""The pipeline as declared: frozen, typed, complete with defaults.

Nothing is resolved: templates are source, durations seconds, sizes bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from aish.core.errors import Position
from aish.core.events import OnDuplicate
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.options import ModelConsent, PackOptions, marked_options
from aish.core.protocols import Asking
from aish.core.rules import FlowSettings, PolicyTest, RuleEntry, RuleLists
from aish.core.wires import CHAT
from aish.net.oauth.settings import OAuthSettings

ExpectKind = Literal[
    "contains",
    "not_contains",
    "equals",
    "matches",
    "schema",
    "expression",
    "tool_called",
    "tool_not_called",
    "tool_sequence",
    "max_tool_calls",
    "max_failed_calls",
    "max_tokens",
    "max_cost_usd",
    "max_seconds",
    "snapshot",
    "judge",
    "quoted",
]


CallOutcome = Literal["ok", "any", "failed"]


@frozen
class ToolMatch:
    """A pattern for calls: a glob `alias__tool`, and arguments (`with` in the file).

    These are compared as those of a rule's `when`. `outcome`, `exit_code` and `last`, which asks
    about the last call of the pattern only, are for calls that have to be there.
    """

    tool: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    outcome: CallOutcome = "ok"
    exit_code: int | None = None
    last: bool = False


@frozen
class QuoteSource:
    """A text that quotes may come from: results of `tools`, a value by its path, a file, a diff.

    `path` of a file is absolute, `name` as in the pipeline file; there it may be a template.
    """

    kind: Literal["tools", "value", "file", "diff"]
    name: str = ""
    path: Path | None = None


@frozen
class Quoted:
    """`quoted`: the quotes of an answer occur in `sources` (`in` in the file).

    `each` leads to a list or one entry, `text`, `file` and `line` to fields of an entry. `tool` is
    a glob for the calls whose results count. `min_length` and `ellipsis` count characters.
    """

    each: str | None = None
    text: str | None = None
    file: str | None = None
    line: str | None = None
    within: int = 3
    sources: tuple[QuoteSource, ...] = (QuoteSource("tools"),)
    tool: str | None = None
    min_length: int = 12
    ellipsis: int = 0
    at_least: int = 0


@frozen
class Expectation:
    """An item of `expect`. `where` is its place in the file: `tests[0].expect[1]`.

    `value` is the text, the regex, the expression, the number, or the JSON Schema (already read).
    `path` leads into the result (`outputs.notes`); `None` means the text. `tools` and `exact` are
    those of the `tool_*` kinds; `max_failed_calls` counts calls of `tools`, with `exit_codes` also
    commands. `file` is where a `snapshot` is kept, or where a `schema` was read from, absolute.
    `model` is the alias of a `judge`, whose `value` is the rubric. Every text but an expression and
    the paths and globs of `quoted` is a template, rendered when the expectation is checked.
    """

    kind: ExpectKind
    value: JsonValue = None
    where: str = ""
    path: str | None = None
    tools: tuple[ToolMatch, ...] = ()
    exact: bool = False
    exit_codes: bool = False
    file: Path | None = None
    model: str | None = None
    quoted: Quoted | None = None


@frozen
class CassetteSettings:
    """`cassette`, at the top or in a test: a path alone, or this; `path` is absolute.

    `strict` of `None` means the command's default. `name` is the path as written in the file, a
    template in a test with `foreach`.
    """

    path: Path
    ignore: tuple[str, ...] = ()
    strict: bool | None = None
    allow: tuple[str, ...] = ()
    name: str = ""


@frozen
class ControlToken:
    """A token of the control API, in a variable or a file; `path` is absolute."""

    name: str
    env: str | None
    path: Path | None
    scopes: tuple[str, ...]


@frozen
class NotifySettings:
    """`control.notify`: who is told of questions: a command, or the URL in a variable."""

    command: tuple[str, ...] = ()
    url_env: str | None = None


@frozen
class ControlSettings:
    """`control`: where a run listens, who may connect, and who is notified of questions."""

    listen: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    tokens: tuple[ControlToken, ...] = ()
    notify: NotifySettings | None = None


ServedNames = Literal["prefixed", "plain"]
ForwardKind = Literal["elicitation", "sampling", "roots"]
AskBy = Literal["page", "elicit"]
"""Who decides on a call that a rule asks about: a person at the control API, or the client."""


@frozen
class ServeClient:
    """A client of the MCP server, and what it sees.

    Its token is in a variable or a file (`path`, absolute); or it is whoever has a token of
    `serve.auth` with all these `scopes`. `tools` are globs over `alias__tool`, and none means all.
    """

    name: str
    env: str | None
    path: Path | None
    tools: tuple[str, ...]
    scopes: tuple[str, ...] | None = None


@frozen
class AuthSettings:
    """`serve.auth`: whose tokens let clients in.

    `audience` are the values of `aud` that name this server. `jwks` is the URL of the issuer's
    keys, which its metadata names otherwise; `resource` the URL of this server, which a request
    names otherwise. `scopes` are what a client without a token is told to ask for; `None` are those
    of the first entry of `serve.clients`. With `step_up` clients see tools that need more scopes.
    `scopes_supported` says whether the metadata of this server lists scopes.
    """

    issuer: str
    audience: tuple[str, ...]
    jwks: str | None = None
    resource: str | None = None
    scopes: tuple[str, ...] | None = None
    step_up: bool = False
    scopes_supported: bool = True


@frozen
class ServeLimits:
    """`serve.limits`: bounds of the MCP server; sizes in bytes, times in seconds."""

    message: int = 10 * 1024 * 1024
    receive: float = 10.0
    sessions: int = 1000
    idle: float = 1800.0
    http_connections: int = 2500
    connections: int = 64
    session_calls: int = 16
    calls: int = 256
    waiting: int = 256
    queued: int = 256
    drain: float = 30.0
    pipelines: int = 4
    children: int = 32


@frozen
class AuditSettings:
    """`serve.audit`: the folder of the audit log (absolute), and how it is rotated."""

    path: Path | None = None
    rotate: int = 64 * 1024 * 1024
    keep: int = 10


@frozen
class ServedPipeline:
    """An entry of `serve.pipelines`: a file (absolute) that is offered as a tool.

    `name` and `description` are those of the file where they are left out. A `task` is answered at
    once with a task, to clients that can take one. `where` is its place in the file.
    """

    file: Path
    name: str | None = None
    description: str | None = None
    task: bool = False
    read_only: bool = False
    where: str = ""


@frozen
class ServeSettings:
    """`serve`: what `aish serve` offers of this file, and how; `state` is absolute.

    `names` says whether tools are called `alias__tool` or `tool`. `tools` are globs over
    `alias__tool`; an empty `tools` means all. `resources` are globs over `alias__uri`, `prompts`
    over `alias__name`; where they are empty, there are none. `listen` says where clients connect,
    with absolute paths. `forward` are the requests of servers that are passed on to clients. The
    first of `ask` that is there is asked about a call, and the call is held for `hold`
    seconds until the answer.
    """

    name: str | None = None
    instructions: str | None = None
    names: ServedNames = "prefixed"
    tools: tuple[str, ...] = ()
    ask: tuple[AskBy, ...] = ("page",)
    hold: float = 50.0
    state: Path | None = None
    limits: ServeLimits = ServeLimits()
    audit: AuditSettings = AuditSettings()
    clients: tuple[ServeClient, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    pipelines: tuple[ServedPipeline, ...] = ()
    forward: tuple[ForwardKind, ...] = ("elicitation",)
    resources: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    auth: AuthSettings | None = None

    @property
    def scoped(self) -> tuple[ServeClient, ...]:
        """The clients that are known by the scopes of their tokens."""
        return tuple(client for client in self.clients if client.scopes is not None)


@frozen
class CaseRows:
    """`foreach` of a test: a file with one case per row, relative to `folder`.

    Templates call the row `name` (`as` in the file); `key` is an expression for a row's name.
    `delimiter` separates the values of a CSV file.
    """

    file: str
    folder: Path
    name: str = "item"
    key: str | None = None
    delimiter: str | None = None


@frozen
class CaseRepeat:
    """`repeat` of a test: how often it runs live, and how many of those runs have to pass.

    The number is in `passes`, the share in `percent`; without either all have to.
    """

    runs: int
    passes: int | None = None
    percent: int | None = None

    def needed(self, runs: int) -> int:
        """The passes that are needed of so many runs; a number keeps its share."""
        if self.percent is not None:
            return -(-self.percent * runs // 100)
        return runs if self.passes is None else -(-self.passes * runs // self.runs)


@frozen
class Case:
    """An item of `tests`. `where` is its place in the file: `tests[0]`.

    `inputs` are those the file gives, without defaults. A `cassette` of `None` means the file's.
    With `rows` it represents many cases, and its texts are templates; `names` are what those of a
    case that was made of a row see.
    """

    name: str
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    stdin: str | None = None
    cassette: CassetteSettings | None = None
    expect: tuple[Expectation, ...] = ()
    where: str = ""
    rows: CaseRows | None = None
    names: Mapping[str, JsonValue] = field(default_factory=dict)
    repeat: CaseRepeat | None = None


FinishUse = Literal["required", "optional"]
JsonSchemaUse = bool | Literal["without_tools"]


@frozen
class RetryPolicy:
    """Attempts of a model request, the first one included; `max_delay` in seconds."""

    attempts: int = 4
    max_delay: float = 60.0


@frozen
class ModelTimeout:
    """Seconds."""

    connect: float = 10.0
    first_token: float = 120.0
    idle: float = 60.0
    turn: float = 600.0


@frozen
class Price:
    """US dollars per million tokens; `None` is in proportion to `input`.

    Requests in batches cost the part `batch` of it.
    """

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None
    batch: float | None = None


@frozen
class KeySource:
    """Source of a key: a command in a folder, or a file; `place` is its path in the pipeline.

    The key is made anew after `seconds`, if they are set. `scheme` stands before it in its header.
    """

    place: str
    command: tuple[str, ...] = ()
    folder: Path = Path()
    file: Path | None = None
    seconds: float | None = None
    scheme: str = "Bearer "


EMBEDDED_TOKENS = 256
"""A small model may never come to an end by itself, and takes minutes for what it has room for."""


CacheUse = Literal["auto", "off", "5m", "30m", "1h", "12h"]
Delivery = Literal["single", "batch"]
"""How requests go to a model: each at once, or together by the batches of its provider."""
BATCH: Delivery = "batch"
OnWait = Literal["wait", "pause"]
"""What a run does while nothing but the batches of providers can go on."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@frozen
class ModelEntry:
    """`models.ALIAS`. Exactly one of `base_url` and `embedded` is set; `api` names a wire.

    At most one of `key_env` and `key_source` (`key_command` or `key_file`) is set.

    `embedded` is `smollm2` or an absolute path to a `.gguf`. Embedded models have `json_schema:
    without_tools`: their server enforces a schema so strictly that no tool could be called. They
    answer with at most `EMBEDDED_TOKENS` where `params` do not say otherwise.
    """

    alias: str
    base_url: str | None = None
    model: str | None = None
    embedded: str | None = None
    api: str = CHAT
    key_env: str | None = None
    key_header: str | None = None
    effort: Effort | None = None
    cache: CacheUse = "off"
    delivery: Delivery = "single"
    key_source: KeySource | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    fallback: tuple[str, ...] = ()
    retry: RetryPolicy = RetryPolicy()
    timeout: ModelTimeout = ModelTimeout()
    tool_role: bool = True
    json_schema: JsonSchemaUse = False
    vision: bool = False
    pdf: bool = False
    usage: bool = True
    finish: FinishUse = "required"
    max_tool_name: int = 64
    verify_tls: bool | Path = True
    proxy: str | None = None
    price: Price | None = None


ProtocolChoice = Literal[
    "auto", "legacy", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"
]


@frozen
class ServerTimeout:
    """Seconds. `tools` overrides `call` per tool name; `call_max` lets progress extend both."""

    connect: float = 20.0
    call: float = 60.0
    tools: Mapping[str, float] = field(default_factory=dict)
    call_max: float | None = None


@frozen
class ServerSandbox:
    """`sandbox` of a server that is a child process: what it may use.

    Paths are absolute; it may write in `write`, and read it. `home` is one of them. `network` may
    be a list of destinations. With `best_effort`, of `auto`, it is started without a sandbox where
    none works.
    """

    kind: Literal["auto", "bubblewrap", "landlock"] = "auto"
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    network: Literal["none", "full"] | tuple[str, ...] = "none"
    home: Path | None = None
    best_effort: bool = False


@frozen
class ServerEntry:
    """`mcp.servers.ALIAS`. Exactly one of `url`, `command` and `pack` is set.

    `command` is the whole argv (`args` already appended). `env` maps names to values; a value of
    `None` means "pass on the variable of that name". `root` and `cwd` are absolute. `roots` are the
    folders told to a server that asks. `tools` and `exclude` are globs over the server's own
    tool names; an empty `tools` means all. `key_sources` make the values of headers, by name
    (`auth_command`, `auth_file`, `header_commands`). Without `share` each client of a hub has a
    connection of its own. `required` of `None` selects the default: required in a
    run, optional in a session.
    """

    alias: str
    url: str | None = None
    auth_env: str | None = None
    auth_token: str | None = None
    oauth: OAuthSettings | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key_sources: Mapping[str, KeySource] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    cwd: Path | None = None
    pack: tuple[str, ...] = ()
    root: Path | None = None
    options: PackOptions = field(default_factory=dict)
    required: bool | None = None
    trust: bool = False
    instructions: bool = False
    strict_output: bool = False
    protocol: ProtocolChoice = "auto"
    sampling: Literal["deny", "allow"] = "deny"
    roots: tuple[Path, ...] = ()
    tools: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    timeout: ServerTimeout = ServerTimeout()
    verify_tls: bool | Path = True
    share: bool = True
    sandbox: ServerSandbox | None = None

    @property
    def model_consent(self) -> ModelConsent:
        """Which models of the file its packs may ask; other servers may ask none by name."""
        if not self.pack:
            return ModelConsent()
        aliases = (alias for _, alias in marked_options(self.options, "model"))
        return ModelConsent(
            named=tuple(dict.fromkeys(aliases)),
            every="ml" in self.pack,
            unnamed=self.sampling == "allow" or not _ASKING_PACKS.isdisjoint(self.pack),
        )


_ASKING_PACKS = frozenset({"ml", "ide"})
"""Packs whose whole purpose is to ask models: naming one is the consent."""


PLATFORM_SHELL = ("/bin/sh", "-c")


@frozen
class Shell:
    """The settings of a session for local commands.

    `auto_approve` are rules about the words of a command line that a model proposes, `cmd_lines`
    says whether such proposals are looked for. `run` are the words before a command line.
    """

    auto_approve: tuple[RuleEntry, ...] = ()
    cmd_lines: bool = True
    run: tuple[str, ...] = PLATFORM_SHELL


OnDenied = Literal["fail", "continue"]
OnError = Literal["fail", "continue"]
OnToolError = Literal["unmended", "fail", "continue"]
RetryOn = Literal["failed", "unavailable", "timeout", "schema", "expectation", "call_unknown"]


@frozen
class LoopLimits:
    """Bounds of one step's tool loop; `result_limit` in bytes."""

    max_tool_depth: int = 8
    max_calls_per_turn: int = 32
    result_limit: int = 32 * 1024


@frozen
class Limits:
    """Bounds of a run or a step; `time` in seconds, `turns` counts model requests."""

    time: float | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    tool_calls: int | None = None
    turns: int | None = None


Refresh = Literal["diff", "whole", "name", "off"]


@frozen
class ContextFile:
    """An entry of `context.files`: a path or a glob, relative to `folder`.

    `lines` are the first and the last line of a part of the file, counted from 1; `name` is a
    definition in it, and `skeleton` shows its definitions without their bodies. At most one of the
    three is set, and none for a glob. `where` is its place in the file.
    """

    path: str
    folder: Path
    where: str = ""
    is_glob: bool = False
    lines: tuple[int, int] | None = None
    name: str | None = None
    skeleton: bool = False


@frozen
class Context:
    """The size of a conversation, and the files in it that stay current.

    `keep` is in rounds, `max_tokens` per request, `file_limit` and `round_limit` in bytes.
    """

    max_tokens: int | None = None
    keep: int = 4
    summary_model: str | None = None
    files: tuple[ContextFile, ...] = ()
    refresh: Refresh = "diff"
    file_limit: int = 8 * 1024
    round_limit: int = 32 * 1024


@frozen
class MaxFailures:
    """The number of items that may fail, or a share from 0 to 1."""

    count: int | None = None
    share: float | None = None


@frozen
class Foreach:
    """The items that a step runs over; exactly one of `expression`, `file` and `glob` is set.

    `file` is a template, and relative to `folder`, as `glob` is. `name` is what templates call
    the item (`as`), `key` an expression for its name. With a `concurrency` of `None` the
    delivery of its models decides.
    """

    expression: str | None = None
    file: str | None = None
    delimiter: str | None = None
    glob: str | None = None
    folder: Path = Path()
    name: str = "item"
    key: str | None = None
    on_duplicate: OnDuplicate = "fail"
    concurrency: int | None = None
    max_failures: MaxFailures | None = None


@frozen
class StepRetry:
    """Attempts of a step, the first one included; after any error if `on` is empty."""

    attempts: int = 1
    on: tuple[RetryOn, ...] = ()


@frozen
class Flow:
    """Control flow of a step of any kind: condition, items, retries; `timeout` in seconds."""

    when: str | None = None
    foreach: Foreach | None = None
    retry: StepRetry = StepRetry()
    timeout: float | None = None
    on_error: OnError = "fail"
    limits: Limits = Limits()


@frozen
class Prompt:
    """Template sources. `file` names where `user` was read from, if it was."""

    user: str
    system: str | None = None
    file: Path | None = None


@frozen
class ServerPrompt:
    """A prompt from a server; the values of `arguments` are template sources."""

    server: str
    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@frozen
class Attachment:
    """An attachment before a prompt's own text: a file or a server's resource.

    `ref` is the template of a path, or with `server` the URI of a resource of that server.
    """

    ref: str
    server: str | None = None


RETRIEVAL_PACK = "rag"
RETRIEVAL_TOOL = "rag_query"


@frozen
class Retrieval:
    """An attachment that is searched for: passages of a server with the pack `rag`.

    `query` is a template; `top_k`, `threshold` and `collection` are those of the tool `rag_query`.
    """

    server: str
    query: str
    top_k: int = 5
    threshold: float = 0.0
    collection: str | None = None


@frozen
class Output:
    """`output` of a prompt step: `schema` already read and known to be a schema.

    `attempts` is the maximum number of requests for an answer, the first one included. The output
    does not have the labels of `release`.
    """

    schema: JsonObject
    attempts: int = 3
    release: tuple[str, ...] = ()


@frozen
class PromptStep:
    """A model with the tool loop. `tools` are globs `alias__tool`; `None` means all.

    `continues` names the prompt step whose conversation is continued.
    """

    id: str
    prompt: Prompt | ServerPrompt
    prompt_name: str | None = None
    model: str | None = None
    system: str | None = None
    tools: tuple[str, ...] | None = None
    tool_choice: str = "auto"
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    output: Output | None = None
    attach: tuple[Attachment | Retrieval, ...] = ()
    continues: str | None = None
    context: Context = Context()
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    on_tool_error: OnToolError = "unmended"
    asking: Asking = Asking()
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    flow: Flow = Flow()


@frozen
class CallStep:
    """A tool call without a model; `arguments` (`with` in the file) hold templates."""

    id: str
    call: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    on_tool_error: OnToolError = "unmended"
    asking: Asking = Asking()
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    flow: Flow = Flow()


@frozen
class RunStep:
    """A local command: an argv tuple of templates, or a string for `sh`."""

    id: str
    run: tuple[str, ...] | str
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    asking: Asking = Asking()
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    flow: Flow = Flow()


@frozen
class PipelineStep:
    """Another pipeline file, absolute; `inputs` (`with` in the file) hold templates."""

    id: str
    file: Path
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    flow: Flow = Flow()


Step = PromptStep | CallStep | RunStep | PipelineStep


StdinUse = Literal["required", "optional"]
LockIgnored = Literal["prompts", "models", "packages"]
"""What a lock pins and a run may have otherwise, with a warning."""


FIELDS = ("path", "line", "end_line", "level", "message")


@frozen
class Annotation:
    """An annotation, or one for each item of `foreach`, an expression, called `name`.

    The fields are template sources, or numbers. An annotation without any uses each item as it is:
    a mapping with these keys. `where` is its place in the file.
    """

    where: str
    foreach: str | None = None
    name: str = "item"
    fields: tuple[tuple[str, JsonValue], ...] = ()


@frozen
class Pipeline:
    """A whole file, its `extends` and overrides merged in.

    `positions` maps a path in the file (`steps[0].prompt`) to where it stands; a path that is not
    there is looked up by its nearest parent through `position`. `digest` is the SHA-256 of the
    canonical JSON of the merged data, `files` has that of each prompt and schema by the name that
    the file has for it, and `sources` the resolved paths of all files read. `on_denied` is
    `None` where the file says nothing. `loop` and `context` are the file's own bounds, which its
    steps already have. `broken` are the paths of what could not be read: such a pipeline is looked
    at and never run. `stdin` counts where something reads it.
    """

    file: Path
    name: str
    description: str = ""
    inputs: Mapping[str, JsonObject] = field(default_factory=dict)
    stdin: StdinUse = "required"
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    models: Mapping[str, ModelEntry] = field(default_factory=dict)
    model: str | None = None
    servers: Mapping[str, ServerEntry] = field(default_factory=dict)
    rules: RuleLists = field(default_factory=RuleLists)
    flows: FlowSettings = FlowSettings()
    prompts: Mapping[str, Prompt | ServerPrompt] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    outputs: Mapping[str, JsonValue] | None = None
    annotations: tuple[Annotation, ...] = ()
    limits: Limits = Limits()
    on_denied: OnDenied | None = None
    asking: Asking = Asking()
    on_wait: OnWait = "wait"
    loop: LoopLimits = LoopLimits()
    context: Context = Context()
    shell: Shell = Shell()
    policy_tests: tuple[PolicyTest, ...] = ()
    cassette: CassetteSettings | None = None
    control: ControlSettings = ControlSettings()
    serve: ServeSettings = ServeSettings()
    tests: tuple[Case, ...] = ()
    lock: Path | None = None
    lock_ignore: tuple[LockIgnored, ...] = ()
    overrides: tuple[str, ...] = ()
    digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    sources: frozenset[Path] = frozenset()
    data: JsonObject = field(default_factory=dict)
    positions: Mapping[str, Position] = field(default_factory=dict)
    broken: tuple[str, ...] = ()

    def key_sources(self) -> Iterator[KeySource]:
        """The sources of keys and tokens that are made, of all models and servers."""
        for model in self.models.values():
            if model.key_source is not None:
                yield model.key_source
        for server in self.servers.values():
            yield from server.key_sources.values()

    @property
    def other_files(self) -> tuple[Path, ...]:
        """The files of the pipelines that it runs or serves."""
        run = (step.file for step in self.steps if isinstance(step, PipelineStep))
        return (*run, *(entry.file for entry in self.serve.pipelines))
