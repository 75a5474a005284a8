"""`steps` and `prompts` as declared: templates are source; durations seconds, sizes bytes."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from aish.config.expected import Expectation
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue

OnDenied = Literal["fail", "continue"]


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
