"""The servers behind the hub: started, restarted when they are lost, and replaced."""

import random
from collections import defaultdict
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
from aish.mcp.client.session import Backoff
from aish.serve.hub import Hub
from aish.serve.offer.session_servers import SessionServers
from aish.system.process.reaper import Reaper

_SHORTEST_RETRY = 1.0
"""Seconds between two attempts, however many calls ask for one."""


@frozen
class ServerChanges:
    """The differences between the servers of a file and those of the previous one."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


class ServerSupervisor:
    """Starts servers, and restarts lost ones."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._live: LiveServers | None = None
        self._environment: RunEnvironment | None = None
        self._tasks: TaskGroup | None = None
        self._retries: dict[str, _Retry] = {}
        self._backoffs: defaultdict[str, Backoff] = defaultdict(Backoff)
        self._attempted: dict[str, float] = {}
        self._roots: dict[str, tuple[int, int] | None] = {}
        self.session_servers = SessionServers(lambda: self.live)

    @property
    def live(self) -> LiveServers:
        assert self._live is not None, "the toolbox has opened it"
        return self._live

    @property
    def plan(self) -> Plan:
        return self.live.plan

    @asynccontextmanager
    async def servers(
        self, plan: Plan, environment: RunEnvironment, reaper: Reaper
    ) -> AsyncGenerator[Registry]:
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
        """Wait for all servers, offer their tools, and follow their changes.

        Raises:
            UnavailableError: a required one failed.
            UsageError: two tools have the same name.
        """
        dynamic = self.live.dynamic_registry
        await dynamic.wait_until_settled()
        require_servers(self.plan, dynamic.registry.servers)
        hub.begin()
        self._tasks = tasks
        for server in dynamic.registry.servers:
            if server.state == "failed":
                self._retry(server.alias)
        await hub.watch()

    async def reconnect(self, alias: str) -> None:
        """Reconnect to a lost server at once, and wait for the result.

        Attempts are at least one second apart.
        """
        retry = self._retries.get(alias)
        if retry is not None:
            retry.wanted.set()
            await retry.ended.wait()

    @asynccontextmanager
    async def prepare(self, plan: Plan) -> AsyncGenerator["PreparedServers"]:
        """Connect the new servers of a plan without offering them; unchanged servers are shared.

        Raises:
            UnavailableError: a required one failed.
            UsageError: a pack's root is not allowed.
        """
        assert self._environment is not None, "the toolbox was opened in it"
        live = self.live.for_plan(plan, self._environment)
        dynamic = live.dynamic_registry
        changes, new = self._differences(plan)
        connections = [live.connection(server) for server in new]
        dynamic.pass_on(frozenset(plan.pipeline.serve.forward))
        try:
            async with dynamic.prepare(connections) as stays:
                required = {server.entry.alias for server in new if server.entry.required}
                for alias, stay in stays.items():
                    failure = stay.server.failure
                    if failure is not None and alias in required:
                        raise UnavailableError(failure, where=f"mcp server `{alias}`")
                yield PreparedServers(live, stays, changes)
        finally:  # a server that is lost comes back by the plan that is in force
            dynamic.pass_on(frozenset(self.plan.pipeline.serve.forward))

    def exchange(self, prepared: "PreparedServers") -> Exchanged:
        """Offer the servers of another plan in one step; none is disconnected before `keep`.

        Raises:
            UsageError: two tools share a name; nothing has changed.
        """
        old, new = self.live, prepared.live
        order = [server.entry.alias for server in new.plan.servers]
        exchange = new.dynamic_registry.exchange(order, prepared.stays, tool_name_limit(new.plan))
        self._live = new
        opened = {
            one.entry.alias: one for one in new.plan.servers if one.entry.alias in prepared.stays
        }

        def revert() -> None:
            self._live = old
            exchange.revert()

        def keep() -> None:
            exchange.keep()
            self._roots |= {alias: _root_of(connection) for alias, connection in opened.items()}
            gone = (*prepared.changes.removed, *prepared.changes.changed)
            self.session_servers.drop(gone)
            for alias in gone:
                self._forget(alias)
            for stay in prepared.stays.values():
                self._on_settled(stay.server.info)

        return Exchanged(revert, keep)

    def _differences(self, plan: Plan) -> tuple[ServerChanges, Sequence[ResolvedServer]]:
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

        changed = [server for alias, server in new.items() if alias in old and not is_same(server)]
        added = [server for alias, server in new.items() if alias not in old]
        changes = ServerChanges(
            added=tuple(server.entry.alias for server in added),
            removed=tuple(alias for alias in old if alias not in new),
            changed=tuple(server.entry.alias for server in changed),
        )
        return changes, (*added, *changed)

    def _on_settled(self, server: ServerInfo) -> None:
        if server.state != "failed":
            self._backoffs[server.alias].begin()
            return
        text = f"mcp server `{server.alias}` is missing: {server.error}"
        self._emit(Notice(NOWHERE, "warning", "server_missing", text))
        if self._tasks is not None:
            self._retry(server.alias)

    def _forget(self, alias: str) -> None:
        self._backoffs.pop(alias, None)
        retry = self._retries.pop(alias, None)
        if retry is not None:
            retry.scope.cancel()

    def _retry(self, alias: str) -> None:
        assert self._tasks is not None
        self._retries[alias] = retry = _Retry()
        self._tasks.start_soon(self._connect_again, alias, retry)

    async def _connect_again(self, alias: str, retry: "_Retry") -> None:
        """Retry until the server is up: after 1, 2, 4 … 60 seconds, with some jitter.

        A call for the server triggers an attempt at once.
        """
        with retry.until_ended():
            while True:
                delay = self._backoffs[alias].pause()
                with anyio.move_on_after(delay * random.uniform(0.75, 1.25)):  # ruff: ignore[suspicious-non-cryptographic-random-usage] - spreads attempts
                    await retry.wanted.wait()
                    since = anyio.current_time() - self._attempted.get(alias, -_SHORTEST_RETRY)
                    await anyio.sleep(max(0.0, _SHORTEST_RETRY - since))
                self._attempted[alias] = anyio.current_time()
                (server,) = (server for server in self.plan.servers if server.entry.alias == alias)
                live = self.live
                try:
                    await live.dynamic_registry.connect(live.connection(server))
                except AishError:
                    retry.again()
                    continue
                break
            self._backoffs[alias].begin()
            text = f"mcp server `{alias}` is connected again"
            self._emit(Notice(NOWHERE, "info", "server_back", text))
        if self._retries.get(alias) is retry:
            del self._retries[alias]


def _root_of(server: ResolvedServer) -> tuple[int, int] | None:
    """Return the current folder of a pack's root; `None` if it has none, or it is missing."""
    root = server.entry.root
    try:
        status = None if root is None else root.stat()
    except OSError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)


class _Retry:
    """Attempts to reconnect to a lost server: request for an immediate one, and their end."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.wanted, self.ended = anyio.Event(), anyio.Event()

    def again(self) -> None:
        self.ended.set()
        self.wanted, self.ended = anyio.Event(), anyio.Event()

    @contextmanager
    def until_ended(self) -> Generator[None]:
        try:
            with self.scope:
                yield
        finally:
            self.ended.set()


@frozen
class PreparedServers:
    """Connected servers that are not offered yet, by alias."""

    live: LiveServers
    stays: Mapping[str, ServerTask]
    changes: ServerChanges
