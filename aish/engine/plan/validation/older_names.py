"""Older names of built-in tools and parameters in a file, translated before anything else.

Rules, steps and tests then see the tool's own names, as calls do. A glob with a wildcard stays as
it is, but what forbids an older name on any server forbids the tool too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from aish.config.inputs import fits
from aish.config.model import CallStep, Pipeline, PromptStep, ServerEntry, Step
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import ToolName
from aish.engine.plan.validation.issue import Issue, steps_with_paths, within
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
    """Return true if anything can have an older name here."""
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
    """Rewrite the rules with own names only."""
    if not has_packs(servers):
        return rules
    forbidding = {"deny", "ask", "stage"}
    lists = {
        name: tuple(
            rule
            for entry in getattr(rules, name)
            for rule in _own_entries(entry, servers, forbids=name in forbidding)
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
        issue
        for rule in pipeline.rules.all
        for issue in (*_duplicate_issues(rule, servers), *_untranslatable(rule, servers))
    ]
    steps = tuple(
        _own_step(step, path, servers, issues) for path, step in steps_with_paths(pipeline)
    )
    tests = []
    for test in pipeline.policy_tests:
        name, arguments = _translate(
            test.tool, test.arguments, servers, f"{test.path}.arguments", issues
        )
        tests.append(replace(test, tool=name, arguments=arguments))

    def own(globs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_own(glob, servers) for glob in globs)

    clients = tuple(replace(client, tools=own(client.tools)) for client in pipeline.serve.clients)
    translated = replace(
        pipeline,
        servers={alias: _own_server(entry) for alias, entry in servers.items()},
        rules=own_rules(pipeline.rules, servers),
        serve=replace(pipeline.serve, tools=own(pipeline.serve.tools), clients=clients),
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
            name, arguments = _translate(step.call, step.arguments, servers, place, issues)
            return replace(step, call=name, arguments=arguments)
        case PromptStep() if step.tools is not None or "__" in step.tool_choice:
            tools = None if step.tools is None else tuple(_own(t, servers) for t in step.tools)
            return replace(step, tools=tools, tool_choice=_own(step.tool_choice, servers))
    return step


def _own(name: str, servers: Servers) -> str:
    server, separator, tool = name.partition("__")
    return str(own_tool(ToolName(server, tool), servers)) if separator else name


def _translate(
    name: str, arguments: JsonObject, servers: Servers, path: str, issues: list[Issue]
) -> tuple[str, JsonObject]:
    server, separator, tool = name.partition("__")
    if not separator:
        return name, arguments
    try:
        own, values = own_call(ToolName(server, tool), arguments, servers)
    except ValueError as error:
        issues.append(Issue(path, str(error)))
        return name, arguments
    return str(own), values


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
        schema = _name_changes(called, own).table(schema)
    return replace(entry, when=when, schema=schema)


@frozen
class _Renamed:
    """Older names of parameters with the own ones, and what the older name of a tool sets."""

    names: Mapping[str, str]
    added: Mapping[str, JsonValue]

    def name(self, value: JsonValue) -> JsonValue:
        """A name as the own one; anything else as it is."""
        return self.names.get(value, value) if isinstance(value, str) else value

    def each(self, value: JsonValue) -> JsonValue:
        return [*map(self.name, value)] if isinstance(value, (list, tuple)) else value

    def arguments(self, value: JsonValue) -> JsonValue:
        """Whole arguments, as in `const`."""
        if not isinstance(value, Mapping):
            return value
        return {**self.added, **{self.names.get(key, key): schema for key, schema in value.items()}}

    def alternatives(self, value: JsonValue) -> JsonValue:
        """Whole arguments in a list, as in `enum`."""
        return [*map(self.arguments, value)] if isinstance(value, (list, tuple)) else value

    def count(self, value: JsonValue) -> JsonValue:
        """A number of arguments."""
        return value + len(self.added) if isinstance(value, int) else value

    def properties(self, value: JsonValue) -> JsonValue:
        """Conditions by name; what an older name adds is no additional property."""
        if not isinstance(value, Mapping):
            return value
        own: dict[str, JsonValue] = {}
        for name, condition in value.items():
            key = self.names.get(name, name)
            own[key] = {"allOf": [own[key], condition]} if key in own else condition
        return {**dict.fromkeys(self.added, True), **own}

    def dependent(self, value: JsonValue) -> JsonValue:
        """Rename in a requirement of a given argument: names, or a schema."""
        if not isinstance(value, Mapping):
            return value
        return {
            self.names.get(key, key): self.each(schema)
            if isinstance(schema, (list, tuple))
            else self.schema(schema)
            for key, schema in value.items()
        }

    def property_names(self, value: JsonValue) -> JsonValue:
        """A schema that every name has to fit."""
        known = _of_names(value, self.names)
        return {"anyOf": [known, {"enum": [*self.added]}]} if self.added else known

    def schema_map(self, value: JsonValue) -> JsonValue:
        """Schemas by a name of their own."""
        if not isinstance(value, Mapping):
            return value
        return {name: self.schema(schema) for name, schema in value.items()}

    def table(self, schema: JsonObject) -> JsonObject:
        """A schema of arguments with own names."""
        return {
            key: _TRANSLATED[key](self, item) if key in _TRANSLATED else item
            for key, item in schema.items()
        }

    def schema(self, value: JsonValue) -> JsonValue:
        """The same, of a schema, a list of them, or `true` and `false`."""
        if isinstance(value, Mapping):
            return self.table(value)
        return [self.schema(item) for item in value] if isinstance(value, (list, tuple)) else value


_SAME_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_NAMED = ("$defs", "definitions")
_BY_NAME = ("dependentRequired", "dependentSchemas", "dependencies")
_TRANSLATED: Mapping[str, Callable[[_Renamed, JsonValue], JsonValue]] = {
    **dict.fromkeys(_SAME_PLACE, _Renamed.schema),
    **dict.fromkeys(_NAMED, _Renamed.schema_map),
    **dict.fromkeys(_BY_NAME, _Renamed.dependent),
    "properties": _Renamed.properties,
    "required": _Renamed.each,
    "propertyNames": _Renamed.property_names,
    "const": _Renamed.arguments,
    "enum": _Renamed.alternatives,
    "minProperties": _Renamed.count,
    "maxProperties": _Renamed.count,
}
"""Keywords that name arguments, and how their values are translated."""


def _name_changes(called: str, own: str) -> _Renamed:
    """The arguments renamed and set where the tool `own` is called `called`."""
    older = older_names().get(called)
    names = {**older_parameters().get(own, {}), **(older.rename if older else {})}
    return _Renamed(names, older.set if older else {})


def _of_names(schema: JsonValue, names: Mapping[str, str]) -> JsonValue:
    """A schema that names of parameters have to fit, with own names."""
    if isinstance(schema, (list, tuple)):
        return [_of_names(item, names) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    copy: dict[str, JsonValue] = dict(schema)
    if isinstance(name := copy.get("const"), str):
        copy["const"] = names.get(name, name)
    if isinstance(listed := copy.get("enum"), (list, tuple)):
        copy["enum"] = [names.get(item, item) if isinstance(item, str) else item for item in listed]
    for key in _SAME_PLACE:
        if key in copy:
            copy[key] = _of_names(copy[key], names)
    return copy


def _untranslatable(rule: RuleEntry, servers: Servers) -> Iterator[Issue]:
    """Patterns of a schema that mean an older name of a parameter: they cannot be translated."""
    server, _, tool = rule.tool.partition("__")
    for alias in servers if rule.schema is not None else ():
        own = own_tool(ToolName(alias, tool), servers).name
        if not servers[alias].pack or not matches_word(server, alias) or own not in tool_marks():
            continue
        renamed = _name_changes(tool, own)
        for key, pattern in _patterns(rule.schema):
            if why := _pattern_conflict(pattern, renamed, tool, own):
                hint = "a pattern is not translated: write it for the names that `aish tools` shows"
                yield Issue(within(within(rule.path, "schema"), key), why, hint=hint)
                return


def _pattern_conflict(pattern: str, renamed: _Renamed, called: str, own: str) -> str | None:
    """Why a pattern over names cannot stay as it is, or `None`."""
    for older, name in renamed.names.items():
        if not fits({"pattern": pattern}, older) and fits({"pattern": pattern}, name):
            return (
                f"the pattern `{pattern}` takes in `{older}`, an older name of the parameter"
                f" `{name}` of `{own}`, and not that name"
            )
    for name in renamed.added:
        if not fits({"pattern": pattern}, name):
            return (
                f"the pattern `{pattern}` takes in `{name}`, which the older name `{called}` sets"
            )
    return None


def _patterns(schema: JsonValue) -> Iterator[tuple[str, str]]:
    """The patterns over names of parameters, each with the keyword that it is below."""
    if isinstance(schema, (list, tuple)):
        for item in schema:
            yield from _patterns(item)
    if not isinstance(schema, Mapping):
        return
    if isinstance(table := schema.get("patternProperties"), Mapping):
        yield from (("patternProperties", pattern) for pattern in table)
    yield from (("propertyNames", one) for one in _patterns_of_names(schema.get("propertyNames")))
    for key in _SAME_PLACE:
        yield from _patterns(schema.get(key))
    for key in (*_NAMED, *_BY_NAME):
        if isinstance(table := schema.get(key), Mapping):
            yield from _patterns([*table.values()])


def _patterns_of_names(schema: JsonValue) -> Iterator[str]:
    if isinstance(schema, (list, tuple)):
        for item in schema:
            yield from _patterns_of_names(item)
    if not isinstance(schema, Mapping):
        return
    if isinstance(pattern := schema.get("pattern"), str):
        yield pattern
    for key in _SAME_PLACE:
        yield from _patterns_of_names(schema.get(key))


def _duplicate_issues(rule: RuleEntry, servers: Servers) -> Iterator[Issue]:
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
