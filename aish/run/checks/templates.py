"""Templates: do they parse, and is everything they read there (F11)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from aish.config.annotations import Annotation
from aish.config.nodes import at, join
from aish.config.pipeline import Pipeline
from aish.config.steps import (
    CallStep,
    PipelineStep,
    Prompt,
    PromptStep,
    RunStep,
    ServerPrompt,
    Step,
)
from aish.core.errors import UsageError
from aish.core.json import JsonValue
from aish.run.checks.complaint import Complaint, step_path, within
from aish.run.checks.expressions import expression_complaints
from aish.run.checks.reading import METHODS, undefined
from aish.run.order import expressions, names_expected
from aish.templates.references import references, references_of_expression


def template_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About what templates say, and about inputs that none of them reads."""
    used: set[str] = set()
    broken = False
    for path, source, more in sources_with_paths(pipeline):
        try:
            names = references(source)
        except UsageError as error:
            broken = True
            where = f" in {error.where}" if error.where else ""
            yield Complaint(path, f"not a template{where}: {error.message}", error.hint)
            continue
        used |= names
        for name in sorted(names):
            yield from undefined(name, path, pipeline, more)
    yield from _expressions(pipeline)
    try:
        used.update(name for step in pipeline.steps for name in names_expected(step))
        read = [one for step in pipeline.steps for one in expressions(step)]
        read += [one.foreach for one in pipeline.annotations if one.foreach is not None]
        used.update(name for one in read for name in references_of_expression(one))
    except UsageError:
        # Complained of where expectations are looked at.
        broken = True
    if not broken:
        yield from _unused(pipeline, used)


def sources_with_paths(pipeline: Pipeline) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Every template of the file, with where it stands and the names of items it may read."""
    for name, prompt in pipeline.prompts.items():
        more = _known_to(name, pipeline)
        for path, source in _of_prompt(prompt, f"prompts.{name}", pipeline):
            yield path, source, more
    listed = "steps" in pipeline.data
    for index, step in enumerate(pipeline.steps):
        own = step_path(index, listed=listed)
        for path, source in _of_step(step, own, pipeline):
            yield path, source, item_names(step)
        if step.flow.foreach is not None and step.flow.foreach.file is not None:
            yield within(own, "foreach.file"), step.flow.foreach.file, ()
    for path, source in sources_in(pipeline.outputs or {}, "outputs"):
        yield path, source, ()
    for one in pipeline.annotations:
        for key, value in one.fields:
            if isinstance(value, str):
                yield within(one.where, key), value, annotation_names(one)


def annotation_names(annotation: Annotation) -> tuple[str, ...]:
    """What the templates of an annotation see beside the others."""
    return () if annotation.foreach is None else (annotation.name, "index")


def item_names(step: Step) -> tuple[str, ...]:
    """What the templates of a `foreach` step see beside the others."""
    return () if step.flow.foreach is None else (step.flow.foreach.name, "index")


def _known_to(prompt: str, pipeline: Pipeline) -> Sequence[str]:
    """The names of items that each step with this prompt has."""
    users = [
        set(item_names(step))
        for step in pipeline.steps
        if isinstance(step, PromptStep) and step.prompt_name == prompt
    ]
    return tuple(set.intersection(*users)) if users else ("item", "index")


def _expressions(pipeline: Pipeline) -> Iterator[Complaint]:
    listed = "steps" in pipeline.data
    for index, step in enumerate(pipeline.steps):
        path, flow = step_path(index, listed=listed), step.flow
        more = item_names(step)
        if flow.when is not None:
            yield from expression_complaints(flow.when, within(path, "when"), pipeline, more)
        if flow.foreach is not None:
            from aish.run.checks.items import foreach_complaints

            yield from foreach_complaints(flow.foreach, path, more, pipeline)


def _of_step(step: Step, path: str, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    match step:
        case PromptStep():
            if step.prompt_name is None:
                yield from _of_prompt(step.prompt, within(path, "prompt"), pipeline)
            if step.system is not None:
                yield within(path, "system"), step.system
            yield from _attached(step, path, pipeline)
        case CallStep():
            yield from sources_in(step.arguments, within(path, "with"))
        case PipelineStep():
            yield from sources_in(step.inputs, within(path, "with"))
        case RunStep(run=str(line)):
            yield within(path, "run"), line
        case RunStep():
            yield from sources_in(list(step.run), within(path, "run"))


def _attached(step: PromptStep, path: str, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    place = within(path, "attach")
    for index, one in enumerate(step.attach):
        own = at(place, index)
        uri = join(own, "uri")
        found = (known for known in (uri, own) if known in pipeline.positions)
        yield next(found, place), one.ref


def _of_prompt(
    prompt: Prompt | ServerPrompt, path: str, pipeline: Pipeline
) -> Iterator[tuple[str, str]]:
    if isinstance(prompt, ServerPrompt):
        yield from sources_in(dict(prompt.arguments), f"{path}.arguments")
        return
    part = f"{path}.file" if prompt.file is not None else f"{path}.user"
    yield (part if part in pipeline.positions else path), prompt.user
    if prompt.system is not None:
        yield f"{path}.system", prompt.system


def sources_in(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    """Every text in a value, with its place."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from sources_in(inner, join(path, key))
    elif isinstance(value, Sequence):
        for index, inner in enumerate(value):
            yield from sources_in(inner, at(path, index))


def _unused(pipeline: Pipeline, used: Iterable[str]) -> Iterator[Complaint]:
    if not pipeline.steps or pipeline.broken:
        # What runs is typed, and not in the file; or it may stand in what could not be read.
        return
    whole = {".".join(name.split(".")[:2]) for name in used}
    if "inputs" in whole or any(name.removeprefix("inputs.") in METHODS for name in whole):
        return
    for name in pipeline.inputs:
        if f"inputs.{name}" not in whole:
            message = f"the input `{name}` is used nowhere"
            yield Complaint(f"inputs.{name}", message, warning=True)
