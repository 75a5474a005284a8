"""Servers added and removed during a session, each in a task of its own.

They share one `Registry`, which is what all other code sees of them.

The life of a server in a registry: a task that opens it, keeps its resources, and closes it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from aish.core.errors import AishError, UnavailableError, UsageError, did_you_mean
from aish.core.events import ServerInfo
from aish.core.frozen import frozen
from aish.mcp.client.connection import Server
from aish.mcp.client.registry import Registry, server_of
from aish.mcp.client.server_requests import Elicit
from aish.mcp.transports.factory import Notify, ServerEnvironment, close_supervisors
from aish.mcp.transports.settings import ServerConnection
from aish.system.process.reaper import Reaper
from aish.system.secrets.secrets import Secrets
from aish.system.task_group import task_group

if TYPE_CHECKING:
    from aish.mcp.transports.adapter import CassetteAdapter
    from aish.system.process.supervisor import Supervisor


class ServerTask:
    """A server from the first attempt to connect until it is closed.

    `settled` is set once the server is connected or has failed. Everything that it starts runs in a
    task group of its own, which ends with it.
    """

    def __init__(
        self,
        server_in: Callable[[TaskGroup], Server],
        let_go: Callable[[], Awaitable[None]] | None,
        *,
        waits: bool = False,
    ) -> None:
        self._waits = waits
        self._tasks = anyio.create_task_group()
        self.server = server_in(self._tasks)
        self.settled = anyio.Event()
        self._let_go = let_go
        self._opening = anyio.CancelScope()
        self._leaving = anyio.Event()
        self._gone = anyio.Event()

    async def live(self, on_settled: Callable[["ServerTask"], None] | None = None) -> None:
        try:
            async with self._tasks:
                try:
                    await self._come()
                    if on_settled is not None and not self.leaving:
                        on_settled(self)
                    self.settled.set()
                    if self.server.failure is None:
                        await self._leaving.wait()
                finally:
                    await self._go()
        finally:
            self.settled.set()
            self._gone.set()

    @property
    def leaving(self) -> bool:
        return self._leaving.is_set()

    def leave(self) -> None:
        self._leaving.set()
        self._opening.cancel()

    async def end(self) -> None:
        self.leave()
        await self._gone.wait()

    async def _come(self) -> None:
        with self._opening:
            try:
                await self.server.open(waits=self._waits)
            except AishError as error:
                # A replay did not find what the server was asked.
                await self.server.fail(error.message)

    async def _go(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.server.close()
            if self._let_go is not None:
                await self._let_go()
        self._tasks.cancel_scope.cancel()


@frozen
class Exchanged:
    """The servers of a registry are others: `revert` takes it back, `keep` lets the old ones go.

    They are disconnected once their calls have ended.
    """

    revert: Callable[[], None]
    keep: Callable[[], None]


OnSettled = Callable[[ServerInfo], None]
"""Hears of each server that was begun in the background, once it is ready or has failed; and of
each that was ready, once it is lost for good."""


class DynamicRegistry:
    """Adds servers to a registry, and removes them."""

    def __init__(
        self,
        registry: Registry,
        around: ServerEnvironment,
        elicit: Elicit | None,
        on_settled: OnSettled,
    ) -> None:
        self.registry = registry
        self.restarts = True
        """Whether a child that has ended is started again by the next call; else it is lost at
        once, and its owner connects it again."""
        self._around = around
        self._elicit = elicit
        self._on_settled = on_settled
        self._stays: dict[str, ServerTask] = {}
        self._joining: set[str] = set()
        self._apart: set[ServerTask] = set()
        """Those that are not in the registry: not yet, not any more, or never."""

    def begin(self, connections: Sequence[ServerConnection]) -> None:
        """Start to connect to all of them in the background.

        Raises:
            UsageError: an alias is taken.
        """
        for connection in connections:
            alias = connection.entry.alias
            if self._is_taken(alias):
                raise _alias_error(alias)
            waits = bool(connection.entry.required)
            self._stays[alias] = stay = self._stay(connection, waits=waits)
            self.registry.add(stay.server)
            self._around.tasks.start_soon(stay.live, self._settle)

    def pass_on(self, capabilities: frozenset[str]) -> None:
        self._around = replace(self._around, forwards=capabilities)

    async def wait_until_settled(self) -> None:
        for stay in tuple(self._stays.values()):
            await stay.settled.wait()

    async def connect(self, connection: ServerConnection) -> ServerInfo:
        """Connect to a server and list its tools; nothing changes if that fails.

        A server that failed before may be connected again under its alias.

        Raises:
            UsageError: its alias is taken, or a name of its tools.
            UnavailableError: it cannot be connected.
        """
        alias = connection.entry.alias
        if self._is_taken(alias):
            if connection.let_go is not None:
                await connection.let_go()
            raise _alias_error(alias)
        self._joining.add(alias)
        stay = self._stay(connection)
        self._around.tasks.start_soon(stay.live)
        try:
            await stay.settled.wait()
            _require_up(stay.server)
            self.registry.admit(stay.server)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stay.end()
            raise
        finally:
            self._joining.discard(alias)
        self._stays[alias] = stay
        return stay.server.info

    async def disconnect(self, alias: str) -> None:
        """Disconnect from a server; its tools are removed at once.

        Raises:
            UsageError: there is no such server.
        """
        stay = self._stays.pop(alias, None)
        if stay is None:
            hint = did_you_mean(alias, self._stays)
            raise UsageError("there is no such server", where=f"mcp server `{alias}`", hint=hint)
        self.registry.remove(alias)
        await stay.end()

    @asynccontextmanager
    async def prepare(
        self, connections: Sequence[ServerConnection]
    ) -> AsyncGenerator[Mapping[str, ServerTask]]:
        """Connect to servers without offering them, by alias: each is ready or has failed.

        Those that were not taken over by an `exchange` are closed at the end of the block.
        """
        stays = {connection.entry.alias: self._stay(connection) for connection in connections}
        for stay in stays.values():
            self._apart.add(stay)
            self._around.tasks.start_soon(self._live_apart, stay)
        try:
            for stay in stays.values():
                await stay.settled.wait()
            yield stays
        finally:
            for alias, stay in stays.items():
                if self._stays.get(alias) is not stay:
                    stay.leave()

    def exchange(
        self, order: Sequence[str], new: Mapping[str, ServerTask], max_tool_name: int
    ) -> "Exchanged":
        """Offer exactly the servers with these aliases, existing and `new` ones, in one step.

        Nobody is disconnected before `Exchanged.keep`.

        Raises:
            UsageError: two tools share a name; nothing has changed.
        """
        old = self._stays
        stays = {alias: new[alias] if alias in new else old[alias] for alias in order}
        undo = self.registry.exchange([stay.server for stay in stays.values()], max_tool_name)
        self._stays = stays
        for stay in new.values():
            self._apart.discard(stay)

        def revert() -> None:
            self._stays = old
            self._apart.update(new.values())
            undo()

        def keep() -> None:
            for alias, stay in old.items():
                if stays.get(alias) is not stay:
                    self.retire(stay)

        return Exchanged(revert, keep)

    async def connect_apart(self, connection: ServerConnection) -> ServerTask:
        """Connect to a server that is not offered; who has it ends it.

        Raises:
            UnavailableError: it cannot be connected.
        """
        stay = self._stay(connection)
        self._apart.add(stay)
        self._around.tasks.start_soon(self._live_apart, stay)
        try:
            await stay.settled.wait()
            _require_up(stay.server)
        except BaseException:
            stay.leave()
            raise
        return stay

    def retire(self, stay: ServerTask) -> None:
        self._apart.add(stay)
        self._around.tasks.start_soon(self._retire, stay)

    async def _live_apart(self, stay: ServerTask) -> None:
        try:
            await stay.live()
        finally:
            self._apart.discard(stay)

    async def _retire(self, stay: ServerTask) -> None:
        try:
            await stay.server.idle()
            await stay.end()
        finally:
            self._apart.discard(stay)

    def leave(self) -> None:
        for stay in (*self._stays.values(), *self._apart):
            stay.leave()

    def _is_taken(self, alias: str) -> bool:
        stay = self._stays.get(alias)
        return alias in self._joining or (stay is not None and stay.server.state != "failed")

    def _stay(self, connection: ServerConnection, *, waits: bool = False) -> ServerTask:
        def server_in(tasks: TaskGroup) -> Server:
            around = replace(self._around, tasks=tasks)
            server = server_of(
                connection, around, self.registry, self._elicit, restarts=self.restarts
            )
            server.on_gone = self._lose
            return server

        return ServerTask(server_in, connection.let_go, waits=waits)

    def _settle(self, stay: ServerTask) -> None:
        server = stay.server
        if self._stays.get(server.alias) is not stay:
            return
        if server.failure is None:
            try:
                self.registry.admit(server)
            except AishError as error:
                server.refuse(error.message)
        self._on_settled(server.info)

    def _lose(self, server: Server) -> None:
        """A server is lost for good: it counts as failed, as if it had never been connected.

        So it offers nothing to the next request, and it may be connected again.
        """
        stay = self._stays.get(server.alias)
        if stay is None or stay.server is not server or stay.leaving:
            return
        stay.leave()
        self.registry.withdraw_tools()
        self._on_settled(server.info)


def _alias_error(alias: str) -> UsageError:
    hint = "disconnect it first, or take another alias"
    return UsageError("there is such a server already", where=f"mcp server `{alias}`", hint=hint)


def _require_up(server: Server) -> None:
    if server.failure is not None:
        raise UnavailableError(server.failure, where=f"mcp server `{server.alias}`")


@asynccontextmanager
async def open_dynamic_registry(
    *,
    reaper: Reaper,
    logs: Path | None,
    max_tool_name: int,
    notice: Notify,
    on_settled: OnSettled,
    elicit: Elicit | None = None,
    secrets: Secrets | None = None,
    adapter: "CassetteAdapter | None" = None,
) -> AsyncGenerator[DynamicRegistry]:
    """A registry without servers; those added to it are closed when the block ends.

    `secrets` are masked in what is kept of a child's stderr. `adapter` connects the servers to a
    cassette.
    """
    supervisors: list[Supervisor] = []
    try:
        async with task_group() as tasks:
            around = ServerEnvironment(
                reaper, logs, tasks, notice, secrets, adapter, supervisors=supervisors
            )
            dynamic_registry = DynamicRegistry(
                Registry(max_tool_name, notice), around, elicit, on_settled
            )
            try:
                yield dynamic_registry
            finally:
                dynamic_registry.leave()
    finally:
        await close_supervisors(supervisors)
