"""Checks of templates and expressions: syntax, and whether all names exist."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from aish.config.model import (
    Annotation,
    CallStep,
    Foreach,
    Pipeline,
    PipelineStep,
    Prompt,
    PromptStep,
    Retrieval,
    RunStep,
    ServerPrompt,
    Step,
)
from aish.config.yaml_tree import at, join, texts_with_paths
from aish.core.errors import AishError, UsageError, did_you_mean
from aish.core.events import AnnotationLevel
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked
from aish.engine.plan.order import expressions, names_expected
from aish.engine.plan.validation.issue import STEPS, Issue, steps_with_paths, within
from aish.system.schema.check import resolve
from aish.templates.render import references, references_of_expression
from aish.templates.values import is_template

ROOTS = ("inputs", "env", "steps", "stdin")
STEP_FIELDS = ("status", "text", "output", "tool_calls", "usage")
RUN_FIELDS = ("exit_code", "stdout", "stderr")
# Must be known completely for a name to be reported as unknown.
_NAMED: Mapping[str, tuple[str, ...]] = {
    "inputs": ("inputs",),
    "env": ("env[]",),
    "steps": STEPS,
    "outputs": ("outputs",),
}
_ITEMS = tuple(f"{of}{key}" for of in ("", "steps[].", "tests[].") for key in ("foreach**", "as"))
_SCHEMAS = ("output**", "steps[].output**")
# Keywords that allow keys not listed in `properties`.
_BEYOND = frozenset(
    {"anyOf", "oneOf", "allOf", "if", "patternProperties", "dependentSchemas", "prefixItems"}
)
# Defined by Jinja2 itself.
_GIVEN = frozenset({"range", "dict", "namespace"})
# `inputs.items()` calls a method and names no input.
METHODS = frozenset(dir(dict))


def name_issues(
    name: str, path: str, pipeline: Pipeline, more: Sequence[str] = (), own: Step | None = None
) -> Iterator[Issue]:
    """Problem of a dotted name without a value; `more` names are known in addition.

    `own` is the step that `output` belongs to, if any.
    """
    root, *rest = name.split(".")
    if root == "output" and root in more and own is not None:
        yield from unknown_output(own, rest, root, path)
    ids = [step.id for step in pipeline.steps]
    if root == "outputs" and root in more and pipeline.outputs is None:
        message = "`outputs` is not defined: the file has none"
        yield Issue(path, message, "`steps.ID.output`", by=("outputs",))
        return
    if root not in ROOTS and root not in more:
        if root not in _GIVEN:
            near = _dash_hint(root, ids) or _anywhere(root, pipeline) or _item(root, more)
            hint = near or _near(root, (*ROOTS, *more)) or _column(root, more)
            yield Issue(path, f"`{root}` is not defined", hint, by=_ITEMS)
        return
    if root not in {"inputs", "env", "steps", "outputs"} or not rest or rest[0] in METHODS:
        return
    key, *fields = rest
    known: Mapping[str, Iterable[str]] = {
        "inputs": pipeline.inputs,
        "env": pipeline.env,
        "steps": ids,
        "outputs": pipeline.outputs or (),
    }
    if key not in known[root]:
        hint = _key_hint(root, key, known[root])
        yield Issue(path, f"`{root}.{key}` is not defined", hint, by=_NAMED[root])
    elif root == "steps":
        step = next(step for step in pipeline.steps if step.id == key)
        if step.flow.foreach is not None:
            yield from _of_list(step, fields, path)
            return
        yield from _step_field(step, fields, path)


def _step_field(step: Step, fields: Sequence[str], path: str) -> Iterator[Issue]:
    if not fields or fields[0] in METHODS:
        return
    if fields[0] not in STEP_FIELDS:
        message = f"`steps.{step.id}.{fields[0]}` is not defined"
        hint = _near(fields[0], STEP_FIELDS, f"steps.{step.id}.")
        listed = backticked(STEP_FIELDS)
        yield Issue(path, message, hint or f"a step has {listed}")
    elif (
        isinstance(step, RunStep)
        and len(fields) > 1
        and fields[0] == "output"
        and fields[1] not in {*RUN_FIELDS, *METHODS}
    ):
        message = f"`steps.{step.id}.output.{fields[1]}` is not defined"
        listed = backticked(RUN_FIELDS)
        hint = _near(fields[1], RUN_FIELDS, f"steps.{step.id}.output.")
        yield Issue(path, message, hint or f"the output of a `run` step has {listed}")
    elif fields[0] == "output" and not isinstance(step, RunStep):
        yield from unknown_output(step, fields[1:], f"steps.{step.id}.output", path)


def unknown_output(step: Step, keys: Sequence[str | int], name: str, path: str) -> Iterator[Issue]:
    """Problems of keys below a step's `output`, called `name`, that its schema does not define.

    An error if the schema allows no others, otherwise a warning.
    """
    schema = _schema_of(step)
    here: JsonValue = schema
    for key in keys:
        here = _resolve_ref(here, schema)
        if not isinstance(here, Mapping) or not _BEYOND.isdisjoint(here):
            return
        if isinstance(key, int):
            here, name = here.get("items"), f"{name}[{key}]"
            continue
        known, others = here.get("properties"), here.get("additionalProperties")
        if key in METHODS or not isinstance(known, Mapping) or not known:
            return
        if key not in known:
            if others is None or others is False:
                message = f"`{name}.{key}` is not defined: the schema of the answer has no `{key}`"
                listed = backticked(known)
                hint = _near(key, map(str, known), f"{name}.") or f"it has {listed}"
                yield Issue(path, message, hint, warning=others is None, by=_SCHEMAS)
            return
        here, name = known[key], f"{name}.{key}"


def _schema_of(step: Step) -> JsonObject:
    """The schema of a step's `output`, as far as known."""
    if isinstance(step, RunStep):
        return {"properties": dict.fromkeys(RUN_FIELDS, True), "additionalProperties": False}
    if isinstance(step, PromptStep) and step.output is not None:
        return step.output.schema
    return {}


