"""Lists the tools of a pipeline and the rules' verdict on each, without running it."""

import os
from typing import Literal

from aish.core.errors import AishError, LockDiffersError
from aish.core.events import ServerInfo
from aish.core.frozen import frozen
from aish.core.protocols import Emit
from aish.core.rules import RuleEntry
from aish.core.tools import Tool
from aish.engine.environment import Opening, RunEnvironment, mask_opening
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import lock_errors, open_toolbox
from aish.engine.resources.toolbox import rules_without_tool
from aish.engine.run_folder import RunFolder
from aish.policy.decide import decide
from aish.policy.rules import Policy, rules_without_tools
from aish.system.clock import SystemClock
from aish.terminal.unattended import Unattended

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
class ToolListing:
    """The tools that the servers of a pipeline offer now, and the rules that match none of them.

    `locked` is the verdict of an enforced lock; `kept_out` are the tools that it excludes, and how
    they differ.
    """

    tools: tuple[ToolView, ...]
    servers: tuple[ServerInfo, ...]
    unmatched: tuple[RuleEntry, ...]
    locked: tuple[AishError, ...] = ()
    kept_out: tuple[str, ...] = ()


def bare_environment(plan: Plan, emit: Emit, opening: Opening | None = None) -> RunEnvironment:
    """Keeps nothing and asks nobody: for commands that only look at servers."""
    mask = plan.secrets.mask
    return RunEnvironment(
        emit=emit,
        approver=Unattended(),
        clock=SystemClock(),
        folder=RunFolder(id="look", path=None, mask=mask),
        environ=dict(os.environ),
        opening=mask_opening(opening, mask),
    )


async def look(plan: Plan, environment: RunEnvironment) -> ToolListing:
    async with open_toolbox(plan, environment) as box:
        listed = box.tools.listed()
        return ToolListing(
            tools=tuple(view(plan.policy, tool) for tool in listed),
            servers=box.servers,
            unmatched=rules_without_tool(plan.policy, box.tools),
            locked=lock_errors(box.tools),
            kept_out=() if box.tools.watch is None else box.tools.watch.exclusions(),
        )


def look_at_lock(plan: Plan, emit: Emit) -> ToolListing | None:
    """The tools as locked, without asking a server; `None` if nothing is locked."""
    if plan.lock is None:
        return None
    from aish.engine.plan.lock import known_servers, locked_tools
    from aish.engine.resources.lock_watch import start_watch

    locked: tuple[AishError, ...] = ()
    try:
        start_watch(plan, plan.lock, emit)
    except LockDiffersError as error:
        locked = (error,)

    known = tuple(locked_tools(plan.pipeline, plan.lock).values())
    complete = len(known_servers(plan.pipeline, plan.lock)) == len(plan.servers)
    return ToolListing(
        tools=tuple(view(plan.policy, tool) for tool in known),
        servers=(),
        unmatched=rules_without_tools(plan.policy, known) if complete else (),
        locked=locked,
    )


def view(policy: Policy, tool: Tool) -> ToolView:
    ruling = decide(policy, tool, {})
    depends = any(rule.covers(tool.name) and not rule.unconditional for rule in policy.deciders())
    return ToolView(tool, ruling.verdict, ruling.rule, conditional=depends)
