"""Creates a lock of the current state, and compares it with the stored one (P8)."""

from collections.abc import Mapping
from dataclasses import replace

from aish.core.events import ServerInfo
from aish.core.frozen import frozen
from aish.engine.environment import RunEnvironment
from aish.engine.plan.lock import declared, with_tools
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import open_toolbox, require_servers
from aish.policy.lock import Difference, Lock, ServerPin, compare


@frozen
class Taken:
    """The lock as it would be written now.

    `unasked` are optional servers that did not start: their pins are copied from the older lock, if
    present, and are not part of `differences`.
    """

    lock: Lock
    unasked: tuple[ServerInfo, ...]
    differences: tuple[Difference, ...]


async def take_lock(plan: Plan, older: Lock | None, environment: RunEnvironment) -> Taken:
    """Connect to the servers, list their tools, disconnect.

    Raises:
        UnavailableError: a required server is missing.
    """
    async with open_toolbox(plan, environment) as box:
        require_servers(plan, box.servers)
        unasked = tuple(server for server in box.servers if server.state == "failed")
        tools = box.tools.listed()
    now = with_tools(declared(plan.pipeline, plan.secrets), tools, plan.secrets)
    before = older or Lock({}, {}, {})
    now = replace(now, servers=_kept(now.servers, before, {server.alias for server in unasked}))
    return Taken(now, unasked, compare(before, now))


def _kept(
    servers: Mapping[str, ServerPin], older: Lock, missing: set[str]
) -> Mapping[str, ServerPin]:
    """The servers, with older pins for missing ones; new missing ones are omitted."""
    kept: dict[str, ServerPin] = {}
    for alias, server in servers.items():
        if alias not in missing:
            kept[alias] = server
        elif alias in older.servers and older.servers[alias].is_at(server):
            kept[alias] = older.servers[alias]
    return kept