def _resolve_ref(schema: JsonValue, root: JsonObject) -> JsonValue:
    """A schema, or the definition that it refers to."""
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        target: JsonValue = resolve(root, str(schema["$ref"]))
        return target
    return schema


def _of_list(step: Step, fields: Sequence[str], path: str) -> Iterator[Issue]:
    if fields:
        message = f"`steps.{step.id}` is a list, of its items, and has no `{fields[0]}`"
        hint = f"`steps.{step.id} | map(attribute='{fields[0]}') | list`"
        yield Issue(path, message, hint)


def _key_hint(root: str, key: str, known: Iterable[str]) -> str | None:
    names = list(known)
    dashed = [name for name in names if name.startswith(f"{key}-")]
    if dashed:
        return f"write `{root}['{dashed[0]}']`: a `-` in a dotted name is a minus"
    near = _near(key, names, f"{root}.")
    if near is None and root == "env":
        return f"add `{key}` to `env`"
    return near


def _dash_hint(root: str, ids: Iterable[str]) -> str | None:
    dashed = [id for id in ids if root in id.split("-")[1:]]
    return f"write `steps['{dashed[0]}']`: a `-` in a dotted name is a minus" if dashed else None


def _near(name: str, known: Iterable[str], before: str = "") -> str | None:
    hint = did_you_mean(name, known)
    return hint and hint.replace("`", f"`{before}", 1)


def _item(name: str, more: Sequence[str]) -> str | None:
    """The usual name of an item, if it has another one or if there is none."""
    if name != "item":
        return None
    own = [known for known in more if known != "index"]
    return f"the item is called `{own[0]}` here" if own else "items are in steps with `foreach`"


def _column(name: str, more: Sequence[str]) -> str | None:
    """A bare name where an item has a name: it may be meant for a value of the item."""
    item, *others = (*more, "")
    return f"did you mean `{item}.{name}`" if others == ["index", ""] else None


def _anywhere(name: str, pipeline: Pipeline) -> str | None:
    """A bare name that exists as `inputs.` or `steps.`."""
    for root, known in (
        ("inputs", list(pipeline.inputs)),
        ("steps", [step.id for step in pipeline.steps]),
        ("env", list(pipeline.env)),
    ):
        if name in known:
            return f"did you mean `{root}.{name}`"
    return None


