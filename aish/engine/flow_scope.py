"""The files of a run as they judge calls, and what its earlier parts left at its places."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from aish.core.sources import Sources
from aish.core.tools import Tool, ToolName
from aish.engine.plan.flow_files import flow_file
from aish.engine.plan.plan import Plan
from aish.engine.plan.validation.names import SERVED
from aish.policy.flow import FlowFile, FlowPolicy, RunFlow, ServerFacts


def file_of_plan(plan: Plan) -> FlowFile:
    return flow_file(plan.pipeline, plan.lock if plan.lock_mode == "enforce" else None)


def run_flow(plan: Plan, given: Mapping[str, Sources], around: RunFlow | None = None) -> RunFlow:
    """The flow of a run, whose earlier parts have `given` text to tools by their names.

    `around` is that of the server or session which executes it.
    """
    family = tuple(_files(plan))
    flow = RunFlow(FlowPolicy(family[0], family=family), {}, set())
    if around is not None:
        flow = around.inner(family[0], family)
    for name, sources in given.items():
        alias, _, tool = name.partition("__")
        called = Tool(ToolName(alias, tool), name, "", {})
        files = [file for file in family if alias in file.servers] or family
        for place in {file.place(called) for file in files} - {None}:
            flow.write(str(place), sources)
    return flow


def served_flow(plan: Plan, pipelines: Iterable[Plan], places: dict[str, Sources]) -> RunFlow:
    """The flow of the calls of a server's clients, with the labels of the files that it serves."""
    own, *others = _files(plan)
    # Calls of a pipeline are judged by this file too, so a call of the pipeline itself is not.
    pipeline = ServerFacts(holds_own_calls=True)
    own = replace(own, servers={**own.servers, SERVED: pipeline})
    served = (file for one in pipelines for file in _files(one))
    return RunFlow(FlowPolicy(own, family=(own, *others, *served)), places, set())


def _files(plan: Plan) -> Iterator[FlowFile]:
    yield file_of_plan(plan)
    for inner in plan.inner.values():
        yield from _files(inner)
