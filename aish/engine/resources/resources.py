"""Opens the clients of a plan: the composition root, on one exit stack.

Packages that many runs do not need (servers, embedded models) are imported on use.
"""

import errno
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import field, replace
from typing import TYPE_CHECKING

import anyio

from aish.agent.result_limit import no_spans
from aish.agent.runtime import AgentRuntime
from aish.config.model import BATCH, LoopLimits, PromptStep, ServerEntry
from aish.core.errors import AishError, UnavailableError
from aish.core.events import NOWHERE, Notice, ServerInfo
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern
from aish.core.protocols import Emit, Meter, Model
from aish.core.wires import WIRES
from aish.engine.environment import Recorder, RunEnvironment
from aish.engine.limits import PlanMeter
from aish.engine.plan.credentials import ResolvedModel
from aish.engine.plan.plan import Plan, follows_flows, own_files
from aish.engine.resources.toolbox import AllTools, LocalCommands
from aish.models.client import open_model
from aish.models.fallback import with_fallbacks
from aish.models.retry import RetryTiming
from aish.models.throttle import Throttles
from aish.models.transport import MakeClient, open_client
from aish.policy.gate import Gate
from aish.policy.questions import Questions
from aish.system.offline import permit_attempts
from aish.system.process.reaper import Reaper
from aish.system.schema.check import SchemaProblem, check_any
from aish.system.schema.client import SchemaWorker

if TYPE_CHECKING:
    from aish.engine.resources.lock_watch import LockWatch
    from aish.mcp.client.registry import Registry
    from aish.net.renewed_secret import RenewedSecret
    from aish.packs.parse_worker import ParseWorker

_UNFIT = SchemaProblem((), "does not fit where it holds a secret", "type")

OpenServers = Callable[[Plan, RunEnvironment, Reaper], AbstractAsyncContextManager["Registry"]]
"""What opens the servers of a plan: `engine.resources.servers.open_servers`, or a session's own."""


@frozen
class Toolbox:
    """Open servers behind one gate; sufficient for one direct call.

    `servers` is their state when the box was opened.
    """

    tools: AllTools
    runtime: AgentRuntime
    servers: tuple[ServerInfo, ...]
    reaper: Reaper


@frozen
class RunFiles:
    """State about files that all conversations of a run share: the tag of blocks, the cassette.

    `worker` parses the files of which definitions are shown, if there are any.
    """

    tag: str
    recorder: Recorder | None = None
    worker: "ParseWorker | None" = None


@frozen
class Resources:
    """Open resources of a run; closed in reverse order, however the run ends."""

    models: Mapping[str, Model]
    tools: AllTools
    runtime: AgentRuntime
    servers: tuple[ServerInfo, ...]
    files: RunFiles
    inner: Mapping[str, "Resources"] = field(default_factory=dict)


@asynccontextmanager
async def open_toolbox(
    plan: Plan,
    environment: RunEnvironment,
    meter: Meter | None = None,
    servers: OpenServers | None = None,
) -> AsyncGenerator[Toolbox]:
    """Open the servers, all at once; no model.

    `servers` overrides how they are opened, even if the plan has none. A server that fails to start
    is in `Toolbox.servers` with its reason; `require_servers` decides whether that is an error.

    Raises:
        UsageError: two tools share a name, or a pack's root is not allowed.
        LockDiffersError: a server is not the one that is locked.
    """
    async with AsyncExitStack() as stack:
        reaper = Reaper()
        stack.callback(reaper.close)
        registry: Registry | None = None
        watch = watch_of(plan, environment.emit)
        if plan.servers and servers is None:
            from aish.engine.resources.servers import open_servers as servers
        if servers is not None:
            registry = await stack.enter_async_context(servers(plan, environment, reaper))
            if watch is not None:
                watch.hold(registry)
        local = LocalCommands(
            plan.pipeline.file.parent, environment.environ, reaper, environment.recorder
        )
        tools = AllTools(registry, local, watch)
        runtime = _runtime(plan, environment, tools, SchemaWorker(reaper), stack)
        runtime = replace(runtime, meter=meter)
        yield Toolbox(tools, runtime, registry.servers if registry else (), reaper)


