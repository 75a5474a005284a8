"""The composition root of `aish serve`: from a plan to the end of the process (H4, H22, H25).

Sockets are opened first, then servers connect; the handshake of a client is answered at once.
SIGTERM lets calls end within their time; the end of the input of a client at the standard streams
ends all.
"""

import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.events import NOWHERE, Notice, ServerInfo
from aish.core.frozen import frozen, slotted
from aish.core.protocols import Emit
from aish.engine.cancellation import interruptible
from aish.engine.environment import RunEnvironment
from aish.engine.plan.plan import Plan
from aish.engine.plan.validation.names import SERVED
from aish.engine.resources.resources import open_toolbox, require_servers
from aish.engine.resources.servers import LiveServers, open_live_servers
from aish.engine.run_folder import RunFolder
from aish.mcp.client.registry import Registry
from aish.net.listen.addresses import Exposure
from aish.serve.audit import AuditError, AuditLog, open_audit
from aish.serve.calls import Calls
from aish.serve.hub import Hub
from aish.serve.listeners.endpoint import STDIO, Endpoint, Kind
from aish.serve.listeners.line_connection import ClientGoneError, LineRefusedError
from aish.serve.listeners.line_sockets import serve_line_socket
from aish.serve.listeners.listening import OpenEndpoint, described, open_endpoints
from aish.serve.listeners.stdio import Streams, serve_stdio
from aish.serve.served_tools import open_served_tools
from aish.serve.state import open_state
from aish.system.clock import SystemClock
from aish.system.process.reaper import Reaper
from aish.system.task_group import task_group
from aish.terminal.unattended import Unattended

if TYPE_CHECKING:
    from aish.serve.pipeline_tools import OfferedPipeline

_FIRST_RETRY = 1.0
_LONGEST_RETRY = 60.0
_LIVED = 60.0
"""Seconds after which a server that is lost is tried again as soon as at first."""


_LISTENERS: Mapping[Kind, Callable[[Hub, OpenEndpoint], Coroutine[Any, Any, None]]] = {
    "unix": serve_line_socket,
}
"""What serves the clients of a socket, until it is cancelled after the drain."""


@frozen
class ServeRequest:
    """What is served, and where clients connect."""

    plan: Plan
    environ: Mapping[str, str]
    emit: Emit
    streams: Streams
    endpoints: Sequence[Endpoint] = (STDIO,)
    exposure: Exposure = Exposure()
    pipelines: "tuple[OfferedPipeline, ...]" = ()


@slotted
class _Ending:
    """Why the server ends, once it does."""

    begun: anyio.Event
    code: int = 0
    drains: bool = True

    def end(self, code: int, *, drains: bool = True) -> None:
        """Begin to end; only the first reason counts."""
        if not self.begun.is_set():
            self.code, self.drains = code, drains
            self.begun.set()


async def run_server(request: ServeRequest) -> int:
    """Serve until the client leaves, or a signal comes; the exit code.

    Raises:
        UsageError: what is to be served cannot be, as the file or the options say it.
        UnavailableError: a required server did not start.
    """
    plan = request.plan
    if any(server.entry.alias == SERVED for server in plan.servers):
        where = f"mcp server `{SERVED}`"
        hint = "the pipelines of a file have this alias when it is served"
        raise UsageError("this alias cannot be served", where=where, hint=hint)
    clock, state = SystemClock(), open_state(plan.pipeline)
    audit = open_audit(plan.pipeline.serve.audit, state, clock, plan.secrets.mask)
    environment = RunEnvironment(
        emit=request.emit,
        approver=Unattended(),
        clock=clock,
        folder=RunFolder(state.id, state.path, plan.secrets.mask),
        environ=request.environ,
    )
    try:
        with open_endpoints(request.endpoints, request.exposure, state, request.emit) as opened:
            for one in opened:
                audit.note("listening", None, **described(one))
            return await _served(request, environment, audit, opened)
    except AuditError as error:
        raise AishError(str(error), hint="make room, or name another folder") from error
    finally:
        audit.close()


