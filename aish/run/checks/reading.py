"""Names that templates and expectations read: does anything give them a value (F11)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from aish.config.pipeline import Pipeline
from aish.config.steps import PromptStep, RunStep, Step
from aish.core.errors import did_you_mean
from aish.core.json import JsonObject, JsonValue
from aish.run.checks.complaint import STEPS, Complaint
from aish.system.schema.subset import resolve

ROOTS = ("inputs", "env", "steps", "stdin")
STEP_FIELDS = ("status", "text", "output", "tool_calls", "usage")
RUN_FIELDS = ("exit_code", "stdout", "stderr")
# What has to be known in full for a name to be known for none.
_NAMED: Mapping[str, tuple[str, ...]] = {
    "inputs": ("inputs",),
    "env": ("env[]",),
    "steps": STEPS,
    "outputs": ("outputs",),
}
_ITEMS = tuple(f"{of}{key}" for of in ("", "steps[].", "tests[].") for key in ("foreach**", "as"))
_SCHEMAS = ("output**", "steps[].output**")
# Words by which a value may have keys that `properties` does not name.
_BEYOND = frozenset(
    {"anyOf", "oneOf", "allOf", "if", "patternProperties", "dependentSchemas", "prefixItems"}
)
# What Jinja2 itself has under these names.
_GIVEN = frozenset({"range", "dict", "namespace"})
# `inputs.items()` calls a method and names no input.
METHODS = frozenset(dir(dict))


def undefined(
    name: str,
    path: str,
    pipeline: Pipeline,
    more: Sequence[str] = (),
    own: Step | None = None,
) -> Iterator[Complaint]:
    """About a dotted name without a value; `more` are known beside those of templates.

    `own` is the step that `output` is of, where that is one of them.
    """
    root, *rest = name.split(".")
    if root == "output" and root in more and own is not None:
        yield from unknown_output(own, rest, root, path)
    ids = [step.id for step in pipeline.steps]
    if root == "outputs" and root in more and pipeline.outputs is None:
        message = "`outputs` is not defined: the file has none"
        yield Complaint(path, message, "`steps.ID.output`", by=("outputs",))
        return
    if root not in ROOTS and root not in more:
        if root not in _GIVEN:
            near = _dashed(root, ids) or _anywhere(root, pipeline) or _item(root, more)
            hint = near or _near(root, (*ROOTS, *more))
            yield Complaint(path, f"`{root}` is not defined", hint, by=_ITEMS)
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
        hint = _missing(root, key, known[root])
        yield Complaint(path, f"`{root}.{key}` is not defined", hint, by=_NAMED[root])
    elif root == "steps":
        step = next(step for step in pipeline.steps if step.id == key)
        if step.flow.foreach is not None:
            yield from _of_list(step, fields, path)
            return
        yield from _step_field(step, fields, path)


def _step_field(step: Step, fields: Sequence[str], path: str) -> Iterator[Complaint]:
    if not fields or fields[0] in METHODS:
        return
    if fields[0] not in STEP_FIELDS:
        message = f"`steps.{step.id}.{fields[0]}` is not defined"
        hint = _near(fields[0], STEP_FIELDS, f"steps.{step.id}.")
        listed = ", ".join(f"`{field}`" for field in STEP_FIELDS)
        yield Complaint(path, message, hint or f"a step has {listed}")
    elif (
        isinstance(step, RunStep)
        and len(fields) > 1
        and fields[0] == "output"
        and fields[1] not in {*RUN_FIELDS, *METHODS}
    ):
        message = f"`steps.{step.id}.output.{fields[1]}` is not defined"
        listed = ", ".join(f"`{field}`" for field in RUN_FIELDS)
        hint = _near(fields[1], RUN_FIELDS, f"steps.{step.id}.output.")
        yield Complaint(path, message, hint or f"the output of a `run` step has {listed}")
    elif fields[0] == "output" and not isinstance(step, RunStep):
        yield from unknown_output(step, fields[1:], f"steps.{step.id}.output", path)


def unknown_output(
    step: Step, keys: Sequence[str | int], name: str, path: str
) -> Iterator[Complaint]:
    """About keys below a step's `output`, called `name`, that its schema does not have.

    An error where the schema allows no others, and odd where it only has none of that name.
    """
    schema = _schema_of(step)
    here: JsonValue = schema
    for key in keys:
        here = _followed(here, schema)
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
                listed = ", ".join(f"`{one}`" for one in known)
                hint = _near(key, map(str, known), f"{name}.") or f"it has {listed}"
                yield Complaint(path, message, hint, warning=others is None, by=_SCHEMAS)
            return
        here, name = known[key], f"{name}.{key}"


def _schema_of(step: Step) -> JsonObject:
    """What is known of a step's `output`."""
    if isinstance(step, RunStep):
        return {"properties": dict.fromkeys(RUN_FIELDS, True), "additionalProperties": False}
    if isinstance(step, PromptStep) and step.output is not None:
        return step.output.schema
    return {}


def _followed(schema: JsonValue, root: JsonObject) -> JsonValue:
    """A schema, or the definition that it refers to."""
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        found: JsonValue = resolve(root, str(schema["$ref"]))
        return found
    return schema


def _of_list(step: Step, fields: Sequence[str], path: str) -> Iterator[Complaint]:
    if fields:
        message = f"`steps.{step.id}` is a list, of its items, and has no `{fields[0]}`"
        hint = f"`steps.{step.id} | map(attribute='{fields[0]}') | list`"
        yield Complaint(path, message, hint)


def _missing(root: str, key: str, known: Iterable[str]) -> str | None:
    names = list(known)
    dashed = [name for name in names if name.startswith(f"{key}-")]
    if dashed:
        return f"write `{root}['{dashed[0]}']`: a `-` in a dotted name is a minus"
    near = _near(key, names, f"{root}.")
    if near is None and root == "env":
        return f"add `{key}` to `env`"
    return near


def _dashed(root: str, ids: Iterable[str]) -> str | None:
    dashed = [id for id in ids if root in id.split("-")[1:]]
    return f"write `steps['{dashed[0]}']`: a `-` in a dotted name is a minus" if dashed else None


def _near(name: str, known: Iterable[str], before: str = "") -> str | None:
    found = did_you_mean(name, known)
    return found and found.replace("`", f"`{before}", 1)


def _item(name: str, more: Sequence[str]) -> str | None:
    """The usual name of an item, where it has another one or where there is none."""
    if name != "item":
        return None
    own = [known for known in more if known != "index"]
    return f"the item is called `{own[0]}` here" if own else "items are in steps with `foreach`"


def _anywhere(name: str, pipeline: Pipeline) -> str | None:
    """A bare name that is right behind `inputs.` or `steps.`."""
    for root, known in (
        ("inputs", list(pipeline.inputs)),
        ("steps", [step.id for step in pipeline.steps]),
        ("env", list(pipeline.env)),
    ):
        if name in known:
            return f"did you mean `{root}.{name}`"
    return None
