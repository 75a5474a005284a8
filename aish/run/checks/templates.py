"""Templates: do they parse, and is everything they read there (F11)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from aish.config.nodes import at, join
from aish.config.pipeline import Pipeline
from aish.config.steps import CallStep, Prompt, PromptStep, RunStep, Step
from aish.errors import UsageError
from aish.run.checks.complaint import Complaint, step_path, within
from aish.run.checks.reading import METHODS, undefined
from aish.run.expectations.names import all_names_read
from aish.templates.references import references
from aish.vocab.json import JsonValue


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
            yield from undefined(name, path, pipeline)
    try:
        used.update(name for step in pipeline.steps for name in all_names_read(step.expect))
    except UsageError:
        # Complained of where expectations are looked at.
        broken = True
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


def _unused(pipeline: Pipeline, used: Iterable[str]) -> Iterator[Complaint]:
    whole = {".".join(name.split(".")[:2]) for name in used}
    if "inputs" in whole or any(name.removeprefix("inputs.") in METHODS for name in whole):
        return
    for name in pipeline.inputs:
        if f"inputs.{name}" not in whole:
            message = f"the input `{name}` is used nowhere"
            yield Complaint(f"inputs.{name}", message, warning=True)
