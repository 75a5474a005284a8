"""The servers behind the hub: brought up, up again when they are lost, and exchanged (H4, H23)."""

import random
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import anyio
from anyio.abc import TaskGroup

from aish.core.errors import AishError, UnavailableError
from aish.core.events import NOWHERE, Notice, ServerInfo
from aish.core.frozen import frozen
from aish.core.protocols import Emit
from aish.engine.environment import RunEnvironment
from aish.engine.plan.credentials import ResolvedServer
from aish.engine.plan.plan import Plan, own_files
from aish.engine.resources.resources import require_servers
from aish.engine.resources.servers import (
    LiveServers,
    beginnings,
    open_live_servers,
    tool_name_limit,
)
from aish.mcp.client.dynamic_registry import Exchanged, ServerTask
from aish.mcp.client.registry import Registry
from aish.serve.hub import Hub
from aish.serve.offer.session_servers import SessionServers
from aish.system.process.reaper import Reaper

_FIRST_RETRY = 1.0
_SHORTEST_RETRY = 1.0
"""Seconds between two attempts, however many calls ask for one."""
_LONGEST_RETRY = 60.0
_LIVED = 60.0
"""Seconds after which a server that is lost is tried again as soon as at first."""


@frozen
class ServerChanges:
    """How the servers of a file differ from those of the file before."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


class Supervisor:
    """Brings servers up, and those that are lost up again (H4)."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._live: LiveServers | None = None
        self._environment: RunEnvironment | None = None
        self._tasks: TaskGroup | None = None
        self._retries: dict[str, _Retry] = {}
        self._delays: dict[str, float] = {}
        self._attempted: dict[str, float] = {}
        self._up_since: dict[str, float] = {}
        self._roots: dict[str, tuple[int, int] | None] = {}
        self.session_servers = SessionServers(lambda: self.live)

    @property
    def live(self) -> LiveServers:
        """The servers, of the plan that is in force."""
        assert self._live is not None, "the toolbox has opened it"
        return self._live

    @property
    def plan(self) -> Plan:
        """The plan whose servers these are."""
        return self.live.plan

    @asynccontextmanager
    async def servers(
        self, plan: Plan, environment: RunEnvironment, reaper: Reaper
    ) -> AsyncGenerator[Registry]:
        """Open the registry of a plan, still without servers."""
        self._environment = environment
        async with open_live_servers(plan, environment, reaper, None, self._on_settled) as opened:
            opened.dynamic_registry.restarts = False  # that is done here, in time
            opened.dynamic_registry.pass_on(frozenset(plan.pipeline.serve.forward))
            self._live = opened
            reaper.limit = plan.pipeline.serve.limits.children
            yield opened.dynamic_registry.registry

    def start(self) -> None:
        """Begin to connect to the servers of the plan.

        Raises:
            UsageError: a pack's root is not allowed.
        """
        live = self.live
        assert self._environment is not None, "the toolbox was opened in it"
        if self._environment.opening is not None:
            self._environment.opening([*beginnings(live.plan)])
        live.dynamic_registry.begin([live.connection(server) for server in live.plan.servers])
        self._roots = {server.entry.alias: _root_of(server) for server in live.plan.servers}

    async def begin(self, hub: Hub, tasks: TaskGroup) -> None:
        """Wait for all servers, offer what they have, and follow their changes.

        Raises:
            UnavailableError: a required one failed.
            UsageError: two tools have the same name.
        """
        dynamic = self.live.dynamic_registry
        await dynamic.settled()
        require_servers(self.plan, dynamic.registry.servers)
        hub.begin()
        self._tasks = tasks
        for server in dynamic.registry.servers:
            if server.state == "failed":
                self._retry(server.alias)
        await hub.watch()

    async def reconnect(self, alias: str) -> None:
        """Make the next attempt to connect to a lost server at once, and wait until it has ended.

        Without a second since the last attempt, it is made after that second.
        """
        retry = self._retries.get(alias)
        if retry is not None:
            retry.wanted.set()
            await retry.ended.wait()

    @asynccontextmanager
    async def prepared(self, plan: Plan) -> AsyncGenerator["PreparedServers"]:
        """Connect to what is new in a plan, without offering it; unchanged servers are shared.

        Raises:
            UnavailableError: a required one failed.
            UsageError: a pack's root is not allowed.
        """
        assert self._environment is not None, "the toolbox was opened in it"
        live = self.live.following(plan, self._environment)
        dynamic = live.dynamic_registry
        changes, new = self._differences(plan)
        connections = [live.connection(server) for server in new]
        dynamic.pass_on(frozenset(plan.pipeline.serve.forward))
        try:
            async with dynamic.prepared(connections) as stays:
                required = {one.entry.alias for one in new if one.entry.required}
                for alias, stay in stays.items():
                    failure = stay.server.failure
                    if failure is not None and alias in required:
                        raise UnavailableError(failure, where=f"mcp server `{alias}`")
                yield PreparedServers(live, stays, changes)
        finally:  # a server that is lost comes back by the plan that is in force
            dynamic.pass_on(frozenset(self.plan.pipeline.serve.forward))

    def exchange(self, prepared: "PreparedServers") -> Exchanged:
        """Offer the servers of another plan, at once; nobody is disconnected before `keep`.

        Raises:
            UsageError: two tools share a name; nothing has changed.
        """
        old, new = self.live, prepared.live
        order = [server.entry.alias for server in new.plan.servers]
        found = new.dynamic_registry.exchange(order, prepared.stays, tool_name_limit(new.plan))
        self._live = new
        opened = {
            one.entry.alias: one for one in new.plan.servers if one.entry.alias in prepared.stays
        }

        def revert() -> None:
            self._live = old
            found.revert()

        def keep() -> None:
            found.keep()
            self._roots |= {alias: _root_of(one) for alias, one in opened.items()}
            gone = (*prepared.changes.removed, *prepared.changes.changed)
            self.session_servers.drop(gone)
            for alias in gone:
                self._forget(alias)
            for stay in prepared.stays.values():
                self._on_settled(stay.server.info)

        return Exchanged(revert, keep)

    def _differences(self, plan: Plan) -> tuple[ServerChanges, Sequence[ResolvedServer]]:
        """How the servers differ, and those that have to be connected."""
        old = {server.entry.alias: server for server in self.plan.servers}
        new = {server.entry.alias: server for server in plan.servers}
        # What is forwarded is said to a server when it is connected to.
        is_same_client = set(plan.pipeline.serve.forward) == set(self.plan.pipeline.serve.forward)
        # A pack keeps its tools from the files that the hub is made of.
        is_same_place = (own_files(plan), plan.allow_broad_root) == (
            own_files(self.plan),
            self.plan.allow_broad_root,
        )

        def is_same(server: ResolvedServer) -> bool:
            before = old.get(server.entry.alias)
            if not server.entry.pack:
                return before == server and is_same_client
            is_there = _root_of(server) == self._roots.get(server.entry.alias)
            return before == server and is_same_place and is_there

        changed = [one for alias, one in new.items() if alias in old and not is_same(one)]
        added = [one for alias, one in new.items() if alias not in old]
        changes = ServerChanges(
            added=tuple(one.entry.alias for one in added),
            removed=tuple(alias for alias in old if alias not in new),
            changed=tuple(one.entry.alias for one in changed),
        )
        return changes, (*added, *changed)

    def _on_settled(self, server: ServerInfo) -> None:
        if server.state != "failed":
            self._up_since[server.alias] = anyio.current_time()
            return
        text = f"mcp server `{server.alias}` is missing: {server.error}"
        self._emit(Notice(NOWHERE, "warning", "server_missing", text))
        if self._tasks is not None:
            self._retry(server.alias)

    def _forget(self, alias: str) -> None:
        """Another server has this alias now, or none."""
        self._delays.pop(alias, None)
        self._up_since.pop(alias, None)
        retry = self._retries.pop(alias, None)
        if retry is not None:
            retry.scope.cancel()

    def _retry(self, alias: str) -> None:
        assert self._tasks is not None
        up_since = self._up_since.pop(alias, None)
        if up_since is not None and anyio.current_time() - up_since >= _LIVED:
            self._delays.pop(alias, None)
        self._retries[alias] = retry = _Retry()
        self._tasks.start_soon(self._connect_again, alias, retry)

    async def _connect_again(self, alias: str, retry: "_Retry") -> None:
        """Try until the server is up: after 1, 2, 4 … 60 seconds, each a little different.

        A call for the server does not wait for them.
        """
        with retry.until_ended():
            while True:
                delay = self._delays.get(alias, _FIRST_RETRY)
                self._delays[alias] = min(2 * delay, _LONGEST_RETRY)
                with anyio.move_on_after(delay * random.uniform(0.75, 1.25)):  # ruff: ignore[suspicious-non-cryptographic-random-usage] - spreads attempts
                    await retry.wanted.wait()
                    since = anyio.current_time() - self._attempted.get(alias, -_SHORTEST_RETRY)
                    await anyio.sleep(max(0.0, _SHORTEST_RETRY - since))
                self._attempted[alias] = anyio.current_time()
                (server,) = (one for one in self.plan.servers if one.entry.alias == alias)
                live = self.live
                try:
                    await live.dynamic_registry.connect(live.connection(server))
                except AishError:
                    retry.again()
                    continue
                break
            self._up_since[alias] = anyio.current_time()
            text = f"mcp server `{alias}` is connected again"
            self._emit(Notice(NOWHERE, "info", "server_back", text))
        if self._retries.get(alias) is retry:
            del self._retries[alias]


def _root_of(server: ResolvedServer) -> tuple[int, int] | None:
    """The folder that is the root of a pack now; `None` if it has none, or it is not there."""
    root = server.entry.root
    try:
        found = None if root is None else root.stat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


class _Retry:
    """The attempts to connect to a lost server: whether the next is wanted at once, and its end."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.wanted, self.ended = anyio.Event(), anyio.Event()

    def again(self) -> None:
        """The last attempt has failed, and another follows."""
        self.ended.set()
        self.wanted, self.ended = anyio.Event(), anyio.Event()

    @contextmanager
    def until_ended(self) -> Generator[None]:
        """Make attempts, until the server is up or another one has its alias."""
        try:
            with self.scope:
                yield
        finally:
            self.ended.set()


@frozen
class PreparedServers:
    """Servers that are connected and not offered yet, by alias, and those around them."""

    live: LiveServers
    stays: Mapping[str, ServerTask]
    changes: ServerChanges