def expression_issues(
    expression: str, path: str, pipeline: Pipeline, names: Sequence[str] = ()
) -> Iterator[Issue]:
    """Problems of the expression at `path`; `names` are known in addition."""
    try:
        read = references_of_expression(expression)
    except UsageError as error:
        yield no_expression(expression, path, error)
        return
    for name in sorted(read):
        yield from name_issues(name, path, pipeline, names)


def no_expression(expression: str, path: str, error: UsageError) -> Issue:
    hint = "an expression is written without braces" if "{{" in expression else error.hint
    # The engine received the expression in braces.
    early = "end of print statement" in error.message
    why = "unexpected end" if early else error.message
    return Issue(path, f"not an expression: {why}", hint)


def template_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Problems of templates, and of inputs that none of them reads."""
    used: set[str] = set()
    broken = False
    for path, source, more in sources_with_paths(pipeline):
        try:
            names = references(source)
        except UsageError as error:
            broken = True
            where = f" in {error.where}" if error.where else ""
            yield Issue(path, f"not a template{where}: {error.message}", error.hint)
            continue
        used |= names
        for name in sorted(names):
            yield from name_issues(name, path, pipeline, more)
    for path, step in steps_with_paths(pipeline):
        flow, more = step.flow, item_names(step)
        if flow.when is not None:
            yield from expression_issues(flow.when, within(path, "when"), pipeline, more)
        if flow.foreach is not None:
            yield from foreach_issues(flow.foreach, path, more, pipeline)
    try:
        used.update(name for step in pipeline.steps for name in names_expected(step))
        read = [expression for step in pipeline.steps for expression in expressions(step)]
        read += [one.foreach for one in pipeline.annotations if one.foreach is not None]
        used.update(name for expression in read for name in references_of_expression(expression))
    except UsageError:
        # Reported by the check of expectations.
        broken = True
    if not broken:
        yield from _input_warnings(pipeline, used)


def sources_with_paths(pipeline: Pipeline) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Every template of the file, with its path and the item names available to it."""
    for name, prompt in pipeline.prompts.items():
        more = _item_names_for(name, pipeline)
        for path, source in _of_prompt(prompt, f"prompts.{name}", pipeline):
            yield path, source, more
    for own, step in steps_with_paths(pipeline):
        for path, source in _of_step(step, own, pipeline):
            yield path, source, item_names(step)
        if step.flow.foreach is not None and step.flow.foreach.file is not None:
            yield within(own, "foreach.file"), step.flow.foreach.file, ()
    for path, source in texts_with_paths(pipeline.outputs or {}, "outputs"):
        yield path, source, ()
    for annotation in pipeline.annotations:
        for key, value in annotation.fields:
            if isinstance(value, str):
                yield within(annotation.where, key), value, annotation_names(annotation)


def annotation_names(annotation: Annotation) -> tuple[str, ...]:
    return () if annotation.foreach is None else (annotation.name, "index")


def item_names(step: Step) -> tuple[str, ...]:
    return () if step.flow.foreach is None else (step.flow.foreach.name, "index")


def _item_names_for(prompt: str, pipeline: Pipeline) -> Sequence[str]:
    """The item names of each step with this prompt."""
    users = [
        set(item_names(step))
        for step in pipeline.steps
        if isinstance(step, PromptStep) and step.prompt_name == prompt
    ]
    return tuple(set.intersection(*users)) if users else ("item", "index")


