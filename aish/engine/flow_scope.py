"""The files of a run as they judge calls, and what its earlier parts left at its places."""

from collections.abc import Iterator, Mapping

from aish.core.sources import Sources
from aish.core.tools import Tool, ToolName
from aish.engine.plan.flow_files import flow_file
from aish.engine.plan.plan import Plan
from aish.policy.flow import FlowFile, FlowPolicy, RunFlow


def file_of_plan(plan: Plan) -> FlowFile:
    return flow_file(plan.pipeline, plan.lock if plan.lock_mode == "enforce" else None)


def run_flow(plan: Plan, given: Mapping[str, Sources]) -> RunFlow:
    """The flow of a run, whose earlier parts have `given` text to tools by their names."""
    family = tuple(_files(plan))
    flow = RunFlow(FlowPolicy(family[0], family=family), {}, set())
    for name, sources in given.items():
        alias, _, tool = name.partition("__")
        called = Tool(ToolName(alias, tool), name, "", {})
        for place in {file.place(called) for file in family} - {None}:
            flow.write(str(place), sources)
    return flow


def _files(plan: Plan) -> Iterator[FlowFile]:
    yield file_of_plan(plan)
    for inner in plan.inner.values():
        yield from _files(inner)
