"""Creates a lock of the current state, and compares it with the stored one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aish.core.errors import LockDiffersError, UsageError, did_you_mean
from aish.core.events import ServerInfo
from aish.core.frozen import frozen
from aish.engine.environment import RunEnvironment
from aish.engine.plan.lock import pins_of_file, with_tools
from aish.engine.plan.plan import Plan
from aish.engine.resources.packages import PackageResult, fetch_packages
from aish.engine.resources.resources import open_toolbox, require_servers
from aish.policy.lock import (
    Difference,
    Lock,
    ServerPin,
    compare,
    package_difference,
    served_difference,
)


@frozen
class Taken:
    """The lock as it would be written now.

    `unasked` are optional servers that did not start: their pins are copied from the older lock, if
    present, and are not part of `differences`. `unpinned` are packages that could not be fetched.
    """

    lock: Lock
    unasked: tuple[ServerInfo, ...]
    differences: tuple[Difference, ...]
    unpinned: tuple[PackageResult, ...] = ()


async def take_lock(
    plan: Plan,
    older: Lock | None,
    environment: RunEnvironment,
    accept: Sequence[str] = (),
    *,
    renew: bool = False,
    served: Mapping[str, tuple[str, ...]] | None = None,
) -> Taken:
    """Fetch packages, connect to the servers, list their tools, disconnect.

    With `renew` what a file names without an exact version is resolved anew, though it is pinned.
    `served` are the names to pin of what has answered, by alias; others stay pinned as they are.

    Raises:
        LockDiffersError: a package is not what is pinned, or was changed in the store.
        UnavailableError: a required server is missing.
        UsageError: no server has a tool that is accepted.
    """
    before = older or Lock({}, {}, {})
    opening = environment.opening
    results = await fetch_packages(
        plan.pipeline,
        before.packages,
        environment.environ,
        renew=renew,
        on_fetch=lambda line: None if opening is None else opening([line]),
    )
    for result in results:
        if isinstance(result.error, LockDiffersError):
            raise result.error
    packages = {one.alias: one.entry.pin for one in results if one.entry is not None}
    plan = replace(plan, pinned=packages)
    async with open_toolbox(plan, environment) as box:
        require_servers(plan, box.servers)
        unasked = tuple(server for server in box.servers if server.state == "failed")
        tools = box.tools.listed()
        instructions = box.tools.instructions(tools)
    now = with_tools(pins_of_file(plan.pipeline, plan.secrets), tools, plan.secrets, instructions)
    missing = {server.alias for server in unasked}
    for alias, pin in before.packages.items():
        known = packages.get(alias)
        if known is None and alias in missing:
            packages[alias] = pin
        elif known is not None and package_difference(alias, pin, known) is None:
            packages[alias] = pin  # of another platform
    pins = _served_pins(now, before, served or {})
    now = replace(now, servers=_pins(now.servers, before, missing), packages=packages, served=pins)
    unpinned = tuple(result for result in results if result.entry is None)
    return Taken(_with_accepted(now, before, accept), unasked, compare(before, now), unpinned)


def _served_pins(
    now: Lock, before: Lock, served: Mapping[str, tuple[str, ...]]
) -> Mapping[str, tuple[str, ...]]:
    """The names under which models may answer; those of a model that was exchanged are dropped."""
    pins = {}
    for alias, id in now.models.items():
        names, pinned = served.get(alias), before.served.get(alias)
        if names is not None and (pinned is None or served_difference(alias, pinned, names)):
            pins[alias] = names
        elif pinned is not None and before.models.get(alias) == id:
            pins[alias] = pinned
    return pins


def _with_accepted(lock: Lock, older: Lock, names: Sequence[str]) -> Lock:
    """The lock with these tools accepted, and those that were before and have not changed."""
    pins = {f"{alias}__{name}" for alias, one in lock.servers.items() for name in one.tools}
    for name in names:
        if name not in pins:
            hint = did_you_mean(name, pins)
            raise UsageError(f"no server has the tool `{name}`", where="--accept", hint=hint)
    servers: dict[str, ServerPin] = {}
    for alias, server in lock.servers.items():
        before = older.servers[alias].tools if alias in older.servers else {}
        tools = {}
        for name, pin in server.tools.items():
            accepted = replace(pin, accepted=True)
            is_so = f"{alias}__{name}" in names or before.get(name) == accepted
            tools[name] = accepted if is_so else pin
        servers[alias] = replace(server, tools=tools)
    return replace(lock, servers=servers)


def _pins(
    servers: Mapping[str, ServerPin], older: Lock, missing: set[str]
) -> Mapping[str, ServerPin]:
    """The servers, with older pins for missing ones; new missing ones are omitted."""
    pins: dict[str, ServerPin] = {}
    for alias, server in servers.items():
        if alias not in missing:
            pins[alias] = server
        elif alias in older.servers and older.servers[alias].is_at(server):
            pins[alias] = older.servers[alias]
    return pins
