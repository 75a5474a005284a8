"""Templates: do they parse, and is everything they read there (F11)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from aish.config.nodes import at, join
from aish.config.pipeline import CallStep, Pipeline, Prompt, PromptStep, RunStep, Step
from aish.errors import UsageError, did_you_mean
from aish.run.complaint import Complaint, step_path, within
from aish.templates.references import references
from aish.vocab.json import JsonValue

ROOTS = ("inputs", "env", "steps", "stdin")
STEP_FIELDS = ("status", "text", "output", "tool_calls", "usage")
RUN_FIELDS = ("exit_code", "stdout", "stderr")
# What Jinja2 itself has under these names.
_GIVEN = frozenset({"range", "dict", "namespace"})
# `inputs.items()` calls a method and names no input.
_METHODS = frozenset(dir(dict))


def template_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About what templates say, and about inputs that none of them reads."""
    used: set[str] = set()
    broken = False
    for path, source in sources_with_paths(pipeline):
        try:
            names = references(source)
        except UsageError as error:
            broken = True
            where = f" in {error.where}" if error.where else ""
            yield Complaint(path, f"not a template{where}: {error.message}", error.hint)
            continue
        used |= names
        for name in sorted(names):
            yield from _defined(name, path, pipeline)
    if not broken:
        yield from _unused(pipeline, used)


def sources_with_paths(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Every template of the file, with where it stands."""
    for name, prompt in pipeline.prompts.items():
        yield from _of_prompt(prompt, f"prompts.{name}", pipeline)
    listed = "steps" in pipeline.data
    for index, step in enumerate(pipeline.steps):
        yield from _of_step(step, step_path(index, listed=listed), pipeline)
    yield from _texts(pipeline.outputs or {}, "outputs")


def _of_step(step: Step, path: str, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    match step:
        case PromptStep():
            if step.prompt_name is None:
                yield from _of_prompt(step.prompt, within(path, "prompt"), pipeline)
            if step.system is not None:
                yield within(path, "system"), step.system
        case CallStep():
            yield from _texts(step.arguments, within(path, "with"))
        case RunStep(run=str(line)):
            yield within(path, "run"), line
        case RunStep():
            yield from _texts(list(step.run), within(path, "run"))


def _of_prompt(prompt: Prompt, path: str, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    part = f"{path}.file" if prompt.file is not None else f"{path}.user"
    yield (part if part in pipeline.positions else path), prompt.user
    if prompt.system is not None:
        yield f"{path}.system", prompt.system


def _texts(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, join(path, key))
    elif isinstance(value, Sequence):
        for index, inner in enumerate(value):
            yield from _texts(inner, at(path, index))


def _defined(name: str, path: str, pipeline: Pipeline) -> Iterator[Complaint]:
    """A dotted name that nothing gives a value."""
    root, *rest = name.split(".")
    ids = [step.id for step in pipeline.steps]
    if root not in ROOTS:
        if root not in _GIVEN:
            hint = _dashed(root, ids) or _anywhere(root, pipeline) or _near(root, ROOTS)
            yield Complaint(path, f"`{root}` is not defined", hint)
        return
    if root == "stdin" or not rest or rest[0] in _METHODS:
        return
    key, *fields = rest
    known: Mapping[str, Iterable[str]] = {
        "inputs": pipeline.inputs,
        "env": pipeline.env,
        "steps": ids,
    }
    if key not in known[root]:
        yield Complaint(path, f"`{root}.{key}` is not defined", _missing(root, key, known[root]))
    elif root == "steps":
        step = next(step for step in pipeline.steps if step.id == key)
        yield from _step_field(step, fields, path)


def _step_field(step: Step, fields: Sequence[str], path: str) -> Iterator[Complaint]:
    if not fields or fields[0] in _METHODS:
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
        and fields[1] not in {*RUN_FIELDS, *_METHODS}
    ):
        message = f"`steps.{step.id}.output.{fields[1]}` is not defined"
        listed = ", ".join(f"`{field}`" for field in RUN_FIELDS)
        hint = _near(fields[1], RUN_FIELDS, f"steps.{step.id}.output.")
        yield Complaint(path, message, hint or f"the output of a `run` step has {listed}")


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


def _unused(pipeline: Pipeline, used: Iterable[str]) -> Iterator[Complaint]:
    whole = {".".join(name.split(".")[:2]) for name in used}
    if "inputs" in whole or any(name.removeprefix("inputs.") in _METHODS for name in whole):
        return
    for name in pipeline.inputs:
        if f"inputs.{name}" not in whole:
            message = f"the input `{name}` is used nowhere"
            yield Complaint(f"inputs.{name}", message, warning=True)
