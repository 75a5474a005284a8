"""Lists the tools of a pipeline and the rules' verdict on each, without running it."""

from typing import Literal

from aish.core.errors import AishError, LockDiffersError
from aish.core.events import ServerInfo
from aish.core.frozen import frozen
from aish.core.protocols import Emit
from aish.core.rules import RuleEntry
from aish.core.tools import Tool
from aish.engine.environment import RunEnvironment
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import lock_errors, open_toolbox
from aish.engine.resources.toolbox import unmatched
from aish.policy.decide import decide
from aish.policy.rules import Policy, unmatched_rules

MANY_TOOLS = 128
"""More tools in one request are refused by many endpoints."""


@frozen
class ToolView:
    """A tool and the verdict on a call of it; `conditional` if that depends on arguments."""

    tool: Tool
    verdict: Literal["auto", "ask", "deny", "staged"]
    rule: str
    conditional: bool


@frozen
class Look:
    """What the servers of a pipeline currently offer, and which rules match none of it.

    `locked` is the verdict of an enforced lock; `kept_out` are the tools that it excludes, and how
    they differ.
    """

    tools: tuple[ToolView, ...]
    servers: tuple[ServerInfo, ...]
    unmatched: tuple[RuleEntry, ...]
    locked: tuple[AishError, ...] = ()
    kept_out: tuple[str, ...] = ()


async def look(plan: Plan, environment: RunEnvironment) -> Look:
    """Connect to the servers, list their tools, disconnect."""
    async with open_toolbox(plan, environment) as box:
        listed = box.tools.listed()
        return Look(
            tools=tuple(view(plan.policy, tool) for tool in listed),
            servers=box.servers,
            unmatched=unmatched(plan.policy, box.tools),
            locked=lock_errors(box.tools),
            kept_out=() if box.tools.watch is None else box.tools.watch.kept_out(),
        )


def look_at_lock(plan: Plan, emit: Emit) -> Look | None:
    """The tools as locked, without asking a server; `None` if nothing is locked."""
    if plan.lock is None:
        return None
    from aish.engine.plan.lock import known_servers, locked_tools
    from aish.engine.resources.lock_watch import begun_watch

    locked: tuple[AishError, ...] = ()
    try:
        begun_watch(plan, plan.lock, emit)
    except LockDiffersError as error:
        locked = (error,)

    known = tuple(locked_tools(plan.pipeline, plan.lock).values())
    complete = len(known_servers(plan.pipeline, plan.lock)) == len(plan.servers)
    return Look(
        tools=tuple(view(plan.policy, tool) for tool in known),
        servers=(),
        unmatched=unmatched_rules(plan.policy, known) if complete else (),
        locked=locked,
    )


def view(policy: Policy, tool: Tool) -> ToolView:
    """The verdict on a call of `tool` with unknown arguments."""
    ruling = decide(policy, tool, {})
    depends = any(rule.covers(tool.name) and not rule.unconditional for rule in policy.deciding())
    return ToolView(tool, ruling.verdict, ruling.rule, conditional=depends)
