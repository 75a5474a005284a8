"""Older names of built-in tools and parameters in a file, translated before anything else (K10).

Rules, steps and tests then see the tool's own names, as calls do. A glob with a wildcard stays as
it is, but what forbids an older name on any server forbids the tool too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from aish.config.model import CallStep, Pipeline, PromptStep, ServerEntry, Step
from aish.core.json import JsonObject, JsonValue
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import ToolName
from aish.engine.plan.validation.issue import Issue, step_path, within
from aish.packs.catalogue import (
    PACKS,
    older_names,
    older_parameters,
    own_arguments,
    own_name,
    tool_marks,
)
from aish.policy.rules import Policy, compile_policy, is_exact
from aish.system.globs import matches_word

Servers = Mapping[str, ServerEntry]
Made = TypeVar("Made")


def has_packs(servers: Servers) -> bool:
    """Whether anything can have an older name here."""
    return any(entry.pack for entry in servers.values())


def own_tool(name: ToolName, servers: Servers) -> ToolName:
    """The own name of a built-in tool; any other name as it is."""
    entry = servers.get(name.server)
    return name if entry is None else ToolName(name.server, own_name(entry.pack, name.name))


def own_call(
    name: ToolName, arguments: JsonObject, servers: Servers
) -> tuple[ToolName, JsonObject]:
    """A call by its tool's own name, with the arguments under their own names.

    Raises:
        ValueError: a parameter is given under two names.
    """
    entry = servers.get(name.server)
    own = own_tool(name, servers)
    if entry is None or not entry.pack or own.name not in tool_marks():
        return name, arguments
    return own, own_arguments(name.name, own.name, arguments)


def own_rules(rules: RuleLists, servers: Servers) -> RuleLists:
    """The rules with own names only."""
    if not has_packs(servers):
        return rules
    forbidding = {"deny", "ask", "stage"}
    lists = {
        name: tuple(
            one
            for entry in getattr(rules, name)
            for one in _own_entries(entry, servers, forbids=name in forbidding)
        )
        for name in ("auto_approve", "ask", "deny", "parallel", "idempotent", "stage")
    }
    return RuleLists(**lists)


def own_pipeline(pipeline: Pipeline) -> tuple[Pipeline, tuple[Issue, ...]]:
    """The pipeline with own names only, and what cannot be translated."""
    servers = pipeline.servers
    if not has_packs(servers):
        return pipeline, ()
    issues: list[Issue] = [
        issue for rule in pipeline.rules.all for issue in _doubled(rule, servers)
    ]
    steps = tuple(
        _own_step(step, step_path(index, listed="steps" in pipeline.data), servers, issues)
        for index, step in enumerate(pipeline.steps)
    )
    tests = []
    for test in pipeline.policy_tests:
        name, arguments = _translated(
            test.tool, test.arguments, servers, f"{test.path}.arguments", issues
        )
        tests.append(replace(test, tool=name, arguments=arguments))
    translated = replace(
        pipeline,
        servers={alias: _own_server(entry) for alias, entry in servers.items()},
        rules=own_rules(pipeline.rules, servers),
        steps=steps,
        policy_tests=tuple(tests),
    )
    return translated, tuple(issues)


def _own_server(entry: ServerEntry) -> ServerEntry:
    if not any(pack in PACKS for pack in entry.pack):
        return entry

    def own(name: str) -> str:
        return own_name(entry.pack, name)

    return replace(
        entry,
        tools=tuple(map(own, entry.tools)),
        exclude=tuple(map(own, entry.exclude)),
        timeout=replace(
            entry.timeout,
            tools={own(name): seconds for name, seconds in entry.timeout.tools.items()},
        ),
    )


def _own_step(step: Step, path: str, servers: Servers, issues: list[Issue]) -> Step:
    match step:
        case CallStep():
            place = within(path, "with")
            name, arguments = _translated(step.call, step.arguments, servers, place, issues)
            return replace(step, call=name, arguments=arguments)
        case PromptStep() if step.tools is not None or "__" in step.tool_choice:
            tools = None if step.tools is None else tuple(_own(t, servers) for t in step.tools)
            return replace(step, tools=tools, tool_choice=_own(step.tool_choice, servers))
    return step


def _own(name: str, servers: Servers) -> str:
    server, separator, tool = name.partition("__")
    return str(own_tool(ToolName(server, tool), servers)) if separator else name


def _translated(
    name: str, arguments: JsonObject, servers: Servers, path: str, issues: list[Issue]
) -> tuple[str, JsonObject]:
    server, separator, tool = name.partition("__")
    if not separator:
        return name, arguments
    try:
        own, given = own_call(ToolName(server, tool), arguments, servers)
    except ValueError as error:
        issues.append(Issue(path, str(error)))
        return name, arguments
    return str(own), given


def _own_entries(entry: RuleEntry, servers: Servers, *, forbids: bool) -> Iterator[RuleEntry]:
    """The rule with own names; one that forbids also keeps what it says of other servers."""
    server, _, tool = entry.tool.partition("__")
    aliases = [alias for alias in servers if matches_word(server, alias)] if server else []
    owns = {own_tool(ToolName(alias, tool), servers).name for alias in aliases}
    if not aliases or (not is_exact(entry.tool) and not (forbids and is_exact(tool))):
        yield entry
        return
    if tool in owns or not is_exact(server):
        same = _with_own_parameters(entry, tool, tool)
        if not is_exact(server):
            yield entry
        if is_exact(server) or (tool in owns and same != entry):
            yield same
    for own in sorted(owns - {tool}):
        translated = _with_own_parameters(entry, tool, own)
        when = {**translated.when, **older_names()[tool].set}
        yield replace(translated, tool=f"{server}__{own}", when=when)


def _with_own_parameters(entry: RuleEntry, called: str, own: str) -> RuleEntry:
    """A rule about the tool `own` by the name `called`, with its conditions under own names."""
    if own not in tool_marks():
        return entry
    when = _own_when(entry.when, called, own)
    schema = entry.schema
    if schema is not None:
        older = older_names().get(called)
        names = {**older_parameters().get(own, {}), **(older.rename if older else {})}
        schema = _own_schema(schema, names, older.set if older else {})
    return replace(entry, when=when, schema=schema)


_SAME_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_NAMED = ("$defs", "definitions")


def _own_schema(
    schema: JsonObject, names: Mapping[str, str], added: Mapping[str, JsonValue]
) -> JsonObject:
    """A schema of arguments with own names; what an older name adds is no additional property."""

    def again(value: JsonValue) -> JsonValue:
        if isinstance(value, Mapping):
            return _own_schema(value, names, added)
        return [again(one) for one in value] if isinstance(value, (list, tuple)) else value

    found: dict[str, JsonValue] = dict(schema)
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, Mapping):
        own: dict[str, JsonValue] = {}
        for name, condition in properties.items():
            key = names.get(name, name)
            own[key] = {"allOf": [own[key], condition]} if key in own else condition
        found["properties"] = {**dict.fromkeys(added, True), **own}
    if isinstance(required, (list, tuple)):
        found["required"] = [
            names.get(one, one) if isinstance(one, str) else one for one in required
        ]
    for key in _SAME_PLACE:
        if key in found:
            found[key] = again(found[key])
    for key in _NAMED:
        if isinstance(named := found.get(key), Mapping):
            found[key] = {name: again(one) for name, one in named.items()}
    return found


def _doubled(rule: RuleEntry, servers: Servers) -> Iterator[Issue]:
    """A condition that names one parameter twice: as it stands it would never apply."""
    server, _, tool = rule.tool.partition("__")
    for alias in servers if rule.when else ():
        own = own_tool(ToolName(alias, tool), servers).name
        if not servers[alias].pack or not matches_word(server, alias) or own not in tool_marks():
            continue
        try:
            own_arguments(tool, own, rule.when)
        except ValueError as error:
            yield Issue(within(rule.path, "when"), str(error))
            return


def _own_when(when: Mapping[str, JsonValue], called: str, own: str) -> Mapping[str, JsonValue]:
    if not when:
        return when
    try:
        translated = own_arguments(called, own, when)
    except ValueError:
        # Both names, or one that the older name sets: an error of a file.
        return when
    older = older_names().get(called)
    added = older.set if older else {}
    return {key: value for key, value in translated.items() if key not in added}


def own_rule_entries(
    name: Literal["auto_approve", "deny"], entry: RuleEntry, servers: Servers
) -> tuple[RuleEntry, ...]:
    """A rule that a person gives in a session, with own names only."""
    if not has_packs(servers):
        return (entry,)
    return tuple(_own_entries(entry, servers, forbids=name == "deny"))


def policy_of(pipeline: Pipeline, *, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> Policy:
    """The rules of a pipeline with those of the command line (`--allow`, `--deny`).

    Raises:
        UsageError: a glob has no `__`.
    """
    given = RuleLists(
        auto_approve=tuple(RuleEntry(tool=glob, path="--allow") for glob in allow),
        deny=tuple(RuleEntry(tool=glob, path="--deny") for glob in deny),
    )
    added = own_rules(given, pipeline.servers)
    rules = pipeline.rules
    return compile_policy(
        replace(
            rules,
            auto_approve=rules.auto_approve + added.auto_approve,
            deny=rules.deny + added.deny,
        )
    )
