"""The tool servers of a plan, open. Imported only by runs that have any (docs/performance.md)."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from anyio import CancelScope

from aish.config.model import ServerEntry, ServerSandbox
from aish.core.errors import UsageError
from aish.core.events import NOWHERE, Level, Notice
from aish.core.frozen import frozen
from aish.core.protocols import Emit
from aish.engine.environment import RunEnvironment
from aish.engine.plan.credentials import ResolvedServer, origin
from aish.engine.plan.plan import Plan, own_files
from aish.engine.run_folder import RunsPlace
from aish.mcp.client.registry import Registry, open_registry
from aish.mcp.client.server_requests import Elicit
from aish.mcp.transports.settings import ServerConnection
from aish.system.process.reaper import Reaper
from aish.system.task_group import task_group

if TYPE_CHECKING:
    from aish.mcp.client.dynamic_registry import DynamicRegistry, OnSettled
    from aish.mcp.transports.package_store import PackageUse
    from aish.packs.framework.pack import FileModel, PackServices

_LEVELS: Mapping[str, Level] = {
    "sandbox_missing": "security",
    "sandbox_refused": "info",
    "sandbox_slow": "info",
    "fetched": "info",
}
"""Notices that are no warnings: less is kept from a server than a file asks for, or just that."""


@asynccontextmanager
async def open_servers(
    plan: Plan, environment: RunEnvironment, reaper: Reaper
) -> AsyncGenerator[Registry]:
    """Connect to the servers, all at once; replayed ones are not contacted.

    Raises:
        UsageError: two tools share a name, or a pack's root is not allowed.
        CassetteMissError: the cassette does not hold a request to a server.
    """
    adapter = None if environment.recorder is None else environment.recorder.server_adapter()
    replayed = adapter is not None and adapter.replays
    children = not replayed and any(server.entry.command for server in plan.servers)
    async with AsyncExitStack() as stack:
        connections: list[ServerConnection] = []
        services = None
        if not replayed and any(server.entry.pack for server in plan.servers):
            services = await stack.enter_async_context(pack_services(plan, environment, reaper))
        for server in plan.servers:
            connection = _connection(server, plan, services, environment, reaper)
            connections.append(connection)
            if connection.let_go is not None:
                stack.push_async_callback(connection.let_go)
        if environment.opening is not None and not replayed:
            environment.opening([*beginnings(plan, environment.prefix)])
        yield await stack.enter_async_context(
            open_registry(
                connections,
                reaper=reaper,
                logs=environment.folder.logs if children else None,
                max_tool_name=tool_name_limit(plan),
                notice=_noticer(environment.emit),
                secrets=plan.secrets,
                adapter=adapter,
            )
        )


def beginnings(plan: Plan, prefix: str = "") -> Iterator[str]:
    """Describe the start of each server that may take long, which no pack does."""
    for server in plan.servers:
        if not server.entry.pack:
            verb = "starting" if server.entry.command else "connecting to"
            yield f"{verb} server {prefix}{server.entry.alias}"


@frozen
class LiveServers:
    """The servers of a session; initially those of the plan."""

    dynamic_registry: "DynamicRegistry"
    plan: Plan
    services: "PackServices | None"
    environment: RunEnvironment
    reaper: Reaper

    def connection(self, server: ResolvedServer) -> ServerConnection:
        """A connector to the server; its registry closes what it opens.

        Raises:
            UsageError: a pack's root is not allowed.
        """
        return _connection(server, self.plan, self.services, self.environment, self.reaper)

    def for_plan(self, plan: Plan, environment: RunEnvironment) -> "LiveServers":
        """A copy of the registry for servers of another plan with the same secrets."""
        services = self.services
        if services is not None:
            services = replace(services, **_of_plan(plan, environment))
        return replace(self, plan=plan, services=services)


@asynccontextmanager
async def open_live_servers(
    plan: Plan,
    environment: RunEnvironment,
    reaper: Reaper,
    elicit: Elicit | None,
    on_settled: "OnSettled",
) -> AsyncGenerator[LiveServers]:
    """A registry without servers; those added later are closed when the block ends."""
    adapter = None if environment.recorder is None else environment.recorder.server_adapter()
    from aish.mcp.client.dynamic_registry import open_dynamic_registry

    async with AsyncExitStack() as stack:
        services = None
        if adapter is None or not adapter.replays:
            services = await stack.enter_async_context(pack_services(plan, environment, reaper))
        dynamic_registry = await stack.enter_async_context(
            open_dynamic_registry(
                reaper=reaper,
                logs=environment.folder.logs,
                max_tool_name=tool_name_limit(plan),
                notice=_noticer(environment.emit),
                on_settled=on_settled,
                elicit=elicit,
                secrets=plan.secrets,
                adapter=adapter,
            )
        )
        yield LiveServers(dynamic_registry, plan, services, environment, reaper)


def tool_name_limit(plan: Plan) -> int:
    """The least of all models, so that `-m` and commands without one see the same names."""
    return min((entry.max_tool_name for entry in plan.pipeline.models.values()), default=64)


@asynccontextmanager
async def pack_services(
    plan: Plan, environment: RunEnvironment, reaper: Reaper
) -> "AsyncGenerator[PackServices]":
    """Open the services of a run's packs; packs are closed before them."""
    from aish.packs.framework.pack import PackServices
    from aish.packs.parse_worker import ParseWorker

    worker = ParseWorker(reaper)

    def notice(code: str, text: str) -> None:
        environment.emit(Notice(NOWHERE, "warning", code, text))

    async with task_group() as tasks:
        try:
            yield PackServices(
                tasks=tasks,
                reaper=reaper,
                worker=worker,
                environ=environment.environ,
                run_folder=environment.folder.path,
                notice=notice,
                mask=plan.secrets.mask,
                run_secrets=plan.secrets,
                recorded_files=_recorded_files(environment),
                follow=environment.follow,
                project=plan.pipeline.file.parent,
                run_id=environment.folder.id,
                steps=tuple(step.id for step in plan.steps),
                servers=tuple(server.entry.alias for server in plan.servers),
                **_of_plan(plan, environment),
            )
        finally:
            with CancelScope(shield=True):
                await worker.close()


