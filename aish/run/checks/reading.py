"""Names that templates and expectations read: does anything give them a value (F11)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from aish.config.pipeline import Pipeline
from aish.config.steps import RunStep, Step
from aish.errors import did_you_mean
from aish.run.checks.complaint import STEPS, Complaint

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
# What Jinja2 itself has under these names.
_GIVEN = frozenset({"range", "dict", "namespace"})
# `inputs.items()` calls a method and names no input.
METHODS = frozenset(dir(dict))


def undefined(
    name: str, path: str, pipeline: Pipeline, more: Sequence[str] = ()
) -> Iterator[Complaint]:
    """About a dotted name without a value; `more` are known beside those of templates."""
    root, *rest = name.split(".")
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
