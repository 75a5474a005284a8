"""All tools offered to clients: those of servers and packs, and the pipelines of the file."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyio.abc import TaskGroup

from aish.core.errors import UsageError
from aish.core.json import JsonObject
from aish.core.protocols import Progress
from aish.core.tools import Tool, ToolName, ToolResult
from aish.engine.environment import RunEnvironment
from aish.engine.resources.toolbox import AllTools
from aish.mcp.client.connection import Server
from aish.mcp.client.registry import Registry
from aish.mcp.client.server_requests import Call
from aish.serve.offer.session_servers import SessionServers
from aish.serve.records.audit import Caller
from aish.system.task_group import task_group

if TYPE_CHECKING:
    from aish.policy.flow import RunFlow

    # Most hubs serve no pipelines, and import nothing that runs them.
    from aish.serve.offer.pipeline_tools import OfferedPipeline, OnRun, PipelineRuns, Recheck


class ServedTools:
    """Lists and calls the tools; pipelines come after the tools of all servers."""

    def __init__(
        self,
        own: AllTools,
        registry: Registry,
        sessions: SessionServers,
        shared: "_SharedRuns",
        pipelines: Iterable["OfferedPipeline"] = (),
    ) -> None:
        self.own = own
        """The tools of servers and packs."""
        self._registry = registry
        self._sessions = sessions
        self._shared = shared
        self._pipelines = {pipeline.tool.name: pipeline for pipeline in pipelines}

    def successor(
        self, own: AllTools, pipelines: Iterable["OfferedPipeline"], limit: int
    ) -> "ServedTools":
        """Return the tools of another file; running pipelines are not affected."""
        successor = ServedTools(own, self._registry, self._sessions, self._shared, pipelines)
        if successor._pipelines:
            self._shared.require(limit)
        return successor

    @property
    def pipelines(self) -> Iterable["OfferedPipeline"]:
        """The pipelines offered as tools."""
        return self._pipelines.values()

    def listed(self) -> tuple[Tool, ...]:
        """Every tool, in the order of the file."""
        return (*self.own.listed(), *(pipeline.tool for pipeline in self._pipelines.values()))

    def by_name(self, name: ToolName) -> Tool | None:
        """Return a tool as it is defined now."""
        pipeline = self._pipelines.get(name)
        return self.own.by_name(name) if pipeline is None else pipeline.tool

    def row(self, tool: Tool) -> JsonObject:
        """Return the row of a tool in a list, under its own name."""
        pipeline = self._pipelines.get(tool.name)
        return self._registry.row(tool) if pipeline is None else pipeline.row

    async def forward(
        self,
        caller: Caller,
        tool: Tool,
        arguments: JsonObject,
        call: Call,
        on_run: "OnRun",
        recheck: "Recheck",
        around: "RunFlow | None",
    ) -> JsonObject | ToolResult:
        """Return the result of a call, which may be an error. `on_run` gets the run of a pipeline.

        `around` are the sources that are followed here, with those of the call. `recheck` decides
        again about a call that had to wait. Only cancellation and bugs propagate.
        """
        pipeline = self._pipelines.get(tool.name)
        runs = self._shared.runs
        if pipeline is None or runs is None:
            server = await self._sessions.server(caller.session, tool.name.server)
            if isinstance(server, ToolResult):
                return server
            refused = None if server is None else await recheck()
            if refused is not None:
                return refused
            return await self.own.forward(tool, arguments, call, own=server)
        if pipeline.tool != tool:
            return ToolResult("denied", f"[aish] tool call denied: {tool.name} has changed")
        return await runs.call(caller.client, pipeline, arguments, call, on_run, recheck, around)

    async def connection(self, session: str, alias: str) -> Server | ToolResult | None:
        """Return the session's own connection to a server, or the reason why there is none.

        `None` is for servers with a shared connection.
        """
        return await self._sessions.server(session, alias)

    def close_session(self, session: str) -> None:
        """Close the connections of a session."""
        self._sessions.end(session)

    def answers_with_task(self, tool: Tool) -> bool:
        """Return true if a tool is a pipeline whose calls become tasks at once."""
        pipeline = self._pipelines.get(tool.name)
        return pipeline is not None and pipeline.entry.task

    async def resume(
        self,
        name: ToolName,
        run: str,
        report: Callable[[Progress], None],
        around: "RunFlow | None",
    ) -> JsonObject:
        """Resume the interrupted run of a pipeline, and return its result.

        Raises:
            AishError: it cannot be resumed.
        """
        pipeline = self._pipelines.get(name)
        if pipeline is None or self._shared.runs is None:
            raise UsageError(f"`{name}` is not offered any more")
        return await self._shared.runs.resume(pipeline, run, report, around)


class _SharedRuns:
    """The runs of pipelines of all files, created for the first file that has any."""

    def __init__(self, environment: RunEnvironment, tasks: TaskGroup) -> None:
        self.runs: PipelineRuns | None = None
        self._environment = environment
        self._tasks = tasks

    def require(self, limit: int) -> None:
        """Create the runs, unless they exist."""
        if self.runs is None:
            from aish.serve.offer.pipeline_tools import PipelineRuns

            self.runs = PipelineRuns(limit, self._environment, self._tasks)


@asynccontextmanager
async def open_served_tools(
    tools: AllTools, registry: Registry, sessions: SessionServers, environment: RunEnvironment
) -> AsyncGenerator[ServedTools]:
    """Open the tools of a hub; at the end of the block remaining runs are ended as by SIGTERM."""
    async with task_group() as tasks:
        shared = _SharedRuns(environment, tasks)
        try:
            yield ServedTools(tools, registry, sessions, shared)
        finally:
            if shared.runs is not None:
                await shared.runs.end()
            tasks.cancel_scope.cancel()
