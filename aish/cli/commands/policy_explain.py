"""`aish policy explain FILE`."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated

from aish.cli.options import (
    AllowOption,
    DenyOption,
    FileArgument,
    Option,
    Report,
    ReportOption,
    SetOption,
)
from aish.cli.printer import print_json, print_text
from aish.config.documents import parse_json
from aish.core.errors import UsageError
from aish.core.json import JsonObject
from aish.core.tools import Tool
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.lock import find_locked_tool, lock_of
from aish.engine.plan.plan import load_checked
from aish.engine.plan.validation.older_names import own_call, policy_of
from aish.engine.plan.validation.tools import argument_problems
from aish.engine.plan.validation.validate import find_stricter
from aish.policy.decide import Explanation, explain, tool_name


def command(
    file: FileArgument,
    *,
    tool: Annotated[str, Option("--tool ALIAS__TOOL", "The tool's name.", completes="tool_names")],
    arguments: Annotated[str, Option("--args JSON", "The call's arguments.")] = "{}",
    read: Annotated[
        list[str] | None,
        Option("--read SOURCE", "A source of text that the call follows (repeatable)."),
    ] = None,
    overrides: SetOption = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Say which rule decides a tool call, and why the others do not.

    No server is contacted.

    Example: aish policy explain aish.yaml --tool repo__file_read --args '{"path": "README.md"}'
    """
    pipeline = load_checked(file, tuple(overrides or ()))
    policy = policy_of(pipeline, allow=tuple(allow or ()), deny=tuple(deny or ()))
    try:
        name, values = own_call(tool_name(tool), _arguments(arguments), pipeline.servers)
    except ValueError as error:
        raise UsageError(str(error), where="--args") from error
    lock = lock_of(pipeline)
    locked = None if lock is None else find_locked_tool(name, pipeline, lock)
    known, sources = locked or presumed_tool(name, pipeline), tuple(read or ())
    try:
        stricter = find_stricter(pipeline, lock, sources) if sources else None
    except UsageError as error:
        raise UsageError(error.message, where="--read", hint=error.hint) from error
    explanation = explain(policy, name, values, known, sources, stricter)
    misfits = argument_problems(locked, values)
    if output_format is Report.JSON:
        print_json({**_row(explanation), "locked": locked is not None, "misfits": misfits})
    else:
        lines = _lock_lines(locked, misfits) if locked else ()
        if lock is not None and locked is None and name.server in pipeline.servers:
            lines = ["", f"`{name}` is not in the lock file: it is not offered"]
        print_text("\n".join((*_lines(explanation), *lines)))
    return 0


def _lock_lines(tool: Tool, misfits: Sequence[str]) -> list[str]:
    problems = [f"the arguments do not fit the locked schema: {misfit}" for misfit in misfits]
    return ["", f"what is known of `{tool.name}` is from the lock file", *problems]


def _arguments(text: str) -> JsonObject:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where="--args") from error
    if not isinstance(value, Mapping):
        raise UsageError("not a JSON object", where="--args", hint='for example \'{"path": "x"}\'')
    return value


def _lines(found: Explanation) -> list[str]:
    arguments = json.dumps(found.arguments, ensure_ascii=False)
    lines = [f"{found.tool} {arguments}", f"  {found.ruling.verdict}: {found.ruling.reason}"]
    if found.ruling.hint is not None:
        lines.append(f"  hint: {found.ruling.hint}")
    if found.ruling.verdict == "ask":
        lines.append("  in an unattended run, the call is denied")
    if found.ruling.verdict == "staged":
        lines.append("  the call is staged for `aish apply` and not executed")
    if found.looked_at:
        lines += ["", "rules, strictest first:"]
    lines += [f"  {row.rule.list:13} {row.rule.text}: {row.why}" for row in found.looked_at]
    if not found.known:
        lines += ["", "the server was not contacted; its annotations may make this stricter"]
    return lines


def _row(explanation: Explanation) -> JsonObject:
    return {
        "tool": str(explanation.tool),
        "arguments": explanation.arguments,
        "verdict": explanation.ruling.verdict,
        "rule": explanation.ruling.rule,
        "reason": explanation.ruling.reason,
        **({} if explanation.ruling.hint is None else {"hint": explanation.ruling.hint}),
        "looked_at": [
            {"list": row.rule.list, "rule": row.rule.text, "why": row.why}
            for row in explanation.looked_at
        ],
    }
