"""`steps` and `prompts` as declared: templates are source; durations seconds, sizes bytes."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from aish.config.expected import Expectation
from aish.core.events import OnDuplicate
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

OnDenied = Literal["fail", "continue"]
OnError = Literal["fail", "continue"]
RetryOn = Literal["failed", "unavailable", "timeout", "schema", "expectation"]


@frozen
class LoopLimits:
    """Bounds of one step's tool loop (L15, L16, L18); `result_limit` in bytes."""

    max_tool_depth: int = 8
    max_calls_per_turn: int = 32
    result_limit: int = 32 * 1024


@frozen
class Limits:
    """Bounds of a run or a step (B8); `time` in seconds, `turns` counts model requests."""

    time: float | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    tool_calls: int | None = None
    turns: int | None = None


@frozen
class Context:
    """How long a conversation may grow (L19); `keep` counts rounds, `max_tokens` one request's."""

    max_tokens: int | None = None
    keep: int = 4
    summary_model: str | None = None


@frozen
class MaxFailures:
    """How many items may fail: a number, or a share from 0 to 1."""

    count: int | None = None
    share: float | None = None


@frozen
class Foreach:
    """What a step runs over (F5); exactly one of `expression`, `file` and `glob` is set.

    `file` is a template, and relative to `folder`, as `glob` is. `name` is what templates call
    the item (`as`), `key` an expression for its name.
    """

    expression: str | None = None
    file: str | None = None
    delimiter: str | None = None
    glob: str | None = None
    folder: Path = Path()
    name: str = "item"
    key: str | None = None
    on_duplicate: OnDuplicate = "fail"
    concurrency: int = 8
    max_failures: MaxFailures | None = None


@frozen
class StepRetry:
    """How often a step is tried, the first time included; after anything if `on` is empty."""

    attempts: int = 1
    on: tuple[RetryOn, ...] = ()


@frozen
class Flow:
    """When, how often and for how long a step of any kind runs (F4); `timeout` in seconds."""

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
    """A prompt that a server keeps (M12); the values of `arguments` are template sources."""

    server: str
    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@frozen
class Attachment:
    """What stands before a prompt's own text: a file or a server's resource (M12).

    `ref` is the template of a path, or of a URI; with `server` it is a URI of that server.
    """

    ref: str
    server: str | None = None


@frozen
class Output:
    """`output` of a prompt step: `schema` already read and known to be a schema.

    `attempts` is how often an answer may be asked for, the first time included (B9).
    """

    schema: JsonObject
    attempts: int = 3


@frozen
class PromptStep:
    """A model with the tool loop. `tools` are globs `alias__tool`; `None` means all.

    `continues` names the prompt step whose conversation goes on here.
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
    attach: tuple[Attachment, ...] = ()
    continues: str | None = None
    context: Context = Context()
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    flow: Flow = Flow()


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
    flow: Flow = Flow()


@frozen
class RunStep:
    """A local command: an argv tuple of templates, or a string for `sh`."""

    id: str
    run: tuple[str, ...] | str
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    flow: Flow = Flow()


@frozen
class PipelineStep:
    """Another pipeline file, absolute; `inputs` (`with` in the file) hold templates (F2)."""

    id: str
    file: Path
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    limits: LoopLimits = LoopLimits()
    on_denied: OnDenied = "fail"
    needs: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    flow: Flow = Flow()


Step = PromptStep | CallStep | RunStep | PipelineStep