@asynccontextmanager
async def open_resources(
    plan: Plan,
    environment: RunEnvironment,
    meter: PlanMeter | None = None,
    throttles: Throttles | None = None,
    servers: OpenServers | None = None,
) -> AsyncGenerator[Resources]:
    """Open the servers and then the models; `meter` counts the requests.

    Includes those of sub-pipelines: what is missing is known before anything is paid for. All
    share the `throttles` of their endpoints. `servers` overrides how they are opened.

    Raises:
        UnavailableError: an embedded model could not be started.
        UsageError: two tools share a name, or a pack's root is not allowed.
    """
    opening = environment.opening or (lambda _doing: None)
    opening(())
    if environment.flow is None and (environment.around or follows_flows(plan)):
        # Few runs load it.
        from aish.engine.flow_scope import run_flow

        resumed = environment.resume_state
        flow = run_flow(plan, resumed.given if resumed else {}, environment.around)
        environment = replace(environment, flow=flow)
    async with open_toolbox(plan, environment, meter, servers) as box, AsyncExitStack() as stack:
        opening(())
        stops = missing_server(plan, box.servers) is not None or bool(lock_errors(box.tools))
        throttles = throttles or Throttles(adaptive=_pace(environment).waits)
        models = {} if stops else await open_models(plan, environment, box, throttles, stack)
        inner: dict[str, Resources] = {}
        if plan.inner:
            environment = replace(environment, own_files=environment.own_files | own_files(plan))
        for id, sub in {} if stops else plan.inner.items():
            counted = None if meter is None else meter.inner(sub)
            below = replace(environment, prefix=f"{environment.prefix}{id}/")
            if environment.flow is not None:
                from aish.engine.flow_scope import file_of_plan

                below = replace(below, flow=environment.flow.inner(file_of_plan(sub)))
            opened = open_resources(sub, below, counted, throttles)
            inner[id] = await stack.enter_async_context(opened)
        runtime = replace(box.runtime, long_texts={}, tells_cut_off=True, models=models)
        worker = _parser_of_files(plan, box.reaper, stack)
        files = RunFiles(environment.context_tag, environment.recorder, worker)
        resources = Resources(models, box.tools, runtime, box.servers, files, inner)
        if inner:
            stack.push_async_callback(_close_servers, plan, resources)
        yield resources


async def _close_servers(plan: Plan, resources: Resources) -> None:
    """Close the servers of all sub-pipelines at the same time, within one time limit."""
    registries = [part.tools.servers for _, part in parts(plan, resources)]
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            for registry in filter(None, registries):
                tasks.start_soon(registry.close)


def _parser_of_files(plan: Plan, reaper: Reaper, stack: AsyncExitStack) -> "ParseWorker | None":
    prompts = (step for step in plan.steps if isinstance(step, PromptStep))
    entries = (entry for step in prompts for entry in step.context.files)
    if not any(entry.name is not None or entry.skeleton for entry in entries):
        return None
    from aish.packs.parse_worker import ParseWorker

    worker = ParseWorker(reaper)
    stack.push_async_callback(worker.close)
    return worker


def parts(plan: Plan, resources: Resources) -> Iterator[tuple[Plan, Resources]]:
    """The run itself, and its open sub-pipelines."""
    yield plan, resources
    for id, opened in resources.inner.items():
        yield from parts(plan.inner[id], opened)


def all_servers(resources: Resources, prefix: str = "") -> tuple[ServerInfo, ...]:
    """Every server; those of sub-pipelines as `step/alias`."""
    own = [replace(server, alias=prefix + server.alias) for server in resources.servers]
    for id, opened in resources.inner.items():
        own += all_servers(opened, f"{prefix}{id}/")
    return tuple(own)


def missing_server(plan: Plan, servers: tuple[ServerInfo, ...]) -> ServerInfo | None:
    required = {server.entry.alias for server in plan.servers if server.entry.required}
    return next((s for s in servers if s.state == "failed" and s.alias in required), None)


def require_servers(plan: Plan, servers: tuple[ServerInfo, ...]) -> None:
    """Refuse to continue without a required server.

    Raises:
        UnavailableError: names the first that failed, with its reason.
    """
    server = missing_server(plan, servers)
    if server is not None:
        raise UnavailableError(
            server.error or "failed to connect",
            where=f"mcp server `{server.alias}`",
            hint=_start_hint(server, {one.entry.alias: one.entry for one in plan.servers}),
        )


