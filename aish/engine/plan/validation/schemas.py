"""Checks of JSON Schemas, sub-pipelines and their inputs, and prompt openings."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aish.config.inputs import fits
from aish.config.model import (
    RETRIEVAL_PACK,
    RETRIEVAL_TOOL,
    Pipeline,
    PipelineStep,
    Prompt,
    PromptStep,
    Retrieval,
    ServerPrompt,
)
from aish.core.errors import UsageError, did_you_mean
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import ToolName
from aish.engine.plan.lock import is_wanted
from aish.engine.plan.order import reads, texts
from aish.engine.plan.uris import is_uri
from aish.engine.plan.validation.issue import (
    STEPS,
    Issue,
    missing_inputs,
    servers_hint,
    steps_with_paths,
    within,
)
from aish.policy.rules import compile_policy
from aish.system.schema.capacity import MOST_BITS, Capacity, OpenSchemaError
from aish.system.schema.check import TYPES, spell_path
from aish.templates.values import is_template


def schema_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Problems in the schemas of inputs, answers and rules."""
    for name, schema in pipeline.inputs.items():
        broken = list(bad_schema_issues(schema, f"inputs.{name}", "the input's schema"))
        yield from broken
        if not broken and "default" in schema:
            path = f"inputs.{name}.default"
            for problem in fits(schema, schema["default"]):
                place = f" at `{spell_path(problem.path)}`" if problem.path else ""
                yield Issue(path, f"the default does not fit its schema{place}: {problem.message}")
    for path, step in steps_with_paths(pipeline):
        if isinstance(step, PromptStep) and step.output is not None:
            place = within(path, "output.schema")
            broken = list(bad_schema_issues(step.output.schema, place, "the answer's schema"))
            yield from broken
            if step.output.release and not broken:
                yield from _release_issues(step.output.schema, place)
    for rule in pipeline.rules.all:
        if rule.schema is not None:
            yield from bad_schema_issues(rule.schema, f"{rule.path}.schema", "the rule's schema")


MOST_RELEASED = 32
"""Bits of an output that may lose labels."""


def _release_issues(schema: JsonObject, path: str) -> Iterator[Issue]:
    """The part of a schema by which an output holds too much to lose labels."""
    hint = (
        "leaves are boolean, null, `const`, `enum`, or integer with `minimum` and `maximum`; "
        "objects have `additionalProperties: false`, and arrays `maxItems`"
    )
    try:
        found = Capacity(schema)
    except OpenSchemaError as error:
        yield Issue(path, f"`release` needs a closed schema: {error}", hint)
        return
    if found.bits > MOST_RELEASED:
        many = f"more than {MOST_BITS - 1}" if found.bits == MOST_BITS else str(found.bits)
        yield Issue(
            path,
            f"`release` is for {MOST_RELEASED} bits at most, and the answer has {many}: most are "
            f"in `{found.largest_leaf()}`",
        )


def bad_schema_issues(schema: JsonObject, path: str, what: str) -> Iterator[Issue]:
    """Problems of an invalid schema; `what` names it in the message."""
    from aish.system.schema.metaschema import check_schema

    for problem in check_schema(schema):
        inner = spell_path(problem.path)
        place = f"{path}{'' if inner.startswith('[') or not inner else '.'}{inner}"
        name = _type_at(schema, problem.path)
        if name is None:
            yield Issue(place, f"{what} is not a JSON Schema: {problem.message}")
        else:
            hint = did_you_mean(name, TYPES) or f"types: {', '.join(sorted(TYPES))}"
            yield Issue(place, f"{what} is not a JSON Schema: unknown type `{name}`", hint)


def _type_at(schema: JsonValue, path: Sequence[str | int]) -> str | None:
    """The misspelt type that a path leads to, if there is one."""
    if not path or path[-1] != "type":
        return None
    value = schema
    for part in path:
        if isinstance(value, Mapping) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, Sequence) and isinstance(part, int):
            value = value[part]
    return value if isinstance(value, str) else None


def circle_issue(step: PipelineStep, path: str, trail: tuple[Path, ...]) -> Issue | None:
    """A file that runs itself, directly or through others."""
    file = step.file.resolve()
    if file not in trail:
        return None
    names = [inner_file.name for inner_file in (*trail[trail.index(file) :], file)]
    circle = " → ".join(f"`{name}`" for name in names)
    return Issue(within(path, "pipeline"), f"circular dependency between pipelines: {circle}")


def inner_issues(
    step: PipelineStep, path: str, inner: Pipeline, outer: Pipeline
) -> Iterator[Issue]:
    """Problems in inputs of a sub-pipeline, and its parts that are unreachable from outside."""
    place = within(path, "with")
    for name, value in step.inputs.items():
        if name not in inner.inputs:
            message = f"`{step.file.name}` has no input `{name}`"
            yield Issue(f"{place}.{name}", message, did_you_mean(name, inner.inputs))
        elif not any(is_template(text) for text in texts(value)):
            for problem in fits(inner.inputs[name], value):
                yield Issue(f"{place}.{name}", f"the input `{name}`: {problem.message}")
    if message := missing_inputs(inner.inputs, step.inputs):
        yield Issue(within(path, "with" if step.inputs else "pipeline"), message)
    if any(name.split(".")[0] == "stdin" for other in inner.steps for name in reads(other)):
        message = f"`{step.file.name}` reads `stdin`, which a sub-pipeline does not have"
        yield Issue(within(path, "pipeline"), message, "give it an input")
    lacking = [name for name in inner.env if name not in outer.env]
    if lacking:
        message = f"`{step.file.name}` reads the variable `{lacking[0]}`, which is not under `env`"
        yield Issue(within(path, "pipeline"), message, f"add `{lacking[0]}` to `env` here too")


