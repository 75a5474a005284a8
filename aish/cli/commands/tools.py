"""`aish tools FILE`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from aish.cli.boundary import report
from aish.cli.options import (
    OWN_FILE,
    AllowOption,
    BroadRootOption,
    DenyOption,
    LockOption,
    LockUse,
    Option,
    ProjectFileArgument,
    Report,
    ReportOption,
    SetOption,
    VerboseOption,
)
from aish.cli.pipeline_options import load, look_options
from aish.cli.printer import print_json, print_text
from aish.cli.tool_preview import looked_at, tools_plan
from aish.core.errors import ExitCode
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line, suspicious
from aish.engine.preview.tool_listing import Look, ToolView
from aish.engine.resources.resources import require_servers
from aish.system.secrets.secrets import Secrets

_WIDTH = 79


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    as_json: Annotated[
        bool, Option("--json", help="Print the tools and their schemas as JSON.")
    ] = False,
    audit: Annotated[
        bool, Option("--audit", help="Report signs of poisoning in the texts of servers.")
    ] = False,
    older: Annotated[
        bool, Option("--older", help="List the older names that tools of packs have.")
    ] = False,
    format_: ReportOption = Report.TEXT,
    overrides: SetOption = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    broad_root: BroadRootOption = False,
    lock: LockOption = LockUse.ENFORCE,
    verbose: VerboseOption = False,
) -> int:
    """List the tools a pipeline sees, and what its rules say of each.

    Example: aish tools pipelines/mcp.yaml --audit
    """
    del verbose
    options = look_options(allow, deny, allow_broad_root=broad_root, lock=lock)
    plan = tools_plan(load(file, overrides, lock=lock), options)
    found = looked_at(plan)
    odd = int(ExitCode.OK)
    as_json = as_json or format_ is Report.JSON
    if older:
        _older(found, as_json=as_json)
    elif as_json:
        print_json(plan.secrets.mask_json(_rows(found)))
    elif audit:
        odd = _audit(found.tools, plan.secrets)
    else:
        _table(found, plan.secrets)
    for error in found.locked:
        report(error)
        return int(error.exit_code)
    require_servers(plan, found.servers)
    return odd


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
            # Those of packs are words of ours.
            "suspicious": [] if row.tool.builtin else list(_signs(row)),
        }
        for row in found.tools
    ]


def _older(found: Look, *, as_json: bool) -> None:
    """The older names of the tools of packs (K10)."""
    from aish.packs.catalogue import older_names

    builtin = {row.tool.name for row in found.tools if row.tool.builtin}
    rows = [
        (f"{name.server}__{older}", str(name), one)
        for name in sorted(builtin, key=str)
        for older, one in older_names().items()
        if one.tool == name.name
    ]
    if as_json:
        print_json(
            [
                {"older": older, "tool": own, "rename": one.rename, "set": one.set}
                for older, own, one in rows
            ]
        )
        return
    width = max((len(older) for older, _, _ in rows), default=0)
    for older, own, one in rows:
        renamed = [f"`{old}` is `{new}`" for old, new in one.rename.items()]
        renamed += [f"sets `{key}` to `{value}`" for key, value in one.set.items()]
        print_text(f"{older:{width}}  {own}{'  ' + ', '.join(renamed) if renamed else ''}")
    if not rows:
        print_text("no older names")


def _table(found: Look, secrets: Secrets) -> None:
    if found.tools:
        _rows_of(found, secrets)
    elif not found.kept_out:
        print_text("no tools")
    for said in found.kept_out:
        print_text(for_line(secrets.mask(f"not offered: {said}")))


def _rows_of(found: Look, secrets: Secrets) -> None:
    width = min(44, max(len(str(row.tool.name)) for row in found.tools))
    marks = [f"{row.verdict}*" if row.conditional else row.verdict for row in found.tools]
    room = max(len("auto*"), *map(len, marks))
    for row, mark in zip(found.tools, marks, strict=True):
        told = secrets.mask(row.tool.description)
        first = for_line(told.strip().partition("\n")[0])
        line = f"{for_line(str(row.tool.name)):{width}}  {mark:{room}}  {shorten(first, _WIDTH)}"
        print_text(line.rstrip())
    if any(row.conditional for row in found.tools):
        print_text("\n* depends on the arguments: `aish policy explain` says how")


def _signs(row: ToolView) -> tuple[str, ...]:
    """Unusual characters in everything that a server says about a tool and a model may be shown."""
    tool = row.tool
    schemas: list[JsonValue] = [tool.input_schema, tool.output_schema]
    return suspicious("\n".join((str(tool.name), tool.description, *_words(schemas))))


def _words(value: JsonValue) -> Iterator[str]:
    """Every text in a JSON value, keys too, unescaped: escaped characters would not be found."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case Mapping() as found:
                yield from found
                waiting.extend(found.values())
            case Sequence() as found:
                waiting.extend(found)
            case _:
                pass


def _audit(tools: Sequence[ToolView], secrets: Secrets) -> int:
    odd = [(row, _signs(row)) for row in tools if _signs(row)]
    for row, signs in odd:
        print_text(f"{for_line(str(row.tool.name))}: {', '.join(signs)}")
        print_text(f"    {for_line(secrets.mask(row.tool.description))}")
    print_text(f"{len(tools)} tools checked, {len(odd)} suspicious")
    return int(ExitCode.FAILED if odd else ExitCode.OK)
