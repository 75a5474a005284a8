"""`aish plan FILE`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from aish.cli.boundary import report, say
from aish.cli.loading import Given, load, run_options
from aish.cli.looking import looked_at, notices
from aish.cli.options import (
    AllowOption,
    BroadRootOption,
    DenyOption,
    FileArgument,
    InputOption,
    InputsOption,
    LockOption,
    LockUse,
    MaxCostOption,
    MaxTurnsOption,
    ModelOption,
    NoKeyCheckOption,
    Option,
    SetOption,
    StrictOption,
    TimeoutOption,
    VerboseOption,
)
from aish.cli.plan_graph import mermaid_lines
from aish.cli.plan_text import plan_lines
from aish.cli.printing import print_json, print_text
from aish.core.errors import ExitCode, UsageError
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.engine.plan.order import lacks_stdin
from aish.engine.plan.plan import make_plan
from aish.engine.plan.validation.validate import require_steps
from aish.engine.preview.preview import plan_view
from aish.engine.preview.tool_listing import MANY_TOOLS, Look, look_at_lock
from aish.engine.resources.resources import missing_server


class PlanReport(StrEnum):
    """How a plan is printed."""

    TEXT = "text"
    JSON = "json"
    MERMAID = "mermaid"


def command(
    file: FileArgument,
    *,
    inputs: InputOption = None,
    inputs_file: InputsOption = None,
    overrides: SetOption = None,
    model: ModelOption = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    broad_root: BroadRootOption = False,
    lock: LockOption = LockUse.ENFORCE,
    timeout: TimeoutOption = None,
    max_cost_usd: MaxCostOption = None,
    max_turns: MaxTurnsOption = None,
    no_key_check: NoKeyCheckOption = False,
    offline: Annotated[
        bool, Option("--offline", help="Do not connect to servers; no key is needed.")
    ] = False,
    strict: StrictOption = False,
    format_: Annotated[PlanReport, Option("--format", help="Output format.")] = PlanReport.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Show what would run and what would be asked.

    Servers are asked for their tools; no model is called. Variables and keys that are not set are
    errors, and `--offline` lists them instead.

    Example: aish plan pipelines/review.yaml --offline
    """
    del verbose
    pipeline = load(file, overrides, strict=strict)
    require_steps(pipeline)
    given = Given(inputs, inputs_file, model, broad_root)
    options = run_options(pipeline, given, allow=allow, deny=deny, timeout=timeout, lock=lock)
    if lacks_stdin(pipeline, options.stdin):
        say("note: the file reads `{{ stdin }}`, which is empty here: `aish run` would refuse that")
    options = replace(
        options, max_cost_usd=max_cost_usd, max_turns=max_turns, key_check=not no_key_check
    )
    plan = make_plan(pipeline, options, offline=offline)
    keys: UsageError | None = None
    try:
        if plan.has_keys:
            from aish.engine.execution.item_source import with_surveys

            options = with_surveys(plan, options)
    except UsageError as repeated:
        # What would run is shown all the same.
        keys = repeated
    found = look_at_lock(plan, notices(plan.secrets)) if offline else looked_at(plan)
    view = plan.secrets.mask_json(plan_view(plan, options, found))
    assert isinstance(view, Mapping)
    _print(view, format_)
    for step, survey in options.surveys.items():
        if survey.unusable:
            of = f"{survey.unusable:,} of {counted(survey.items, 'item')}"
            say(
                f"warning: step `{step}`: {of} will fail because the key is missing; first "
                f"{survey.odd}"
            )
    if keys is not None:
        report(keys)
        return int(ExitCode.USAGE)
    if found is None:
        return 0
    for error in found.locked:
        report(error)
        return int(error.exit_code)
    odd = _unmatched(found, strict=strict) + _crowded(view, strict=strict)
    if missing_server(plan, found.servers) is not None:
        return int(ExitCode.UNAVAILABLE)
    return int(ExitCode.USAGE if odd and strict else ExitCode.OK)


def _print(view: JsonObject, format_: PlanReport) -> None:
    if format_ is PlanReport.JSON:
        print_json(view)
    else:
        lines = mermaid_lines if format_ is PlanReport.MERMAID else plan_lines
        print_text("\n".join(lines(view)))


def _unmatched(found: Look, *, strict: bool) -> int:
    """A rule that matches no known tool: a warning, an error with `--strict` (P1)."""
    for rule in found.unmatched:
        level = "error" if strict else "warning"
        say(f"{level}: {rule.path}: the rule `{rule.tool}` matches no known tool")
    return len(found.unmatched)


def _crowded(view: JsonObject, *, strict: bool) -> int:
    """Requests with more tools than endpoints accept, as far as one can know."""
    steps = view["steps"]
    assert isinstance(steps, Sequence)
    crowded = 0
    for step in steps:
        assert isinstance(step, Mapping)
        tools = step.get("tools")
        if isinstance(tools, Sequence) and len(tools) > MANY_TOOLS:
            crowded += 1
            said = f"step `{step['id']}`: its requests have {len(tools):,} tools"
            level = "error" if strict else "warning"
            say(f"{level}: {said}; many endpoints accept {MANY_TOOLS} at most")
            say("  hint: name those it needs under `tools:` of the step, or of the server")
    return crowded
