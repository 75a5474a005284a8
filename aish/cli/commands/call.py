"""`aish call FILE ALIAS__TOOL [k=v…]`."""

import json
from dataclasses import replace
from typing import Annotated

import anyio
import typer

from aish.cli.boundary import say
from aish.cli.loading import load, look_options
from aish.cli.looking import quiet_surroundings, tools_plan
from aish.cli.options import (
    AllowOption,
    AskOption,
    DenyOption,
    FileArgument,
    Report,
    ReportOption,
    SetOption,
    VerboseOption,
)
from aish.errors import ExitCode
from aish.loop.equipment import UsedCall
from aish.run.direct_call import direct_call
from aish.terminal.approver import TerminalApprover
from aish.text import for_terminal

_EXIT = {
    "ok": ExitCode.OK,
    "denied": ExitCode.DENIED,
    "transport_error": ExitCode.UNAVAILABLE,
}


def command(
    file: FileArgument,
    tool: Annotated[str, typer.Argument(metavar="ALIAS__TOOL", help="The tool's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its arguments.")
    ] = None,
    *,
    overrides: SetOption = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    ask: AskOption = False,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Call one tool directly, under the file's rules; its result goes to stdout.

    Example: aish call pipelines/quickstart.yaml repo__file_read path=README.md
    """
    del verbose
    plan = tools_plan(load(file, overrides), look_options(allow, deny))
    around = quiet_surroundings(plan)
    if ask:
        around = replace(around, approver=TerminalApprover())
    used = anyio.run(direct_call, plan, tool, arguments or [], around)
    if format_ is Report.JSON:
        typer.echo(plan.secrets.mask(json.dumps(_row(used), ensure_ascii=False, indent=2)))
    elif used.kind == "ok":
        typer.echo(for_terminal(plan.secrets.mask(used.content)))
    else:
        say(f"error: {used.tool}: {plan.secrets.mask(used.content)}")
    if used.kind == "denied":
        say(
            f"\nhint: `aish policy explain {file} --tool {tool}` says why; `--allow {tool}` lets it"
        )
    return int(_EXIT.get(used.kind, ExitCode.FAILED))


def _row(used: UsedCall) -> dict[str, object]:
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
