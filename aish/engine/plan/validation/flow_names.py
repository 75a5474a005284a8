"""Checks the names under `mcp.exfiltration`, `mcp.flow` and `mcp.labels`."""

from collections.abc import Iterator, Sequence
from typing import get_args

from aish.config.model import Pipeline, RunStep
from aish.config.yaml_tree import join
from aish.core.errors import did_you_mean
from aish.core.phrases import backticked
from aish.core.sources import PLAIN_NAMES, Label, descriptions_of
from aish.engine.plan.validation.issue import STEPS, Issue
from aish.engine.plan.validation.tools import rule_issues
from aish.packs.catalogue import is_builtin, tools_of
from aish.policy.flow import CHANGES, SENDS, alias_of
from aish.policy.rules import LOCAL_COMMAND, SEPARATOR, is_exact
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
            hint = did_you_mean(name, known) or f"{what}s: {backticked(known)}"
            yield Issue(path, f"unknown {what} `{name}`", hint, by=_BY)
        return
    server, tool = alias_of(name), name.partition(SEPARATOR)[2]
    aliases = (*pipeline.servers, LOCAL_COMMAND.server)
    if not any(matches_word(server, alias) for alias in aliases):
        hint = did_you_mean(server, aliases) or f"servers: {backticked(aliases)}"
        yield Issue(path, f"unknown server `{server}` in `{name}`", hint, by=_BY)
    entry = pipeline.servers.get(server)
    if entry is not None and is_builtin(entry.pack) and is_exact(tool):
        tools = [one for one, _ in tools_of(entry.pack)]
        if tool not in tools:
            near = did_you_mean(tool, tools)
            yield Issue(path, f"the server `{server}` has no tool `{tool}`", near, by=_BY)
