"""`aish call FILE ALIAS__TOOL [k=v…]`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import anyio

from aish.agent.runtime import UsedCall
from aish.agent.wording import NO_OUTPUT
from aish.cli.boundary import say
from aish.cli.options import (
    Argument,
    AskOption,
    FileArgument,
    Option,
    Report,
    ReportOption,
    RuleOptions,
    SetOption,
)
from aish.cli.pipeline_options import load, look_options, read_stdin
from aish.cli.printer import print_json
from aish.cli.tool_preview import call_plan, quiet_environment
from aish.config.documents import UnreadableError, parse_json, read_text
from aish.config.inputs import INPUT_LIMIT
from aish.core.errors import UsageError
from aish.core.json import JsonObject
from aish.core.text import safe_utf8
from aish.engine.steps.tool_call import MEANING, direct_call
from aish.output.formats.text import manner_for
from aish.policy.decide import tool_name
from aish.policy.gate import NOBODY, THE_USER
from aish.policy.rules import is_command_tool
from aish.terminal.approver import TerminalApprover


def command(
    file: FileArgument,
    tool: Annotated[str, Argument("ALIAS__TOOL", "The tool's name.", completes="tool_names")],
    arguments: Annotated[
        list[str] | None,
        Argument(
            "[KEY=VALUE]...",
            "Its arguments, converted by the tool's schema; KEY:=JSON is exact.",
            completes="argument_names",
        ),
    ] = None,
    *,
    args: Annotated[
        str | None,
        Option(
            "--args JSON|@FILE|-",
            "All arguments as a JSON object, of a file or stdin; KEY=VALUE takes precedence.",
        ),
    ] = None,
    overrides: SetOption = None,
    rules: RuleOptions,
    ask: AskOption = False,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Call one tool directly, under the file's rules.

    Its result goes to stdout.

    Example: aish call pipelines/quickstart.yaml notes__file_read path=note.md
    """
    plan = call_plan(load(file, overrides, lock=rules.lock), look_options(rules), tool)
    environment = quiet_environment(plan)
    if ask:
        environment = replace(environment, approver=TerminalApprover(secrets=plan.secrets))
    values = None if args is None else _read_arguments(args)
    used = anyio.run(direct_call, plan, tool, arguments or [], environment, values)
    if output_format is Report.JSON:
        print_json(plan.secrets.mask_json(_row(used)))
    elif used.kind == "ok":
        content = plan.secrets.mask(used.content)
        if content != NO_OUTPUT:
            out = sys.stdout.buffer
            text = content if content.endswith("\n") else f"{content}\n"
            out.write(safe_utf8(manner_for(out).clean(text)).encode())
    else:
        say(f"error: {used.tool}: {plan.secrets.mask(used.content.removeprefix('[aish] '))}")
    if used.kind == "denied" and used.rule != THE_USER:
        hints = [f"`aish policy explain {file} --tool {tool}` says why"]
        if used.rule == NOBODY:
            by_name = "" if is_command_tool(tool_name(tool)) else f"`--allow {tool}` approves it"
            hints += filter(None, (used.hint, by_name))
        say(f"\nhint: {plan.secrets.mask('; '.join(hints))}")
    _, code = MEANING[used.kind]
    return int(code)


def _read_arguments(source: str) -> JsonObject:
    text = read_stdin() if source == "-" else source
    try:
        if source.startswith("@"):
            text = read_text(Path(source[1:]), INPUT_LIMIT)
        values = parse_json(text)
    except UnreadableError as error:
        raise UsageError(f"`{source[1:]}`: {error.problem.message}", where="--args") from error
    except ValueError as error:
        hint = "`@FILE` reads a file, `-` stdin"
        raise UsageError(f"not JSON: {error}", where="--args", hint=hint) from error
    if not isinstance(values, dict):
        raise UsageError("not a JSON object", where="--args", hint="""for example '{"a": 1}'""")
    return values


def _row(used: UsedCall) -> JsonObject:
    return {
        "tool": used.tool,
        "arguments": used.arguments,
        "verdict": used.verdict,
        "rule": used.rule,
        "kind": used.kind,
        "content": used.content,
        "structured": used.structured,
        "seconds": used.seconds,
    }
