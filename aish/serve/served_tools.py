"""All tools that clients are offered: those of servers and packs, and the pipelines of the file."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyio.abc import TaskGroup

from aish.core.json import JsonObject
from aish.core.protocols import Clock, Emit, Progress
from aish.core.tools import Tool, ToolName, ToolResult
from aish.engine.resources.toolbox import AllTools
from aish.mcp.client.registry import Registry
from aish.system.task_group import task_group

if TYPE_CHECKING:
    # Most hubs serve no pipelines, and import nothing that runs them.
    from aish.serve.pipeline_tools import OfferedPipeline, OnRun, PipelineRuns


class ServedTools:
    """Lists and calls them; pipelines come after the tools of all servers."""

    def __init__(
        self, tools: AllTools, registry: Registry, clock: Clock, emit: Emit, tasks: TaskGroup
    ) -> None:
        self._tools = tools
        self._registry = registry
        self._clock = clock
        self._emit = emit
        self._tasks = tasks
        self._pipelines: dict[ToolName, OfferedPipeline] = {}
        self._runs: PipelineRuns | None = None

    def offer(self, pipelines: Iterable["OfferedPipeline"], limit: int) -> None:
        """Offer these pipelines from now on; runs under way are not affected."""
        self._pipelines = {one.tool.name: one for one in pipelines}
        if self._pipelines and self._runs is None:
            from aish.serve.pipeline_tools import PipelineRuns

            self._runs = PipelineRuns(limit, self._clock, self._emit, self._tasks)

    def listed(self) -> tuple[Tool, ...]:
        """Every tool, in the order of the file."""
        return (*self._tools.listed(), *(one.tool for one in self._pipelines.values()))

    def by_name(self, name: ToolName) -> Tool | None:
        """A tool as it is defined now."""
        found = self._pipelines.get(name)
        return self._tools.by_name(name) if found is None else found.tool

    def row(self, tool: Tool) -> JsonObject:
        """What is said of a tool in a list, under its own name."""
        found = self._pipelines.get(tool.name)
        return self._registry.row(tool) if found is None else found.row

    async def forward(
        self, tool: Tool, arguments: JsonObject, report: Callable[[Progress], None], on_run: "OnRun"
    ) -> JsonObject | ToolResult:
        """The result of a call; every failure is one. `on_run` hears of the run of a pipeline.

        Only cancellation propagates, and a fault of ours.
        """
        found = self._pipelines.get(tool.name)
        if found is None or self._runs is None:
            return await self._tools.forward(tool, arguments, report)
        if found.tool != tool:
            return ToolResult("denied", f"[aish] tool call denied: {tool.name} has changed")
        return await self._runs.call(found, arguments, report, on_run)

    async def end(self) -> None:
        """End the runs that are left, as SIGTERM does."""
        if self._runs is not None:
            await self._runs.end()


@asynccontextmanager
async def open_served_tools(
    tools: AllTools, registry: Registry, clock: Clock, emit: Emit
) -> AsyncGenerator[ServedTools]:
    """The tools of a hub; runs that are left at the end of the block are ended."""
    async with task_group() as tasks:
        found = ServedTools(tools, registry, clock, emit, tasks)
        try:
            yield found
        finally:
            await found.end()
            tasks.cancel_scope.cancel()