def _of_step(step: Step, path: str, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    match step:
        case PromptStep():
            if step.prompt_name is None:
                yield from _of_prompt(step.prompt, within(path, "prompt"), pipeline)
            if step.system is not None:
                yield within(path, "system"), step.system
            yield from _attach_sources(step, path, pipeline)
        case CallStep():
            yield from texts_with_paths(step.arguments, within(path, "with"))
        case PipelineStep():
            yield from texts_with_paths(step.inputs, within(path, "with"))
        case RunStep(run=str(line)):
            yield within(path, "run"), line
        case RunStep():
            yield from texts_with_paths(list(step.run), within(path, "run"))


def _attach_sources(step: PromptStep, path: str, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    place = within(path, "attach")
    for index, source in enumerate(step.attach):
        own = at(place, index)
        searches = isinstance(source, Retrieval)
        inner = join(own, "query" if searches else "uri")
        positions = (known for known in (inner, own) if known in pipeline.positions)
        yield next(positions, place), source.query if isinstance(source, Retrieval) else source.ref


def _of_prompt(
    prompt: Prompt | ServerPrompt, path: str, pipeline: Pipeline
) -> Iterator[tuple[str, str]]:
    if isinstance(prompt, ServerPrompt):
        older = f"{path}.arguments"
        key = older if older in pipeline.positions else f"{path}.with"
        yield from texts_with_paths(dict(prompt.arguments), key)
        return
    part = f"{path}.file" if prompt.file is not None else f"{path}.user"
    yield (part if part in pipeline.positions else path), prompt.user
    if prompt.system is not None:
        yield f"{path}.system", prompt.system


def _input_warnings(pipeline: Pipeline, used: Iterable[str]) -> Iterator[Issue]:
    if not pipeline.steps or pipeline.broken:
        # It is typed at run time, and not in the file; or it may be in a part that could not be
        # read.
        return
    whole = {".".join(name.split(".")[:2]) for name in used}
    if "inputs" in whole or any(name.removeprefix("inputs.") in METHODS for name in whole):
        return
    for name in pipeline.inputs:
        if f"inputs.{name}" not in whole:
            message = f"the input `{name}` is used nowhere"
            yield Issue(f"inputs.{name}", message, warning=True)


_FILE_NAME = lazy_pattern(r"(?:\.{0,2}/)?[\w./-]+\.(?:csv|tsv|jsonl?|ndjson|xlsx?)")


def foreach_issues(
    foreach: Foreach, path: str, names: tuple[str, ...], pipeline: Pipeline
) -> Iterator[Issue]:
    """Problems of the `foreach` of the step at `path`, with `names` in its templates."""
    where, expression = within(path, "foreach"), foreach.expression
    if expression is not None and _names_file(expression):
        hint = f"`foreach: {{file: {expression}}}`"
        yield Issue(where, f"`{expression}` is a file, and an expression is expected here", hint)
    elif expression is not None:
        yield from expression_issues(expression, where, pipeline)
    if foreach.file is not None and not is_template(foreach.file):
        from aish.items.items import reader_of

        file = Path(foreach.file)
        for key, delimiter in (("file", None), ("delimiter", foreach.delimiter)):
            try:
                reader_of(file, delimiter)
            except AishError as error:
                yield Issue(within(where, key), error.message, error.hint)
                break
    if foreach.key is not None:
        yield from expression_issues(foreach.key, within(path, "key"), pipeline, names)


def _names_file(expression: str) -> bool:
    root, _, _ = expression.partition(".")
    return root not in ROOTS and _FILE_NAME.fullmatch(expression) is not None


_LONGEST_LINE = 9
_LEVELS = get_args(AnnotationLevel)


def annotation_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Problems of `annotations`; their templates are checked with all others."""
    for one in pipeline.annotations:
        if one.foreach is not None:
            where = within(one.where, "foreach") if one.fields else one.where
            yield from expression_issues(one.foreach, where, pipeline)
        # The value of a template is known only when it is rendered.
        fixed = {
            key: value
            for key, value in one.fields
            if not (isinstance(value, str) and is_template(value))
        }
        level = fixed.get("level")
        if isinstance(level, str) and level not in _LEVELS:
            listed = backticked(_LEVELS)
            hint = did_you_mean(level, _LEVELS)
            yield Issue(within(one.where, "level"), f"`{level}` is not one of {listed}", hint)
        for key in ("line", "end_line"):
            if key in fixed and not _is_line(fixed[key]):
                yield Issue(within(one.where, key), f"`{fixed[key]}` is not a line number")
        first, last = fixed.get("line"), fixed.get("end_line")
        if _is_line(first) and _is_line(last) and int(str(last)) < int(str(first)):
            yield Issue(within(one.where, "end_line"), "`end_line` is before `line`")


def _is_line(value: object) -> bool:
    text = str(value)
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_LINE and int(text) > 0
