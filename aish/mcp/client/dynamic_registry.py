"""Servers that come and go while a session goes on (M5, M12): each lives in a task of its own.

They share one `Registry`, which is what everybody else sees of them.

One server's time in a registry: a task that opens it, keeps what it needs, and closes it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from aish.core.errors import AishError, UnavailableError, UsageError, did_you_mean
from aish.core.events import ServerInfo
from aish.mcp.client.connection import Server
from aish.mcp.client.registry import Registry, server_of, single
from aish.mcp.client.server_requests import Elicit
from aish.mcp.transports.factory import Notify, ServerEnvironment
from aish.mcp.transports.settings import ServerConnection
from aish.system.process.reaper import Reaper
from aish.system.secrets.secrets import Secrets

if TYPE_CHECKING:
    from aish.mcp.transports.adapter import CassetteAdapter


class ServerTask:
    """A server from when it is reached for to when it is gone.

    `settled` is set once it is known whether it came up. Everything that it starts lives in a task
    group of its own, which ends with it.
    """

    def __init__(
        self,
        server_in: Callable[[TaskGroup], Server],
        let_go: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._tasks = anyio.create_task_group()
        self.server = server_in(self._tasks)
        self.settled = anyio.Event()
        self._let_go = let_go
        self._opening = anyio.CancelScope()
        self._leaving = anyio.Event()
        self._gone = anyio.Event()

    async def live(self, on_settled: Callable[["ServerTask"], None] | None = None) -> None:
        """Open the server, wait until it is to leave, and close it."""
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
        """Whether it is to be closed, or is."""
        return self._leaving.is_set()

    def leave(self) -> None:
        """Have the server closed, also while it is still reached for."""
        self._leaving.set()
        self._opening.cancel()

    async def end(self) -> None:
        """Have it closed, and wait until it is gone."""
        self.leave()
        await self._gone.wait()

    async def _come(self) -> None:
        with self._opening:
            try:
                await self.server.open()
            except AishError as error:
                # A replay missed what it was asked.
                await self.server.fail(error.message)

    async def _go(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.server.close()
            if self._let_go is not None:
                await self._let_go()
        self._tasks.cancel_scope.cancel()


OnSettled = Callable[[ServerInfo], None]
"""Hears of each server that was begun in the background, once it is ready or has failed; and of
each that was ready, once it is lost for good."""


class DynamicRegistry:
    """Adds servers to a registry, and takes them out of it."""

    def __init__(
        self,
        registry: Registry,
        around: ServerEnvironment,
        elicit: Elicit | None,
        on_settled: OnSettled,
    ) -> None:
        self.registry = registry
        self._around = around
        self._elicit = elicit
        self._on_settled = on_settled
        self._stays: dict[str, ServerTask] = {}
        self._joining: set[str] = set()

    def begin(self, connections: Sequence[ServerConnection]) -> None:
        """Start to connect to all, in the background.

        Raises:
            UsageError: an alias is taken.
        """
        for connection in connections:
            alias = connection.entry.alias
            if self._is_taken(alias):
                raise _taken(alias)
            self._stays[alias] = stay = self._stay(connection)
            self.registry.add(stay.server)
            self._around.tasks.start_soon(stay.live, self._settle)

    async def settled(self) -> None:
        """Wait until each server that was begun is ready, or has failed."""
        for stay in tuple(self._stays.values()):
            await stay.settled.wait()

    async def connect(self, connection: ServerConnection) -> ServerInfo:
        """Connect to a server and list its tools; where that fails, nothing has changed.

        One that failed before may be connected again under its alias.

        Raises:
            UsageError: its alias is taken, or a name of its tools.
            UnavailableError: it does not come up.
        """
        alias = connection.entry.alias
        if self._is_taken(alias):
            if connection.let_go is not None:
                await connection.let_go()
            raise _taken(alias)
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
        """Let go of a server; its tools are gone at once.

        Raises:
            UsageError: there is no such server.
        """
        stay = self._stays.pop(alias, None)
        if stay is None:
            hint = did_you_mean(alias, self._stays)
            raise UsageError("there is no such server", where=f"mcp server `{alias}`", hint=hint)
        self.registry.remove(alias)
        await stay.end()

    def leave(self) -> None:
        """Have all servers let go; the task group waits for them."""
        for stay in self._stays.values():
            stay.leave()

    def _is_taken(self, alias: str) -> bool:
        stay = self._stays.get(alias)
        return alias in self._joining or (stay is not None and stay.server.state != "failed")

    def _stay(self, connection: ServerConnection) -> ServerTask:
        def server_in(tasks: TaskGroup) -> Server:
            around = replace(self._around, tasks=tasks)
            server = server_of(connection, around, self.registry, self._elicit)
            server.on_gone = self._lose
            return server

        return ServerTask(server_in, connection.let_go)

    def _settle(self, stay: ServerTask) -> None:
        """A server that was begun in the background has come up, or has not."""
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
        """A server is gone for good: it is one that failed, as if it had never come up.

        So it offers nothing to the next question, and it may be connected again.
        """
        stay = self._stays.get(server.alias)
        if stay is None or stay.server is not server or stay.leaving:
            return
        stay.leave()
        self.registry.withdraw_tools()
        self._on_settled(server.info)


def _taken(alias: str) -> UsageError:
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
    """A registry without servers; those it has in the end are let go when the block ends.

    `secrets` are masked in what is kept of a child's stderr. `adapter` is what a cassette puts
    between us and the servers.
    """
    problem: Exception | None = None
    async with anyio.create_task_group() as tasks:
        around = ServerEnvironment(reaper, logs, tasks, notice, secrets, adapter)
        dynamic_registry = DynamicRegistry(
            Registry(max_tool_name, notice), around, elicit, on_settled
        )
        try:
            yield dynamic_registry
        except Exception as error:  # ruff: ignore[blind-except] - it is raised below: a task group would wrap it
            problem = single(error)
        finally:
            dynamic_registry.leave()
    if problem is not None:
        raise problem
