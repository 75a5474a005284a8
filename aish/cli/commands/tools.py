"""`aish tools FILE`."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from aish.cli.loading import load, look_options
from aish.cli.looking import looked_at, tools_plan
from aish.cli.options import (
    AllowOption,
    BroadRootOption,
    DenyOption,
    FileArgument,
    SetOption,
    VerboseOption,
)
from aish.cli.printing import print_json
from aish.errors import ExitCode
from aish.run.looking import Look, ToolView
from aish.run.resources import missing_server
from aish.system.secrets import Secrets
from aish.text import for_line, suspicious
from aish.vocab.json import JsonObject

_WIDTH = 80


def command(
    file: FileArgument,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="With schemas, as JSON.")] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Report signs of poisoning in what servers say.")
    ] = False,
    overrides: SetOption = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    broad_root: BroadRootOption = False,
    verbose: VerboseOption = False,
) -> int:
    """List the tools a pipeline sees, and what its rules say of each.

    Example: aish tools pipelines/mcp.yaml --audit
    """
    del verbose
    plan = tools_plan(load(file, overrides), look_options(allow, deny, allow_broad_root=broad_root))
    found = looked_at(plan)
    if as_json:
        print_json(plan.secrets.mask_json(_rows(found)))
    elif audit:
        return _audit(found.tools, plan.secrets)
    else:
        _table(found, plan.secrets)
    missing = missing_server(plan, found.servers)
    return int(ExitCode.OK if missing is None else ExitCode.UNAVAILABLE)


def _rows(found: Look) -> list[JsonObject]:
    return [
        {
            "tool": str(row.tool.name),
            "wire": row.tool.wire,
            "verdict": row.verdict,
            "rule": row.rule,
            "depends_on_arguments": row.conditional,
            "description": row.tool.description,
            "input_schema": row.tool.input_schema,
            "output_schema": row.tool.output_schema,
            "suspicious": list(_signs(row)),
        }
        for row in found.tools
    ]


def _table(found: Look, secrets: Secrets) -> None:
    if not found.tools:
        typer.echo("no tools")
        return
    width = min(44, max(len(str(row.tool.name)) for row in found.tools))
    for row in found.tools:
        mark = f"{row.verdict}*" if row.conditional else row.verdict
        told = secrets.mask(row.tool.description)
        first = for_line(told.strip().partition("\n")[0])
        short = first if len(first) <= _WIDTH else first[: _WIDTH - 1] + "…"
        typer.echo(f"{for_line(str(row.tool.name)):{width}}  {mark:5}  {short}".rstrip())
    if any(row.conditional for row in found.tools):
        typer.echo("\n* depends on the arguments: `aish policy explain` says how")


def _signs(row: ToolView) -> tuple[str, ...]:
    schema = json.dumps(row.tool.input_schema, ensure_ascii=False)
    return suspicious(f"{row.tool.description}\n{schema}")


def _audit(tools: Sequence[ToolView], secrets: Secrets) -> int:
    odd = [(row, _signs(row)) for row in tools if _signs(row)]
    for row, signs in odd:
        typer.echo(f"{for_line(str(row.tool.name))}: {', '.join(signs)}")
        typer.echo(f"    {for_line(secrets.mask(row.tool.description))}")
    typer.echo(f"{len(tools)} tools looked at, {len(odd)} suspicious")
    return int(ExitCode.FAILED if odd else ExitCode.OK)
