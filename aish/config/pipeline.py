"""The pipeline as declared: frozen, typed, complete with defaults (design 2.1).

Nothing here is resolved: `${VAR}` stands as written, prompts are template source, globs are text.
Durations are seconds, sizes are bytes. The keys are those of `schemas/pipeline.schema.json`; a
test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from aish.errors import Position
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue
from aish.vocab.rules import PolicyTest, RuleLists

OnDenied = Literal["fail", "continue"]
JsonSchemaUse = bool | Literal["without_tools"]
ProtocolChoice = Literal[
    "auto", "legacy", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"
]


@frozen
class RetryPolicy:
    """How often a model request is tried, the first time included; `max_delay` in seconds."""

    attempts: int = 4
    max_delay: float = 60.0


@frozen
class ModelTimeout:
    """Seconds (L10)."""

    connect: float = 10.0
    first_token: float = 120.0
    idle: float = 60.0
    turn: float = 600.0


@frozen
class ModelEntry:
    """`models.ALIAS`. Exactly one of `base_url` and `embedded` is set.

    `embedded` is `smollm2` or an absolute path to a `.gguf`. Embedded models have `json_schema:
    without_tools`: their server enforces a schema so strictly that no tool could be called.
    """

    alias: str
    base_url: str | None = None
    model: str | None = None
    embedded: str | None = None
    key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    fallback: tuple[str, ...] = ()
    retry: RetryPolicy = RetryPolicy()
    timeout: ModelTimeout = ModelTimeout()
    tool_role: bool = True
    json_schema: JsonSchemaUse = False
    vision: bool = False
    usage: bool = True
    max_tool_name: int = 64
    verify_tls: bool = True
    proxy: str | None = None


@frozen
class ServerTimeout:
    """Seconds. `tools` overrides `call` per tool name."""

    connect: float = 20.0
    call: float = 60.0
    tools: Mapping[str, float] = field(default_factory=dict)


@frozen
class ServerEntry:
    """`mcp.servers.ALIAS`. Exactly one of `url`, `command` and `pack` is set.

    `command` is the whole argv (`args` already appended). `env` maps names to values; a value of
    `None` means "pass on the variable of that name". `root` and `cwd` are absolute. `roots` are
    the folders told to a server that asks (M11). `tools` and `exclude` are globs over the
    server's own tool names; an empty `tools` means all.
    """

    alias: str
    url: str | None = None
    auth_env: str | None = None
    auth_token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    cwd: Path | None = None
    pack: tuple[str, ...] = ()
    root: Path | None = None
    required: bool = True
    trust: bool = False
    protocol: ProtocolChoice = "auto"
    sampling: Literal["deny", "allow"] = "deny"
    roots: tuple[Path, ...] = ()
    tools: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    timeout: ServerTimeout = ServerTimeout()
    verify_tls: bool = True


@frozen
class LoopLimits:
    """Bounds of one step's tool loop (L15, L16, L18); `result_limit` in bytes."""

    max_tool_depth: int = 8
    max_calls_per_turn: int = 32
    result_limit: int = 32 * 1024


@frozen
class Limits:
    """Bounds of the whole run; seconds."""

    time: float | None = None


@frozen
class Prompt:
    """Template sources. `file` names where `user` was read from, if it was."""

    user: str
    system: str | None = None
    file: Path | None = None


@frozen
class Output:
    """`output` of a prompt step: `schema` already read and known to be a schema.

    `attempts` is how often an answer may be asked for, the first time included (B9).
    """

    schema: JsonObject
    attempts: int = 3


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
    "max_tokens",
    "max_seconds",
    "snapshot",
]


@frozen
class ToolMatch:
    """Calls that an expectation is about: a glob `alias__tool`, and arguments (`with` in the file).

    These are compared as those of a rule's `when`.
    """

    tool: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)


@frozen
class Expectation:
    """One item of `expect` (F12). `where` is its place in the file: `tests[0].expect[1]`.

    `value` is the text, the regex, the expression, the number, or the JSON Schema (already read).
    `path` leads into the result (`outputs.notes`); `None` means the text. `tools` and `exact` are
    those of the `tool_*` kinds. `file` is where a `snapshot` is kept, absolute.
    """

    kind: ExpectKind
    value: JsonValue = None
    where: str = ""
    path: str | None = None
    tools: tuple[ToolMatch, ...] = ()
    exact: bool = False
    file: Path | None = None


@frozen
class CassetteSettings:
    """`cassette`, at the top or in a test: a path alone, or this; `path` is absolute (C4, C5, C8).

    `strict` of `None` means what the command has as its default.
    """

    path: Path
    ignore: tuple[str, ...] = ()
    strict: bool | None = None
    allow: tuple[str, ...] = ()


@frozen
class Case:
    """One item of `tests` (C12). `where` is its place in the file: `tests[0]`.

    `inputs` are those the file gives, without defaults. A `cassette` of `None` means the file's.
    """

    name: str
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    stdin: str | None = None
    cassette: CassetteSettings | None = None
    expect: tuple[Expectation, ...] = ()
    where: str = ""


@frozen
class PromptStep:
    """A model with the tool loop. `tools` are globs `alias__tool`; `None` means all."""

    id: str
    prompt: Prompt
    prompt_name: str | None = None
    model: str | None = None
    system: str | None = None
    tools: tuple[str, ...] | None = None
    tool_choice: str = "auto"
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    output: Output | None = None
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()


@frozen
class CallStep:
    """One tool call without a model; `arguments` (`with` in the file) hold templates."""

    id: str
    call: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()


@frozen
class RunStep:
    """A local command: an argv tuple of templates, or a string for `sh`."""

    id: str
    run: tuple[str, ...] | str
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()


Step = PromptStep | CallStep | RunStep


@frozen
class Pipeline:
    """A whole file, its `extends` and overrides merged in.

    `positions` maps a path in the file (`steps[0].prompt`) to where it stands; a path that is not
    there is looked up by its nearest parent through `position`. `digest` is the SHA-256 of the
    canonical JSON of the merged data. `warnings` are problems that do not stop a run.
    """

    file: Path
    name: str
    description: str = ""
    inputs: Mapping[str, JsonObject] = field(default_factory=dict)
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    models: Mapping[str, ModelEntry] = field(default_factory=dict)
    model: str | None = None
    servers: Mapping[str, ServerEntry] = field(default_factory=dict)
    rules: RuleLists = field(default_factory=RuleLists)
    prompts: Mapping[str, Prompt] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    outputs: Mapping[str, JsonValue] | None = None
    limits: Limits = Limits()
    on_denied: OnDenied = "fail"
    policy_tests: tuple[PolicyTest, ...] = ()
    cassette: CassetteSettings | None = None
    tests: tuple[Case, ...] = ()
    lock: Path | None = None
    overrides: tuple[str, ...] = ()
    digest: str = ""
    data: JsonObject = field(default_factory=dict)
    positions: Mapping[str, Position] = field(default_factory=dict)
