"""The pipeline as declared: frozen, typed, complete with defaults (design 2.1).

Nothing here is resolved: `${VAR}` stands as written, prompts are template source, globs are text.
Durations are seconds, sizes are bytes. The keys are those of `schemas/pipeline.schema.json`; a
test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from aish.config.expected import Case, CassetteSettings
from aish.config.models import ModelEntry
from aish.config.server_entry import ServerEntry
from aish.config.shell import Shell
from aish.config.steps import Context, Limits, LoopLimits, OnDenied, Prompt, ServerPrompt, Step
from aish.core.errors import Position
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.rules import PolicyTest, RuleLists

StdinUse = Literal["required", "optional"]
LockIgnored = Literal["prompts", "models"]
"""What a lock pins and a run may have otherwise, with a warning (P8)."""


FIELDS = ("path", "line", "end_line", "level", "message")


@frozen
class Annotation:
    """One annotation, or one for each item of `foreach`, an expression, called `name`.

    The fields are template sources, or what stands there as a number. An annotation without any
    takes each item as it is: a mapping with these keys. `where` is its place in the file.
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
    the file has for it. `on_denied` is `None` where the file says nothing. `loop` and `context` are
    the file's own bounds, which its steps already have. `broken` are the paths of what could not be
    read: such a pipeline is looked at and never run. `stdin` counts where something reads it.
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
    prompts: Mapping[str, Prompt | ServerPrompt] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    outputs: Mapping[str, JsonValue] | None = None
    annotations: tuple[Annotation, ...] = ()
    limits: Limits = Limits()
    on_denied: OnDenied | None = None
    loop: LoopLimits = LoopLimits()
    context: Context = Context()
    shell: Shell = Shell()
    policy_tests: tuple[PolicyTest, ...] = ()
    cassette: CassetteSettings | None = None
    tests: tuple[Case, ...] = ()
    lock: Path | None = None
    lock_ignore: tuple[LockIgnored, ...] = ()
    overrides: tuple[str, ...] = ()
    digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    data: JsonObject = field(default_factory=dict)
    positions: Mapping[str, Position] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