async def _served(
    request: ServeRequest,
    environment: RunEnvironment,
    audit: AuditLog,
    opened: Sequence[OpenEndpoint],
) -> int:
    ending = _Ending(anyio.Event())
    plan = request.plan
    with interruptible(lambda code: ending.end(int(code))):
        async with AsyncExitStack() as stack:
            supervisor = _Supervisor(request.emit)
            box = await stack.enter_async_context(
                open_toolbox(plan, environment, servers=supervisor.servers)
            )
            assert supervisor.live is not None, "the toolbox has opened it"
            live, gate = supervisor.live, box.runtime.gate

            def lose_audit(reason: str) -> None:
                request.emit(Notice(NOWHERE, "error", "audit_lost", reason))
                ending.end(int(ExitCode.FAILED))

            settings, clock = plan.pipeline.serve, environment.clock
            registry = live.dynamic_registry.registry
            tools = await stack.enter_async_context(
                open_served_tools(box.tools, registry, clock, request.emit)
            )
            tools.offer(request.pipelines, settings.limits.pipelines)
            calls = Calls(gate, tools, audit, settings.limits, clock, plan.secrets.mask, lose_audit)
            hub = Hub(
                settings.name or plan.pipeline.name,
                settings,
                tools,
                registry,
                gate,
                calls,
                audit,
                request.emit,
            )
            live.dynamic_registry.begin([live.connection(server) for server in plan.servers])
            tasks = await stack.enter_async_context(task_group())
            tasks.start_soon(audit.sync)
            tasks.start_soon(supervisor.begin, hub, tasks)
            for one in opened:
                tasks.start_soon(_LISTENERS[one.endpoint.kind], hub, one)
            if STDIO in request.endpoints:
                tasks.start_soon(_stdio, hub, request.streams, ending)
            await ending.begun.wait()
            was_cut_off = await _drain(hub, ending)
            tasks.cancel_scope.cancel()
    is_signal = ending.code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED}
    return 0 if is_signal and not was_cut_off else ending.code


async def _stdio(hub: Hub, streams: Streams, ending: _Ending) -> None:
    """Serve the client at the standard streams; its end is the end of all."""
    code = ExitCode.OK
    try:
        await serve_stdio(hub, streams)
    except LineRefusedError as error:
        hub.tell("error", "client_refused", f"the client is disconnected: {error}")
        code = ExitCode.FAILED
    except ClientGoneError:
        hub.tell("warning", "client_lost", "the client does not read: it is disconnected")
        code = ExitCode.FAILED
    ending.end(int(code), drains=False)


async def _drain(hub: Hub, ending: _Ending) -> bool:
    """Let calls end within their time; whether any was cut off."""
    hub.draining.set()
    if not ending.drains:
        return False
    with anyio.move_on_after(hub.settings.limits.drain):
        await hub.idle()
    was_cut_off = hub.calls.open > 0
    # What ended just now is still to be written.
    for flush in tuple(hub.flushes):
        await flush()
    return was_cut_off


class _Supervisor:
    """Brings servers up, and those that are lost up again (H4)."""

    def __init__(self, emit: Emit) -> None:
        self.live: LiveServers | None = None
        self._emit = emit
        self._tasks: TaskGroup | None = None
        self._plan: Plan | None = None
        self._delays: dict[str, float] = {}
        self._up_since: dict[str, float] = {}

    @asynccontextmanager
    async def servers(
        self, plan: Plan, environment: RunEnvironment, reaper: Reaper
    ) -> AsyncGenerator[Registry]:
        """Open the registry of a plan, still without servers."""
        self._plan = plan
        async with open_live_servers(plan, environment, reaper, None, self._on_settled) as opened:
            self.live = opened
            yield opened.dynamic_registry.registry

    async def begin(self, hub: Hub, tasks: TaskGroup) -> None:
        """Wait for all servers, offer what they have, and follow their changes.

        Raises:
            UnavailableError: a required one failed.
            UsageError: two tools have the same name.
        """
        assert self.live is not None
        assert self._plan is not None
        dynamic = self.live.dynamic_registry
        await dynamic.settled()
        require_servers(self._plan, dynamic.registry.servers)
        hub.begin()
        self._tasks = tasks
        for server in dynamic.registry.servers:
            if server.state == "failed":
                self._retry(server.alias)
        await hub.watch()

    def _on_settled(self, server: ServerInfo) -> None:
        if server.state != "failed":
            self._up_since[server.alias] = anyio.current_time()
            return
        text = f"mcp server `{server.alias}` is missing: {server.error}"
        self._emit(Notice(NOWHERE, "warning", "server_missing", text))
        if self._tasks is not None:
            self._retry(server.alias)

    def _retry(self, alias: str) -> None:
        assert self._tasks is not None
        up_since = self._up_since.pop(alias, None)
        if up_since is not None and anyio.current_time() - up_since >= _LIVED:
            self._delays.pop(alias, None)
        self._tasks.start_soon(partial(self._connect_again, alias))

    async def _connect_again(self, alias: str) -> None:
        """Try until the server is up: after 1, 2, 4 … 60 seconds, each a little different."""
        assert self.live is not None
        assert self._plan is not None
        (server,) = (one for one in self._plan.servers if one.entry.alias == alias)
        while True:
            delay = self._delays.get(alias, _FIRST_RETRY)
            self._delays[alias] = min(2 * delay, _LONGEST_RETRY)
            await anyio.sleep(delay * random.uniform(0.75, 1.25))  # ruff: ignore[suspicious-non-cryptographic-random-usage] - spreads attempts
            try:
                await self.live.dynamic_registry.connect(self.live.connection(server))
            except AishError:
                continue
            self._up_since[alias] = anyio.current_time()
            text = f"mcp server `{alias}` is connected again"
            self._emit(Notice(NOWHERE, "info", "server_back", text))
            return
