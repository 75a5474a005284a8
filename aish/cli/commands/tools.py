"""`aish tools FILE`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from aish.cli.boundary import report
from aish.cli.options import (
    OWN_FILE,
    Option,
    ProjectFileArgument,
    Report,
    ReportOption,
    RuleOptions,
    SetOption,
)
from aish.cli.pipeline_options import load, look_options
from aish.cli.printer import print_json, print_text
from aish.cli.tool_preview import look_at_tools, report_shadows, tools_plan
from aish.core.errors import ExitCode
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line, suspicious
from aish.core.tools import Tool
from aish.engine.plan.lock import pin_now
from aish.engine.plan.plan import Plan
from aish.engine.preview.tool_listing import ToolListing, ToolView
from aish.engine.resources.resources import require_servers
from aish.system.secrets.secrets import Secrets

_WIDTH = 79


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    as_json: Annotated[
        bool, Option("--json", "Print the tools and their schemas as JSON.")
    ] = False,
    audit: Annotated[
        bool, Option("--audit", "Report signs of poisoning in the texts of servers.")
    ] = False,
    older: Annotated[
        bool, Option("--older", "List the older names that tools of packs have.")
    ] = False,
    output_format: ReportOption = Report.TEXT,
    overrides: SetOption = None,
    rules: RuleOptions,
) -> int:
    """List the tools of a pipeline, and what its rules say of each.

    Example: aish tools pipelines/mcp.yaml --audit
    """
    plan = tools_plan(load(file, overrides, lock=rules.lock), look_options(rules))
    view = look_at_tools(plan)
    odd = int(ExitCode.OK)
    report_shadows(plan.pipeline)
    as_json = as_json or output_format is Report.JSON
    if older:
        _older(view, as_json=as_json)
    elif as_json:
        print_json(plan.secrets.mask_json(_rows(view)))
    elif audit:
        odd = _audit(view.tools, plan)
    else:
        if view.tools:
            _rows_of(view, plan.secrets)
        elif not view.kept_out:
            print_text("no tools")
        for reason in view.kept_out:
            print_text(for_line(plan.secrets.mask(f"not offered: {reason}")))
    for error in view.locked:
        report(error)
        return int(error.exit_code)
    require_servers(plan, view.servers)
    return odd


def _rows(view: ToolListing) -> list[JsonObject]:
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
        for row in view.tools
    ]


def _older(view: ToolListing, *, as_json: bool) -> None:
    """The older names of the tools of packs."""
    from aish.packs.catalogue import older_names

    builtin = {row.tool.name for row in view.tools if row.tool.builtin}
    rows = [
        (f"{name.server}__{older}", str(name), change)
        for name in sorted(builtin, key=str)
        for older, change in older_names().items()
        if change.tool == name.name
    ]
    if as_json:
        print_json(
            [
                {"older": older, "tool": own, "rename": change.rename, "set": change.set}
                for older, own, change in rows
            ]
        )
        return
    width = max((len(older) for older, _, _ in rows), default=0)
    for older, own, change in rows:
        renamed = [f"`{old}` is `{new}`" for old, new in change.rename.items()]
        renamed += [f"sets `{key}` to `{value}`" for key, value in change.set.items()]
        print_text(f"{older:{width}}  {own}{'  ' + ', '.join(renamed) if renamed else ''}")
    if not rows:
        print_text("no older names")


def _rows_of(view: ToolListing, secrets: Secrets) -> None:
    width = min(44, max(len(str(row.tool.name)) for row in view.tools))
    marks = [f"{row.verdict}*" if row.conditional else row.verdict for row in view.tools]
    room = max(len("auto*"), *map(len, marks))
    for row, mark in zip(view.tools, marks, strict=True):
        description = secrets.mask(row.tool.description)
        first = for_line(description.strip().partition("\n")[0])
        line = f"{for_line(str(row.tool.name)):{width}}  {mark:{room}}  {shorten(first, _WIDTH)}"
        print_text(line.rstrip())
    if any(row.conditional for row in view.tools):
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
            case Mapping() as values:
                yield from values
                waiting.extend(values.values())
            case Sequence() as values:
                waiting.extend(values)
            case _:
                pass


def _audit(tools: Sequence[ToolView], plan: Plan) -> int:
    signs_by_row = [(row, _signs(row)) for row in tools if _signs(row)]
    odd = [(row, signs) for row, signs in signs_by_row if not _is_accepted(row.tool, plan)]
    for row, signs in odd:
        print_text(f"{for_line(str(row.tool.name))}: {', '.join(signs)}")
        print_text(f"    {for_line(plan.secrets.mask(row.tool.description))}")
    accepted = len(signs_by_row) - len(odd)
    known = f", {accepted} accepted in the lock file" if accepted else ""
    print_text(f"{len(tools)} tools checked, {len(odd)} suspicious{known}")
    return int(ExitCode.FAILED if odd else ExitCode.OK)


def _is_accepted(tool: Tool, plan: Plan) -> bool:
    """Return true if a person has accepted exactly this definition."""
    server = None if plan.lock is None else plan.lock.servers.get(tool.name.server)
    pin = None if server is None else server.tools.get(tool.name.name)
    if pin is None or not pin.accepted:
        return False
    return pin_now(tool, plan.secrets).sha256 == pin.sha256
