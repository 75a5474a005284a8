"""One tool call from the command line, under the file's policy and through its gate (P10)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from sys import maxsize
from typing import cast

from aish.agent.dispatch import call_tool
from aish.agent.runtime import UsedCall
from aish.config.inputs import as_typed
from aish.core.errors import UsageError, did_you_mean
from aish.core.events import Place
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import Tool
from aish.engine.environment import RunEnvironment
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import Toolbox, open_toolbox, require_lock, require_servers
from aish.policy.explain import tool_name


async def direct_call(
    plan: Plan, name: str, assignments: Sequence[str], environment: RunEnvironment
) -> UsedCall:
    """Call the tool `alias__tool` with arguments `key=value`, typed by its input schema.

    Raises:
        UsageError: no such tool, or the arguments do not fit its schema.
        UnavailableError: a required server is missing.
        LockDiffersError: something is not as it was locked.
    """
    async with open_toolbox(plan, environment) as box:
        require_servers(plan, box.servers)
        require_lock(box.tools)
        tool = _known(name, box)
        arguments = _arguments(tool, assignments)
        problems = await box.runtime.check_arguments(tool.input_schema, arguments)
        if problems:
            raise UsageError(
                "; ".join(str(problem) for problem in problems[:3]),
                where=name,
                hint="`aish tools FILE --json` shows the schema",
            )
        # A person asked for the result, so nothing is cut out of it.
        whole = replace(box.runtime, limits=replace(box.runtime.limits, result_limit=maxsize))
        return await call_tool(tool, arguments, whole, Place(step="call", call="call-1"))


def _known(name: str, box: Toolbox) -> Tool:
    tool = box.tools.by_name(tool_name(name))
    if tool is None:
        box.tools.require(tool_name(name))
        near = did_you_mean(name, [str(tool.name) for tool in box.tools.listed()])
        hint = near or "`aish tools FILE` lists what there is"
        raise UsageError(f"no server offers the tool `{name}`", hint=hint)
    return tool


def _arguments(tool: Tool, assignments: Sequence[str]) -> JsonObject:
    properties = tool.input_schema.get("properties")
    schemas = properties if isinstance(properties, Mapping) else {}
    arguments: dict[str, JsonValue] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"`{assignment}` is not KEY=VALUE")
        schema = schemas.get(key, {})
        arguments[key] = as_typed(text, cast("JsonObject", schema))
    return arguments
