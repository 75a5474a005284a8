"""The order in which steps run: `needs`, and every `steps.X` in a template.

Also which models act as judges, and which models are free under a cost limit.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from aish.config.model import (
    Annotation,
    Attachment,
    CallStep,
    Expectation,
    Limits,
    ModelEntry,
    Pipeline,
    PipelineStep,
    Prompt,
    PromptStep,
    RunStep,
    ServerEntry,
    ServerPrompt,
    Step,
)
from aish.core.errors import UsageError
from aish.core.json import JsonValue
from aish.core.phrases import backticked
from aish.models.dialect_choice import answer_limit, wire_of
from aish.models.pricing import is_free
from aish.templates.render import references, references_of_expression


def sources(step: Step) -> Iterator[str]:
    match step:
        case PromptStep():
            yield from prompt_sources(step)
        case CallStep():
            yield from texts(step.arguments)
        case RunStep():
            yield from ((step.run,) if isinstance(step.run, str) else step.run)
        case PipelineStep():
            yield from texts(step.inputs)
    if step.flow.foreach is not None and step.flow.foreach.file is not None:
        yield step.flow.foreach.file


def prompt_sources(step: PromptStep) -> Iterator[str]:
    """The template sources of a prompt step, those of its system prompt last."""
    match step.prompt:
        case Prompt(user=user):
            yield user
        case ServerPrompt(arguments=arguments):
            yield from arguments.values()
    for attachment in step.attach:
        yield attachment.ref if isinstance(attachment, Attachment) else attachment.query
    yield from systems_of(step)


def systems_of(step: PromptStep) -> tuple[str, ...]:
    own = step.prompt.system if isinstance(step.prompt, Prompt) else None
    return tuple(text for text in (own, step.system) if text is not None)


def expressions(step: Step) -> Iterator[str]:
    """Every expression of a step that decides whether and over what it runs."""
    foreach = step.flow.foreach
    of_items = (foreach.expression, foreach.key) if foreach is not None else ()
    candidates = (step.flow.when, *of_items)
    yield from (expression for expression in candidates if expression is not None)


def names_item(step: Step) -> bool:
    """Return true if the step's `when` is evaluated for each item, and not for the step."""
    foreach, when = step.flow.foreach, step.flow.when
    if foreach is None or when is None:
        return False
    first = {name.split(".")[0] for name in references_of_expression(when)}
    return bool(first & {foreach.name, "index"})


def steps_read(pipeline: Pipeline) -> frozenset[str]:
    """The steps whose results are read anywhere; all of them if that is unknown before running."""
    names = [name for step in pipeline.steps for name in reads(step)]
    names += [name for text in texts(pipeline.outputs or {}) for name in references(text)]
    names += [name for annotation in pipeline.annotations for name in annotation_reads(annotation)]
    if "steps" in names:
        return frozenset(step.id for step in pipeline.steps)
    return frozenset(name.split(".")[1] for name in names if name.startswith("steps."))


def annotation_reads(annotation: Annotation) -> Iterator[str]:
    if annotation.foreach is not None:
        yield from references_of_expression(annotation.foreach)
    for _, source in annotation.fields:
        if isinstance(source, str):
            yield from references(source)


def reads(step: Step) -> Iterator[str]:
    """The places that a step's templates and its expectations read."""
    for source in sources(step):
        yield from references(source)
    for expression in expressions(step):
        yield from references_of_expression(expression)
    yield from names_expected(step)


def names_expected(step: Step) -> Iterator[str]:
    """The places that a step's expectations read.

    Raises:
        UsageError: a template or expression is invalid.
    """
    if step.expect:
        # Most steps have no expectations, and avoid this import.
        from aish.engine.expectations.check import all_names_read

        yield from all_names_read(step.expect)


def texts(value: JsonValue | Mapping[str, JsonValue]) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, Iterable):
        for inner in value:
            yield from texts(inner)


def needs_of(step: Step, known: Iterable[str]) -> tuple[str, ...]:
    """The ids of the steps that `step` waits for, declared or used in a template."""
    needs = ids_needed(step)
    return tuple(id for id in known if id in needs)


def ids_needed(step: Step) -> set[str]:
    """All ids of which `step` says that it waits for them, also those of no step."""
    used = {name.split(".")[1] for name in reads(step) if name.startswith("steps.")}
    continued = {step.continues} if isinstance(step, PromptStep) and step.continues else set()
    return ({*step.needs} | used | continued) - {step.id}


