"""Checks the names under `mcp.exfiltration`, `mcp.flow` and `mcp.labels`."""

from collections.abc import Iterator, Sequence
from typing import get_args

from aish.config.model import Pipeline, RunStep
from aish.config.yaml_tree import join
from aish.core.sources import PLAIN_NAMES, Label, descriptions_of
from aish.engine.plan.validation.issue import STEPS, Issue, unknown_name
from aish.engine.plan.validation.tools import glob_issues, pack_tool_issues, rule_issues
from aish.policy.flow import CHANGES, SENDS
from aish.policy.rules import SEPARATOR, is_exact
from aish.system.globs import matches_word

_BY = ("mcp.servers", "inputs", *STEPS)


def flow_name_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """A problem for each name of a source, a label or a tool that the file does not have."""
    flows, labels = pipeline.flows, get_args(Label)
    for rule in flows.exfiltration.excepted if flows.exfiltration else ():
        yield from rule_issues(rule, pipeline)
    sources = _source_names(pipeline)
    for source in flows.labels:
        yield from _check_name(source, join("mcp.labels", source), sources, "source", pipeline)
    for entry in flows.flow:
        for index, source in enumerate(entry.sources):
            known = (*labels, *sources)
            yield from _check_name(source, f"{entry.path}.from[{index}]", known, "source", pipeline)
        for index, sink in enumerate(entry.sinks):
            path = f"{entry.path}.to[{index}]"
            yield from _check_name(sink, path, (SENDS, CHANGES), "tool", pipeline)
    for test in pipeline.policy_tests:
        for index, source in enumerate(test.read):
            yield from check_source(source, f"{test.path}.read[{index}]", pipeline)


def check_source(name: str, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    """A problem where the file has no source of a name."""
    yield from _check_name(name, path, _source_names(pipeline), "source", pipeline)


def _source_names(pipeline: Pipeline) -> tuple[str, ...]:
    """The sources of a file that are not results of tools."""
    return (
        *PLAIN_NAMES,
        *(f"inputs.{name}" for name in pipeline.inputs),
        *(f"steps.{step.id}" for step in pipeline.steps if isinstance(step, RunStep)),
        *pipeline.servers,
        *map(descriptions_of, pipeline.servers),
    )


def _check_name(
    name: str, path: str, known: Sequence[str], what: str, pipeline: Pipeline
) -> Iterator[Issue]:
    if SEPARATOR not in name:
        if not any(matches_word(name, one) for one in known):
            yield unknown_name(what, name, known, path, _BY)
        return
    yield from glob_issues(name, path, pipeline, local=True)
    server, _, tool = name.partition(SEPARATOR)
    if server in pipeline.servers and is_exact(tool):
        yield from pack_tool_issues(tool, path, pipeline.servers[server].pack)
