"""The composition root of `aish serve`: from a plan to the end of the process.

Sockets are opened first, then servers connect; a client's handshake is answered at once. SIGTERM
gives calls time to end; the end of input at the standard streams ends everything.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.events import NOWHERE, Notice
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject
from aish.core.phrases import backticked, counted
from aish.core.protocols import Clock, Emit
from aish.engine.cancellation import INTERRUPTED, Interrupt, interruptible
from aish.engine.environment import Opening, Recorder, RunEnvironment
from aish.engine.final import FinalState
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import open_models, open_toolbox
from aish.engine.run_folder import RunFolder
from aish.features.control.run_services import ControlRequest
from aish.models.throttle import Throttles
from aish.net.listen.addresses import Exposure
from aish.net.listen.tokens import ClientToken
from aish.serve.calls.calls import Calls, ClientSources
from aish.serve.calls.pack_models import PackModels
from aish.serve.calls.pending_calls import PendingCalls
from aish.serve.calls.waiting_calls import CallApprovals
from aish.serve.clients import Clients, HubClient, read_tokens, token_path
from aish.serve.hub import Hub
from aish.serve.hub_services import HubServices, open_hub_services
from aish.serve.listeners.endpoint import STDIO, Endpoint, Kind
from aish.serve.listeners.line_connection import ClientGoneError, LineRefusedError
from aish.serve.listeners.line_sockets import serve_line_socket
from aish.serve.listeners.listening import (
    OpenEndpoint,
    listener_json,
    open_endpoints,
    tell_listening,
)
from aish.serve.listeners.stdio import Streams, serve_stdio
from aish.serve.offer.active import Active, ActiveConfig, LoadedFile, check_aliases
from aish.serve.offer.served_tools import open_served_tools
from aish.serve.records.audit import AuditError, AuditLog, open_audit
from aish.serve.reload import Load, Reloader, ReloadRequests
from aish.serve.state import ServeState, open_state
from aish.serve.supervisor import ServerSupervisor
from aish.system.clock import SystemClock
from aish.system.task_group import task_group
from aish.terminal.unattended import Unattended

if TYPE_CHECKING:
    # Most servers record nothing.
    from aish.features.recording.session import CassetteSession, RunRecorder
    from aish.system.offline import PartlyOffline

_AUTH = "serve.auth"
_LAST_WORDS_SECONDS = 2.0
"""How long calls that are cut off may take to say so, to servers and to clients."""
_HURRIED_SECONDS = 1.0
"""The same after a second signal."""
_LISTENERS: Mapping[Kind, Callable[[Hub, OpenEndpoint], Coroutine[Any, Any, None]]] = {
    "tcp": serve_line_socket,
    "unix": serve_line_socket,
}
"""What serves the clients of a socket, until it is cancelled after the drain."""


@frozen
class ServeRequest:
    """Request to serve: what is offered, and where clients connect."""

    loaded: LoadedFile
    environ: Mapping[str, str]
    emit: Emit
    streams: Streams
    load: Load
    endpoints: Sequence[Endpoint] = (STDIO,)
    exposure: Exposure = Exposure()
    cassette: "CassetteSession | None" = None
    control: ControlRequest | None = None
    opening: Opening | None = None


@slotted
class _Ending:
    """The reason why the server ends; `drain` is the time that calls have left."""

    audit: AuditLog
    begun: anyio.Event
    drain: anyio.CancelScope
    code: int = 0
    drains: bool = True
    is_hurried: bool = False

    def end(self, code: int, *, drains: bool = True) -> None:
        """Begin to end; only the first reason counts."""
        if not self.begun.is_set():
            self.code, self.drains = code, drains
            self.begun.set()

    def hurry(self) -> None:
        """Cancel running calls, and leave once servers and clients were told."""
        self.is_hurried = True
        self.drain.cancel()
        asyncio.get_running_loop().call_later(_HURRIED_SECONDS, self.leave)

    def leave(self) -> NoReturn:
        """Exit without waiting; the last record of each call is still written."""
        self.audit.close()
        os._exit(self.code)


@frozen
class _Signals:
    """Signal handling, active from the first socket on."""

    ending: _Ending
    wanted: ReloadRequests
    interrupt: Interrupt


@contextmanager
def _signals(audit: AuditLog) -> Generator[_Signals]:
    ending, reloads = _Ending(audit, anyio.Event(), anyio.CancelScope()), ReloadRequests()
    with interruptible(lambda code: ending.end(int(code)), reloads.add) as interrupt:
        interrupt.again = ending.hurry
        yield _Signals(ending, reloads, interrupt)
    if interrupt.code is not None:
        # The process is about to end as it was told to.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


async def run_server(request: ServeRequest) -> int:
    """Serve until the client disconnects or a signal arrives; return the exit code.

    Raises:
        UsageError: the file or the options cannot be served.
        UnavailableError: a required server did not start.
    """
    plan = request.loaded.plan
    check_aliases(plan)
    if plan.pipeline.serve.auth is not None:
        _check_auth(request)
    clock, state = SystemClock(), open_state(plan.pipeline)
    audit = open_audit(plan.pipeline.serve.audit, state, clock, plan.secrets.mask)
    environ, token = request.environ, token_path(plan.pipeline.serve, state)
    try:
        clients = _clients(request, state, clock)
        with open_hub_services(
            request.control, plan, environ, state, audit, clock, request.emit
        ) as services:
            environment = RunEnvironment(
                emit=services.emit,
                approver=Unattended(),
                clock=clock,
                folder=RunFolder(state.id, state.path, plan.secrets.mask),
                environ=environ,
                staging=services.staging,
                follow=services.follow,
                opening=request.opening,
            )
            with (
                _signals(audit) as signals,
                open_endpoints(
                    request.endpoints,
                    request.exposure,
                    state,
                    # With an issuer it is told once its keys are there: it may be down.
                    services.emit if plan.pipeline.serve.auth is None else None,
                    token,
                ) as opened,
            ):
                for listener in opened:
                    audit.note("listening", None, **listener_json(listener))
                return await services.serve_with_control(
                    _Server(
                        request,
                        environment,
                        audit,
                        ClientSources(audit),
                        state,
                        clients,
                        opened,
                        services,
                        signals,
                    ).run
                )
    except AuditError as error:
        raise AishError(str(error), hint="make room, or name another folder") from error
    finally:
        audit.close()


def _check_auth(request: ServeRequest) -> None:
    """Check that issued tokens can be validated at all endpoints.

    Raises:
        UsageError: they cannot.
    """
    if request.cassette is not None and request.cassette.replays:
        hint = "replay it from a copy of the file without `serve.auth`"
        message = "a replay contacts nobody, and tokens need the keys of their issuer"
        raise UsageError(message, where=_AUTH, hint=hint)
    for endpoint in request.endpoints:
        if endpoint.kind != "http":
            message = f"`{endpoint.to_text()}` has no place for a token of an issuer"
            raise UsageError(message, where=_AUTH, hint="listen with `--http HOST:PORT` only")
    missing = [name for name in ("joserfc", "cryptography") if find_spec(name) is None]
    if missing:
        message = f"tokens of an issuer need {backticked(missing, by=' and ')}, not installed here"
        raise UsageError(message, where=_AUTH, hint="pip install 'aish-pipelines[oauth]'")


@contextmanager
def _recorder(
    request: ServeRequest, environment: RunEnvironment
) -> "Generator[RunRecorder | None]":
    """Return the recorder or player of this server, if there is a cassette.

    Raises:
        CassetteFileError: it cannot be written.
    """
    if request.cassette is None:
        yield None
        return
    options = RunOptions(environ=request.environ)
    plan, clock = request.loaded.plan, environment.clock
    with request.cassette.open_recorder(plan, options, environment.folder, clock) as recorder:
        recorder.is_of_server = True
        yield recorder


def _end_recording(recorder: "RunRecorder", code: int, emit: Emit) -> int:
    """Write the cassette, or report unused recordings of a replay; return the exit code.

    Raises:
        AishError: a replay did not find a request, or a recording could not be written.
    """
    from aish.features.recording.session import end_run_recording

    error = None if code == 0 else AishError("the server did not end by itself")
    signal = ExitCode(code) if code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED} else None
    ended = end_run_recording(recorder, FinalState((), error, signal), emit)
    for problem in ended.errors if code == 0 else ():
        raise problem
    return code


def _clients(request: ServeRequest, state: ServeState, clock: Clock) -> Clients:
    """Return the clients with a token; tokens are read or generated only if an endpoint needs one.

    Raises:
        UsageError: a token is missing, too short, or can be read by others.
    """
    is_needed = any(endpoint.needs_token for endpoint in request.endpoints)
    # With tokens of an issuer a socket file says nothing of who is behind it.
    is_needed = is_needed or request.loaded.plan.pipeline.serve.auth is not None

    def read(plan: Plan) -> Mapping[HubClient, ClientToken]:
        if not is_needed:
            return {}
        return read_tokens(plan.pipeline.serve, state, request.environ, plan.secrets)

    clients = Clients(clock, read)
    plan = request.loaded.plan
    clients.configure(clients.prepare(plan), plan.pipeline.serve)
    return clients


def _use_cassette(hub: Hub, used: Recorder, stack: ExitStack) -> None:
    """Record the exchanges with clients, or replay everything else from the cassette."""
    from aish.features.recording.session import recorder_of
    from aish.serve.client_exchanges import ClientExchanges

    recorder = recorder_of(used)
    hub.exchanges = ClientExchanges(recorder)
    if recorder.replays_all:
        hub.calls.around_servers = stack.enter_context(_alone()).within


@contextmanager
def _alone() -> "Generator[PartlyOffline]":
    """Block the network for servers in a replay; clients connect as usual.

    Raises:
        OfflineError: a connection was attempted, even if the error was caught.
    """
    from aish.system.offline import PartlyOffline

    with PartlyOffline() as guard:
        yield guard
    for trip in guard.trips:
        raise trip


@slotted
class _ReloadCommand:
    """The command `reload` of the control API, once a reloader exists."""

    reloader: Reloader | None = None

    async def __call__(self, arguments: JsonObject, by: str) -> JsonObject:
        """Reload the file.

        Raises:
            AishError: it has problems, and nothing has changed.
        """
        del arguments, by  # the call itself is recorded
        if self.reloader is None:
            raise AishError("the server has not begun yet")
        outcome = await self.reloader.reload()
        if outcome.problem is not None:
            raise AishError(f"the file is not reloaded, and nothing has changed: {outcome.problem}")
        return outcome.record


@slotted
class _Server:
    """A server with open sockets."""

    request: ServeRequest
    environment: RunEnvironment
    audit: AuditLog
    sources: ClientSources
    state: ServeState
    clients: Clients
    opened: Sequence[OpenEndpoint]
    services: HubServices
    signals: _Signals

    async def run(self) -> int:
        """Serve until there is a reason to end; return the exit code."""
        with _recorder(self.request, self.environment) as recorder:
            if recorder is None:
                return await self._serve()
            self.environment = replace(self.environment, recorder=recorder)
            self.services.questions.recording = recorder.approvals
            return _end_recording(recorder, await self._serve(), self.request.emit)

    async def _serve(self) -> int:
        request, services, ending = self.request, self.services, self.signals.ending
        clock, recorder = self.environment.clock, self.environment.recorder
        begun, reload = clock.monotonic(), _ReloadCommand()
        services.begin(
            request.loaded.plan,
            self.signals.interrupt.arrive,
            {"reload": reload},
            self.sources.forget,
        )
        async with AsyncExitStack() as stack:
            ended = stack.enter_context(ExitStack())
            hub, supervisor, reload.reloader = await self._open_parts(stack)
            if recorder is not None:
                _use_cassette(hub, recorder, ended)
            with hub.calls.around_servers():
                supervisor.start()
            tasks = await stack.enter_async_context(task_group())
            hub.pending = PendingCalls(
                tasks,
                self.state,
                hub.active,
                self.audit,
                clock,
                hub.report,
                hub.track_answer,
                is_live=recorder is None,
            )
            hub.pending.resume = hub.calls.resume
            # Another process takes over what is left once the runs have ended.
            ended.callback(hub.pending.close)
            tasks.start_soon(self.audit.sync)
            tasks.start_soon(hub.pending.serve_tasks)
            tasks.start_soon(services.questions.watch)
            tasks.start_soon(supervisor.begin, hub, tasks)
            tasks.start_soon(reload.reloader.run, self.signals.wanted)
            for one in self.opened:
                if one.endpoint.kind != "http":
                    tasks.start_soon(_LISTENERS[one.endpoint.kind], hub, one)
            if over_http := [one for one in self.opened if one.endpoint.kind == "http"]:
                tasks.start_soon(self._serve_http, hub, over_http)
            if STDIO in request.endpoints:
                tasks.start_soon(_stdio, hub, request.streams, ending)
            await ending.begun.wait()
            if ending.drains and (hub.calls.open or services.control is not None):
                services.emit(Notice(NOWHERE, "info", INTERRUPTED, _last_words(hub)))
            was_cut_off = await _drain(hub, ending)
            tasks.cancel_scope.cancel()
        is_signal = ending.code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED}
        code = 0 if is_signal and not was_cut_off else ending.code
        services.end(code, clock.monotonic() - begun)
        return code

    async def _serve_http(self, hub: Hub, opened: Sequence[OpenEndpoint]) -> None:
        """Serve HTTP; with `serve.auth`, after its issuer has returned its keys.

        Raises:
            UnavailableError: it has not.
        """
        from aish.serve.listeners.http import serve_http

        auth, authority = hub.settings.auth, None
        if auth is not None:
            from aish.serve.listeners.resource_server import open_resource_server

            authority = await open_resource_server(
                auth,
                self.clients,
                self.environment.clock,
                hub.tell,
                paths=[one.endpoint.path for one in opened],
                behind_proxy=self.request.exposure.behind_proxy,
            )
            tell_listening(opened, self.services.emit)
        await serve_http(hub, opened, self.state.path, self.environment.clock, authority)

    async def _open_parts(self, stack: AsyncExitStack) -> tuple[Hub, ServerSupervisor, Reloader]:
        """Open the parts of the server that all listeners share."""
        environment, services, audit = self.environment, self.services, self.audit
        plan, emit = self.request.loaded.plan, services.emit
        supervisor = ServerSupervisor(emit)
        box = await stack.enter_async_context(
            open_toolbox(plan, environment, servers=supervisor.servers)
        )
        registry, gate = supervisor.live.dynamic_registry.registry, box.runtime.gate
        tools = await stack.enter_async_context(
            open_served_tools(box.tools, registry, supervisor.session_servers, environment)
        )
        tools = tools.successor(
            box.tools, self.request.loaded.pipelines, plan.pipeline.serve.limits.pipelines
        )
        active = Active(ActiveConfig(plan, tools))

        def lose_audit(reason: str) -> None:
            emit(Notice(NOWHERE, "error", "audit_lost", reason))
            self.signals.ending.end(int(ExitCode.FAILED))

        models = (
            await open_models(plan, environment, box, Throttles(), stack) if plan.models else {}
        )
        services.staging.plan = lambda: active.now.plan
        calls = Calls(
            CallApprovals(gate, active, services.questions, emit),
            audit,
            environment.clock,
            lose_audit,
            services.call_events,
            PackModels(models, emit, plan.default_model),
            box.runtime,
            self.sources,
        )
        hub = Hub(active, registry, gate, calls, audit, services.call_events, self.clients)
        hub.reconnect = supervisor.reconnect
        reloader = Reloader(hub, supervisor, gate, audit, self.request.load, emit)
        calls.metrics.gauges["aish_open_questions"] = (
            "Calls that wait for an approval, and those whose clients may call again.",
            lambda: {(): services.questions.waiting},
        )
        calls.metrics.counters["aish_reloads_total"] = (
            "How often the file was loaded anew, by result.",
            lambda: {(("result", result),): count for result, count in reloader.counts.items()},
        )
        return hub, supervisor, reloader


async def _stdio(hub: Hub, streams: Streams, ending: _Ending) -> None:
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


def _last_words(hub: Hub) -> str:
    seconds, calls = hub.settings.limits.drain, hub.calls.open
    if not calls:
        return "the server is being ended"
    has = "has" if calls == 1 else "have"
    under_way = f"{counted(calls, 'call')} under way {has} {seconds:g} s to end"
    return f"nothing new is taken, {under_way}"


async def _drain(hub: Hub, ending: _Ending) -> bool:
    hub.draining.set()
    hub.calls.approvals.draining.set()
    if not ending.drains:
        return False
    ending.drain.deadline = anyio.current_time() + hub.settings.limits.drain
    with ending.drain:
        await hub.idle()
    was_cut_off = hub.calls.open > 0
    hub.cut_off()
    with anyio.move_on_after(_LAST_WORDS_SECONDS):
        await hub.idle()
    # What ended just now is still to be written, to all clients at once.
    async with task_group() as tasks:
        for flush in tuple(hub.flushes):
            tasks.start_soon(flush)
    if ending.is_hurried:
        ending.leave()
    return was_cut_off
