"""Shared by commands that only inspect: an environment without output and questions."""

import sys
from collections.abc import Callable, Sequence

import anyio

from aish.cli.boundary import say
from aish.cli.printer import register_masks
from aish.config.model import Pipeline
from aish.core.events import Event, Notice
from aish.core.protocols import Emit
from aish.engine.environment import Opening, RunEnvironment
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.plan.validation.validate import shadow_check
from aish.engine.preview.tool_listing import ToolListing, bare_environment, look
from aish.engine.resources.resources import missing_server
from aish.system.secrets.secrets import Secrets


def quiet_environment(plan: Plan) -> RunEnvironment:
    """No folder, nobody to ask, notices to stderr."""
    register_masks(plan.secrets)
    opening = beginnings() if sys.stderr.isatty() else None
    return bare_environment(plan, notices(plan.secrets), opening)


def beginnings(mask: Callable[[str], str] = str) -> Opening:
    """The `opening` of an environment that says on stderr which servers are started, each once."""
    lines: set[str] = set()

    def say_once(doing: Sequence[str]) -> None:
        for line in doing:
            if line not in lines:
                lines.add(line)
                say(mask(line))

    return say_once


def beginnings_at_terminal(mask: Callable[[str], str]) -> Opening | None:
    """The same of a command without `--quiet`: scripts and clients get warnings and errors only."""
    return beginnings(mask) if sys.stderr.isatty() else None


def look_at_tools(plan: Plan) -> ToolListing:
    """The tools of a plan's servers; failures are printed, but for that of `require_servers`."""
    view = anyio.run(look, plan, quiet_environment(plan))
    for server in view.servers:
        if server.state == "failed" and server is not missing_server(plan, view.servers):
            reason = plan.secrets.mask(server.error or "")
            say(f"warning: mcp server `{server.alias}` is missing: {reason}")
    return view


def report_shadows(pipeline: Pipeline) -> None:
    """Say that the built-in pack is used where a distribution offers one of the same name."""
    for problem in shadow_check(pipeline):
        say(f"warning: {problem}")


def tools_plan(pipeline: Pipeline, options: RunOptions) -> Plan:
    """A plan to inspect tools: no model is needed, and so no key of one."""
    return make_plan(pipeline, options, with_models=False)


def call_plan(pipeline: Pipeline, options: RunOptions, tool: str) -> Plan:
    """A plan to call one tool: with the models that its server may ask, and no others."""
    entry = pipeline.servers.get(tool.partition("__")[0])
    return make_plan(pipeline, options, with_models=False, asking=() if entry is None else (entry,))


def notices(secrets: Secrets) -> Emit:
    def emit(event: Event) -> None:
        if isinstance(event, Notice):
            say(secrets.mask(f"{event.level}: {event.text}"))

    return emit