def require_live_servers(plan: Plan, resources: Resources) -> None:
    """Refuse to begin more work once a required server is lost for good.

    Raises:
        UnavailableError: names the server, with its reason.
    """
    if resources.tools.servers is None and not resources.inner:
        return
    for part, opened in parts(plan, resources):
        registry = opened.tools.servers
        if registry is not None and registry.has_failed:
            require_servers(part, registry.servers)


_CERTIFICATE = lazy_pattern(
    r"UnknownIssuer|CERTIFICATE_VERIFY_FAILED|SELF_SIGNED_CERT|UNABLE_TO_(?:GET_ISSUER|VERIFY)"
    r"|certificate verify failed|self.signed certificate|unable to get local issuer"
)


def _start_hint(server: ServerInfo, entries: Mapping[str, ServerEntry]) -> str:
    entry, why = entries[server.alias], server.error or ""
    command = entry.command
    if entry.sandbox is not None and "sandbox cannot be kept" in why:
        return "`aish doctor` shows which sandboxes work here"
    if len(command) == 1 and " " in command[0] and why.startswith("cannot start"):
        words = ", ".join(command[0].split())
        return f"write a list: `command: [{words}]`"
    if command and " is not fetched: " not in why and _CERTIFICATE.search(why):
        return (
            "servers see only `HOME`, `PATH` and the like of the environment: `env:"
            " [SSL_CERT_FILE, HTTPS_PROXY]` passes variables on"
        )
    place = f"under `mcp.servers.{server.alias}`"
    if command[:1] in {("npx",), ("uvx",)} and why.startswith("no answer within "):
        return (
            f"`{command[0]}` may be installing it: `aish fetch` does so beforehand;"
            f" `timeout: {{connect: 2m}}` {place} is the time for its start"
        )
    without = f"`required: false` {place} continues without it"
    program = command[0] if command else "/"
    if "/" not in program and why == f"cannot start `{program}`: {os.strerror(errno.ENOENT)}":
        return f"is `{program}` installed, in a folder of `PATH`? {without}"
    return without


def lock_errors(tools: AllTools | None) -> tuple[AishError, ...]:
    """The current differences by an enforced lock."""
    error = tools.watch.error() if tools is not None and tools.watch is not None else None
    return () if error is None else (error,)


def require_lock(tools: AllTools) -> None:
    """Refuse to continue with tools that differ from the lock.

    Raises:
        LockDiffersError: says which.
    """
    for error in lock_errors(tools):
        raise error


def watch_of(plan: Plan, emit: Emit) -> "LockWatch | None":
    """The lock of a plan, if it has one.

    Raises:
        LockDiffersError: a server, a model or a prompt is not the one that was pinned, and that is
            enforced.
    """
    if plan.lock is None:
        return None
    from aish.engine.resources.lock_watch import start_watch

    return start_watch(plan, plan.lock, emit)


def _runtime(
    plan: Plan,
    environment: RunEnvironment,
    tools: AllTools,
    worker: SchemaWorker,
    stack: AsyncExitStack,
) -> AgentRuntime:
    stack.push_async_callback(worker.close)

    async def check(schema: JsonObject, value: JsonValue) -> tuple[SchemaProblem, ...]:
        problems = await check_any(schema, value, worker.check)
        masked = plan.secrets.mask_json(value) if problems else value
        if masked == value:
            return problems
        # Problems show the beginning of a value, and a truncated secret would not be recognized.
        return await check_any(schema, masked, worker.check) or (_UNFIT,)

    gate = Gate(
        plan.policy,
        environment.approver,
        environment.folder.id,
        check,
        tools.denial_of,
        environment.staging,
        environment.reviewed,
        plan.secrets.mask,
    )
    gate.questions = environment.questions or Questions(environment.emit, environment.clock)
    gate.stricter = None if environment.flow is None else environment.flow.policy.stricter
    return AgentRuntime(
        tools=tools,
        gate=gate,
        emit=environment.emit,
        clock=environment.clock,
        limits=LoopLimits(),
        on_denied=plan.pipeline.on_denied or "fail",
        keep=environment.folder.keep,
        check_arguments=check,
        mask=plan.secrets.mask,
        spans=no_spans if environment.recorder is None else environment.recorder.spans,
        flow=environment.flow,
    )


