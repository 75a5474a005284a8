"""What a lock tells of a file before a server is asked: tools, arguments, stale pins (F11, P8)."""

from collections.abc import Iterable, Iterator, Mapping

from aish.config.pipeline import Pipeline
from aish.config.steps import CallStep, PromptStep
from aish.core.errors import did_you_mean
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import Tool, ToolName
from aish.packs.catalogue import OLDER_NAMES
from aish.policy.globs import split_glob
from aish.policy.lock import Lock, address_differences, stale_differences
from aish.policy.rules import LOCAL_COMMAND, matches_tool
from aish.run.checks.complaint import Complaint, step_path, within
from aish.run.locks.file import is_ignored
from aish.run.locks.pins import declared, known_servers, locked_tool_named, names_of
from aish.run.locks.words import summary
from aish.system.globs import matches_word
from aish.system.schema.walk import SchemaProblem, spell_path
from aish.system.secrets.secrets import Secrets
from aish.templates.plain import is_template

Path = tuple[str | int, ...]
_KEYS = frozenset({"required", "additionalProperties"})


@frozen
class _Known:
    """Servers that are pinned as they are, and the names of their tools."""

    servers: frozenset[str]
    names: frozenset[ToolName]

    def lacks(self, name: ToolName) -> bool:
        """Whether there certainly is no such tool."""
        return name.server in self.servers and name not in self.names

    def matches_none(self, glob: str) -> bool:
        """Whether a glob certainly matches no tool."""
        server, _ = split_glob(glob)
        if matches_word(server, LOCAL_COMMAND.server) or not self.servers:
            return False
        return not any(matches_tool(glob, name) for name in self.names)

    def near(self, name: str) -> str | None:
        """The hint with the nearest known tool."""
        return did_you_mean(name, map(str, sorted(self.names, key=str)))


def locked_complaints(pipeline: Pipeline, lock: Lock) -> Iterator[Complaint]:
    """What cannot work with the tools that are locked: steps that name others, or misuse them."""
    known = _known(pipeline, lock)
    for index, step in enumerate(pipeline.steps):
        path = step_path(index, listed="steps" in pipeline.data)
        named = _named(step)
        if named is None or "__" not in named[1].strip("_"):
            continue
        name = ToolName(*split_glob(named[1]))
        if known.lacks(name):
            hint = known.near(str(name)) or f"`aish lock {pipeline.file} --update`, if it is new"
            message = f"`{name}` is not among the tools that are locked"
            yield Complaint(within(path, named[0]), message, hint)
        elif isinstance(step, CallStep):
            yield from _arguments(step, name, within(path, "with"), pipeline, lock)


def stale_complaints(pipeline: Pipeline, lock: Lock) -> Iterator[Complaint]:
    """What is merely odd: rules and globs that match no locked tool, pins the file has outgrown."""
    known = _known(pipeline, lock)
    everything = known.servers >= set(pipeline.servers)
    globs = [(rule.tool, rule.path) for rule in pipeline.rules.all]
    globs += [(test.tool, f"{test.path}.tool") for test in pipeline.policy_tests]
    for index, step in enumerate(pipeline.steps):
        path = step_path(index, listed="steps" in pipeline.data)
        shown = step.tools or () if isinstance(step, PromptStep) else ()
        globs += [(glob, within(path, f"tools[{n}]")) for n, glob in enumerate(shown)]
    yield from _let_in(pipeline, lock, known)
    for glob, place in globs if everything else ():
        if known.matches_none(glob):
            message = f"`{glob}` matches none of the tools that are locked"
            yield Complaint(place, message, known.near(glob), warning=True)
    yield from _outgrown(pipeline, lock)


def _let_in(pipeline: Pipeline, lock: Lock, known: _Known) -> Iterator[Complaint]:
    """What the `tools` of a server let in now and the lock does not have."""
    for alias in sorted(known.servers):
        entry, pins = pipeline.servers[alias], lock.servers[alias].tools
        names = {*pins, *(old for old, own in OLDER_NAMES.items() if entry.pack and own in pins)}
        for n, glob in enumerate(entry.tools):
            if not any(matches_word(glob, name) for name in names):
                message = f"`{glob}` matches none of the tools that are locked of `{alias}`"
                near = did_you_mean(glob, sorted(names))
                hint = near or f"`aish lock {pipeline.file} --update`, once it was looked at"
                yield Complaint(f"mcp.servers.{alias}.tools[{n}]", message, hint, warning=True)


def locked_misfits(tool: Tool | None, arguments: JsonObject) -> list[str]:
    """In what arguments do not fit the schema of a locked tool, as far as that is told here."""
    from aish.system.schema.check import check, is_simple

    if tool is None or not is_simple(tool.input_schema):
        return []
    return [str(problem) for problem in check(tool.input_schema, arguments)]


def _outgrown(pipeline: Pipeline, lock: Lock) -> Iterator[Complaint]:
    """What the file says now and did not say when it was locked."""
    now = declared(pipeline, Secrets())
    prompts = {
        step.id: within(step_path(index, listed="steps" in pipeline.data), "prompt")
        for index, step in enumerate(pipeline.steps)
    }
    for found in (*address_differences(lock, now), *stale_differences(lock, now)):
        if is_ignored(found, pipeline):
            continue
        hint = f"`aish lock {pipeline.file} --update`, once it was looked at"
        paths = {"server": f"mcp.servers.{found.name}", "model": f"models.{found.name}"}
        path = paths.get(found.kind) or prompts.get(found.name, "")
        yield Complaint(path, f"the lock: {summary(found)}", hint, warning=True)


def _named(step: object) -> tuple[str, str] | None:
    """The key and the name of the one tool that a step names in full."""
    match step:
        case CallStep(call=call):
            return "call", call
        case PromptStep(tool_choice=choice):
            return "tool_choice", choice
    return None


def _known(pipeline: Pipeline, lock: Lock) -> _Known:
    servers = known_servers(pipeline, lock)
    names = (
        ToolName(alias, name)
        for alias in servers
        for name in names_of(pipeline.servers[alias], lock.servers[alias])
    )
    return _Known(frozenset(servers), frozenset(names))


def _arguments(
    step: CallStep, name: ToolName, path: str, pipeline: Pipeline, lock: Lock
) -> Iterator[Complaint]:
    """What is wrong with arguments that are written out; templates may become anything."""
    from aish.system.schema.check import check, is_simple

    tool = locked_tool_named(name, pipeline, lock)
    if tool is None or not is_simple(tool.input_schema):
        return
    arguments: JsonValue = dict(step.arguments)
    open_ = tuple(_templates(arguments, ()))
    for problem in check(tool.input_schema, arguments):
        if _is_certain(problem, open_):
            place = f"{path}.{spell_path(problem.path)}" if problem.path else path
            message = f"does not fit the locked schema of `{name}`: {problem.message}"
            yield Complaint(place, message)


def _is_certain(problem: SchemaProblem, open_: Iterable[Path]) -> bool:
    """Whether a problem has nothing to do with what a template will become."""
    here = problem.path
    for place in open_:
        inside = here[: len(place)] == place
        around = place[: len(here)] == here and problem.keyword not in _KEYS
        if inside or around:
            return False
    return True


def _templates(value: JsonValue, path: Path) -> Iterator[Path]:
    """The places of templates in arguments."""
    if isinstance(value, str):
        if is_template(value):
            yield path
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _templates(inner, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _templates(inner, (*path, index))