class _PlanServices(TypedDict):
    secrets: Mapping[str, str]
    own_files: frozenset[Path]
    models: "Mapping[str, FileModel]"
    default_model: str | None
    runs: Path


def _of_plan(plan: Plan, environment: RunEnvironment) -> _PlanServices:
    secrets = {name: value for server in plan.servers for name, value in server.named.items()}
    from aish.packs.framework.pack import FileModel

    models: dict[str, FileModel] = {}
    for alias, entry in plan.pipeline.models.items():
        resolved = plan.models.get(alias)
        own = entry if resolved is None else resolved.entry
        problem = plan.unusable.get(alias, "")
        models[alias] = FileModel(origin(own), problem, has_proxy=own.proxy is not None)
    return {
        "secrets": secrets,
        "own_files": own_files(plan) | environment.own_files | _recorded_files(environment),
        "models": models,
        "default_model": plan.default_model,
        "runs": _runs(plan, environment),
    }


def _runs(plan: Plan, environment: RunEnvironment) -> Path:
    """The folder of past runs: where this one is kept, unless that is a place of other things."""
    usual = RunsPlace(plan.pipeline.file.parent).runs
    own = environment.folder.path
    elsewhere = own is not None and own.parent.parent.resolve() != usual.parent.resolve()
    return own.parent if own is not None and elsewhere else usual


def _connection(
    server: ResolvedServer,
    plan: Plan,
    services: "PackServices | None",
    environment: RunEnvironment,
    reaper: Reaper,
) -> ServerConnection:
    connection = ServerConnection(entry=server.entry, token=server.token, login=server.login)
    if server.made:
        from aish.engine.resources.made_keys import made_headers

        made = made_headers(server.made, plan.secrets, reaper, environment)
        connection = replace(connection, made=made)
    if services is None and server.entry.pack:
        # A pack of a server that is only replayed would access the disk.
        return connection
    connection = replace(connection, child_env=server.child_env)
    if server.entry.command[:1] in {("npx",), ("uvx",)}:
        connection = replace(connection, package=_package(server.entry, plan, environment))
    if server.entry.sandbox is not None:
        own = own_files(plan) | environment.own_files | _recorded_files(environment)
        connection = replace(
            connection,
            own_files=own,
            runs=_runs(plan, environment),
            given=_resolve_folders(server.entry.sandbox),
        )
    if services is None or not server.entry.pack:
        return connection
    from aish.packs.framework.server import open_packs

    try:
        pack = open_packs(
            server.entry.pack,
            server.entry.root,
            services,
            options=server.entry.options,
            allow_broad_root=plan.allow_broad_root,
        )
    except UsageError as error:
        error.where = error.where or f"mcp server `{server.entry.alias}`"
        raise
    return replace(connection, pack=pack, let_go=pack.shutdown)


def _package(entry: ServerEntry, plan: Plan, environment: RunEnvironment) -> "PackageUse | None":
    """The package that the launcher of a server would fetch, unless a variable names it."""
    from aish.mcp.transports.package_store import PackageUse, package_spec

    cwd = entry.cwd or Path.cwd()
    written = plan.pipeline.servers.get(entry.alias, entry)
    spec = package_spec(entry.command, cwd)
    if spec is None or package_spec(written.command, cwd) is None:
        return None
    return PackageUse(
        spec,
        (plan.lock.packages if plan.lock is not None else plan.pinned).get(entry.alias),
        environment.environ,
        plan.pipeline.file,
        may_fetch=plan.may_fetch,
        enforced=plan.lock_mode != "warn",
    )


def _resolve_folders(sandbox: ServerSandbox) -> Mapping[Path, Path]:
    """Resolve the paths of a sandbox: once servers run, one could put links in their way."""
    given: dict[Path, Path] = {}
    for path in (*sandbox.read, *sandbox.write):
        with suppress(OSError, RuntimeError):  # it is missing: its server is not started
            given[path] = path.resolve(strict=True)
    return given


def _recorded_files(environment: RunEnvironment) -> frozenset[Path]:
    return frozenset() if environment.recorder is None else environment.recorder.files


def _noticer(emit: Emit) -> Callable[[str, str, str], None]:
    def notice(alias: str, code: str, text: str) -> None:
        emit(Notice(NOWHERE, _LEVELS.get(code, "warning"), code, f"mcp {alias}: {text}"))

    return notice