def opening_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Problems in servers that steps name, and in continued conversations."""
    for name, prompt in pipeline.prompts.items():
        yield from _prompt(prompt, f"prompts.{name}", pipeline)
    for path, step in steps_with_paths(pipeline):
        if isinstance(step, PromptStep):
            if step.prompt_name is None:
                yield from _prompt(step.prompt, within(path, "prompt"), pipeline)
            yield from _attachment_issues(step, within(path, "attach"), pipeline)
            if step.continues is not None:
                yield from _check_history(step, step.continues, path, pipeline)


def _prompt(prompt: Prompt | ServerPrompt, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    if isinstance(prompt, ServerPrompt):
        yield from _server(prompt.server, f"{path}.server", "prompts", pipeline)


def _attachment_issues(step: PromptStep, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    for index, attachment in enumerate(step.attach):
        own = f"{path}[{index}]"
        place = own if own in pipeline.positions else path
        if isinstance(attachment, Retrieval):
            yield from _retrieval_issues(attachment, place, pipeline)
            continue
        if not attachment.ref:
            # Reported as a missing key.
            continue
        if attachment.server is not None:
            yield from _server(attachment.server, f"{place}.server", "resources", pipeline)
            place = f"{place}.uri"
        if not is_uri(attachment.ref):
            if attachment.server is not None and not is_template(attachment.ref):
                message = f"`{attachment.ref}` is not a URI such as `docs://guide/intro`"
                yield Issue(place, message, "without `server` it would be a file")
        elif attachment.server is None and all(entry.pack for entry in pipeline.servers.values()):
            message = f"no server is declared to read `{attachment.ref}` from"
            hint = "declare it under `mcp.servers`"
            yield Issue(place, message, hint, by=("mcp.servers",))


def _retrieval_issues(retrieval: Retrieval, place: str, pipeline: Pipeline) -> Iterator[Issue]:
    """Problems in the server that passages are to come from."""
    entry = pipeline.servers.get(retrieval.server)
    path = f"{place}.server"
    if entry is None:
        yield from _server(retrieval.server, path, "passages", pipeline)
        return
    if RETRIEVAL_PACK not in entry.pack:
        message = f"the server `{retrieval.server}` does not have the pack `{RETRIEVAL_PACK}`"
        hint = "what another server finds comes from a `call` step: `{{ steps.ID.text }}`"
        yield Issue(path, message, hint, by=("mcp.servers",))
        return
    if not is_wanted(entry, RETRIEVAL_TOOL):
        message = f"the server `{retrieval.server}` leaves out the tool `{RETRIEVAL_TOOL}`"
        yield Issue(path, message, "see its `tools` and `exclude`", by=("mcp.servers",))
    name = ToolName(retrieval.server, RETRIEVAL_TOOL)
    try:
        denying = compile_policy(pipeline.rules).deny
    except UsageError:
        # Reported as an error of the rule itself.
        return
    for rule in denying:
        if rule.unconditional and rule.covers(name):
            message = f"the rule `{rule.text}` under `deny` forbids this search"
            yield Issue(path, message, by=("mcp.deny",))
            return


def _server(alias: str, path: str, what: str, pipeline: Pipeline) -> Iterator[Issue]:
    """A problem in the name of a server that must provide `what`."""
    entry = pipeline.servers.get(alias)
    if entry is None:
        hint = did_you_mean(alias, pipeline.servers) or servers_hint(pipeline)
        yield Issue(path, f"unknown server `{alias}`", hint, by=("mcp.servers",))
    elif entry.pack:
        yield Issue(path, f"the server `{alias}` is a pack of tools, and has no {what}")


def _check_history(step: PromptStep, target: str, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    """Problems in the step whose conversation is continued, and in what cannot be changed then."""
    place = within(path, "continues")
    steps = {other.id: other for other in pipeline.steps}
    before = steps.get(target)
    if before is None:
        prompts = [id for id, one in steps.items() if isinstance(one, PromptStep) and id != step.id]
        yield Issue(place, f"unknown step `{target}`", did_you_mean(target, prompts), by=STEPS)
    elif before is step:
        yield Issue(place, f"the step `{target}` continues itself")
    elif not isinstance(before, PromptStep):
        message = f"the step `{target}` has no conversation: it uses no model"
        yield Issue(place, message, by=(*STEPS, "steps[].call"))
    elif before.flow.foreach is not None:
        yield Issue(place, f"the step `{target}` has a conversation for each item")
    if step.flow.foreach is not None:
        yield Issue(place, "a step with `foreach` cannot continue a conversation")
    own = within(path, "system")
    if isinstance(step.prompt, Prompt) and step.prompt.system is not None:
        own = own if step.system is not None else within(path, "prompt")
    elif step.system is None:
        return
    message = f"the system prompt of a step that continues another is that of `{target}`"
    yield Issue(own, message, "leave `system` out")