def in_order(pipeline: Pipeline) -> tuple[Step, ...]:
    """The steps in an order in which each follows its needs, otherwise as in the file.

    Raises:
        UsageError: there is a circular dependency (reported earlier with its place).
    """
    waiting = {step.id: step for step in pipeline.steps}
    needs = {id: ids_needed(step) & waiting.keys() for id, step in waiting.items()}
    ordered: list[Step] = []
    while waiting:
        ready = next((id for id in waiting if not any(n in waiting for n in needs[id])), None)
        if ready is None:
            circle = backticked(waiting)
            raise UsageError(f"circular dependency between steps: {circle}", where=pipeline.name)
        ordered.append(waiting.pop(ready))
    return tuple(ordered)


def uses_stdin(pipeline: Pipeline) -> bool:
    """Return true if a template or a step's expectation reads `stdin`."""
    of_outputs = (name for text in texts(pipeline.outputs or {}) for name in references(text))
    of_steps = (name for step in pipeline.steps for name in reads(step))
    return any(name.split(".")[0] == "stdin" for name in (*of_steps, *of_outputs))


def lacks_stdin(pipeline: Pipeline, stdin: str | None) -> bool:
    """Return true if the file needs piped text and there is none but white space."""
    if pipeline.stdin == "optional" or (stdin and not stdin.isspace()):
        return False
    return uses_stdin(pipeline)


def require_stdin(pipeline: Pipeline, stdin: str | None, *, hint: str | None = None) -> None:
    """Refuse to run without required piped text: the command writing it has probably failed.

    Raises:
        UsageError: the file reads `stdin`, needs it, and it is empty.
    """
    if not lacks_stdin(pipeline, stdin):
        return
    if stdin is None:
        reason, check = "nothing is piped in", "pipe text into it"
    else:
        reason = "what is piped in is empty"
        check = "check that the command before the pipe succeeds (`set -o pipefail`)"
    raise UsageError(
        f"the file reads `{{{{ stdin }}}}`, and {reason}",
        where=str(pipeline.file),
        hint=hint or f"{check}; `stdin: optional` in the file accepts no text",
    )


OPENING: Final = "You judge a text by a rubric."
"""The first line of what every judge is told; a request in a cassette is known by it."""


def judges_of(expectations: Iterable[Expectation]) -> Iterator[str]:
    for expectation in expectations:
        if expectation.kind == "judge" and expectation.model is not None:
            yield expectation.model


def models_of_packs(
    servers: Iterable[ServerEntry], models: Iterable[str], default: str | None
) -> Iterator[str]:
    """The model aliases that packs may ask, of the `models` of the file."""
    known = tuple(models)
    for entry in servers:
        consent = entry.model_consent
        yield from consent.named
        if consent.every:
            yield from known
        elif consent.unnamed and default is not None:
            yield default


MAX_TOKENS = 4096


def default_model(pipeline: Pipeline) -> str | None:
    """The model of steps that name none: `model:`, or the only one."""
    if pipeline.model is not None:
        return pipeline.model
    return next(iter(pipeline.models)) if len(pipeline.models) == 1 else None


def with_fallbacks(
    aliases: Iterable[str | None], models: Mapping[str, ModelEntry]
) -> Iterator[str]:
    """The models of these aliases and their fallbacks, each once; unknown ones are left out."""
    waiting, aliases_done = [alias for alias in aliases if alias], set[str]()
    while waiting:
        alias = waiting.pop(0)
        if alias in models and alias not in aliases_done:
            aliases_done.add(alias)
            yield alias
            waiting.extend(models[alias].fallback)


def cap_tokens(entry: ModelEntry, limits: Iterable[Limits]) -> ModelEntry:
    """The entry with a `max_tokens`, if a limit requires one and a free model has none."""
    bounds = [limit for limit in limits if limit.tokens is not None or limit.cost_usd is not None]
    if not bounds or answer_limit(entry) is not None or not is_free(entry):
        return entry
    quarters = (max(1, limit.tokens // 4) for limit in bounds if limit.tokens is not None)
    return replace(
        entry,
        params={**entry.params, wire_of(entry).bounds[0]: min(MAX_TOKENS, *quarters, MAX_TOKENS)},
    )