async def open_models(
    plan: Plan,
    environment: RunEnvironment,
    box: Toolbox,
    throttles: Throttles,
    stack: AsyncExitStack,
) -> Mapping[str, Model]:
    """The models of a plan by alias, each with its fallbacks; closed by the stack.

    Raises:
        UnavailableError: an embedded model could not be started, and not only packs may ask it.
    """
    single: dict[str, Model] = {}
    pace, watch = _pace(environment), box.tools.watch
    for alias, resolved in plan.models.items():
        ready = resolved
        if resolved.entry.embedded is not None:
            try:
                ready = await _start_if_embedded(resolved, environment, box.reaper, stack)
            except UnavailableError as error:
                if alias not in plan.of_packs:
                    raise
                text = f"model `{alias}`, which only packs may ask, did not start: {error.message}"
                environment.emit(Notice(NOWHERE, "warning", "model_unavailable", text))
                continue
        secret = None
        if ready.made is not None:
            from aish.engine.resources.made_keys import made_key

            secret = made_key(ready.made, plan.secrets, box.reaper, environment)
        make_client: MakeClient = open_client
        entry = ready.entry
        if entry.delivery == BATCH:
            # Not every run imports it; what is collected has no limit of requests at a time.
            from aish.models.batch_delivery import waits_for_days

            make_client = await _open_delivery(ready, secret, environment, pace, stack)
            entry = waits_for_days(entry)
        model = open_model(
            entry,
            ready.key,
            secrets=plan.secrets,
            pace=pace,
            throttles=throttles if entry is ready.entry else Throttles(adaptive=False),
            make_client=_client(resolved, environment, make_client),
            meter=box.runtime.meter,
            secret=secret,
        )
        opened = await stack.enter_async_context(model)
        opened.check_served = None if watch is None else watch.check_served
        single[alias] = _with_pauses(opened, ready)
    return {
        alias: with_fallbacks(
            model, [single[name] for name in plan.models[alias].entry.fallback if name in single]
        )
        for alias, model in single.items()
    }


def _with_pauses(model: Model, resolved: ResolvedModel) -> Model:
    if not WIRES[resolved.entry.api].pauses:
        return model
    from aish.models.turn_pause import PausableModel  # few wires need it

    return PausableModel((model,))


def _pace(environment: RunEnvironment) -> RetryTiming:
    if environment.recorder is None:
        return RetryTiming()
    return environment.recorder.retry_timing()


def _client(
    model: ResolvedModel, environment: RunEnvironment, make_client: MakeClient
) -> MakeClient:
    if environment.recorder is None:
        return make_client
    return environment.recorder.make_client(model, make_client)


async def _open_delivery(
    model: ResolvedModel,
    secret: "RenewedSecret | None",
    environment: RunEnvironment,
    pace: RetryTiming,
    stack: AsyncExitStack,
) -> MakeClient:
    """Opens clients that ask a model by batches, in the place of connections."""
    from aish.models.batch_delivery import DeliveryPlace, open_delivery

    name = environment.prefix + model.entry.alias
    place = DeliveryPlace(
        name, environment.folder.id, environment.batches, environment.emit, environment.note_idle
    )
    delivery = open_delivery(model.entry, model.key, secret, place, pace)
    recorder = environment.recorder
    asks = recorder is not None and recorder.asks_only_models
    # What collects requests is a task of its own.
    with permit_attempts() if asks else nullcontext():
        return (await stack.enter_async_context(delivery)).make_client


async def _start_if_embedded(
    resolved: ResolvedModel, environment: RunEnvironment, reaper: Reaper, stack: AsyncExitStack
) -> ResolvedModel:
    if environment.recorder is not None:
        unstarted = environment.recorder.unstarted(resolved)
        if unstarted is not None:
            return unstarted
    from aish.models.embedded import start_embedded

    with permit_attempts():
        server = await stack.enter_async_context(
            start_embedded(resolved.entry, reaper=reaper, folder=environment.folder.path)
        )
    return replace(resolved, entry=server.entry, key=server.key)
