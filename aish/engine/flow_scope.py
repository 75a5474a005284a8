"""The files of a run as they judge calls, and the sources of its places."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from aish.core.frozen import frozen
from aish.core.sources import NO_SOURCES, Sources, union
from aish.core.tools import Tool, ToolName
from aish.engine.plan.flow_files import flow_file
from aish.engine.plan.plan import Plan
from aish.policy.flow import FlowFile, FlowPolicy, RunFlow


@frozen
class FlowScope:
    """Files and places that the parts of a run share: all its files, and the sources of its places.

    `above` are the files that run the one that is opened.
    """

    family: tuple[FlowFile, ...]
    places: dict[str, Sources]
    warned: set[tuple[str, str]]
    above: tuple[FlowFile, ...] = ()

    def open(self, plan: Plan) -> RunFlow:
        """Open the judge of the calls of one file."""
        own = file_of_plan(plan)
        return RunFlow(FlowPolicy(own, self.above, self.family), self.places, self.warned)

    def below(self, plan: Plan) -> "FlowScope":
        """The scope of the sub-pipelines of a file."""
        return replace(self, above=(file_of_plan(plan), *self.above))


def file_of_plan(plan: Plan) -> FlowFile:
    return flow_file(plan.pipeline, plan.lock if plan.lock_mode == "enforce" else None)


def flow_scope(plan: Plan, given: Mapping[str, Sources]) -> FlowScope:
    """The scope of a run, whose earlier parts have `given` text to tools by their names."""
    family = tuple(_files(plan))
    places: dict[str, Sources] = {}
    for name, sources in given.items():
        alias, _, tool = name.partition("__")
        called = Tool(ToolName(alias, tool), name, "", {})
        for place in {file.place(called) for file in family} - {None}:
            places[str(place)] = union((places.get(str(place), NO_SOURCES), sources))
    return FlowScope(family, places, set())


def _files(plan: Plan) -> Iterator[FlowFile]:
    yield file_of_plan(plan)
    for inner in plan.inner.values():
        yield from _files(inner)
