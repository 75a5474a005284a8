"""Limits on tokens and money, and what models need for them (B8, F11): bounds and prices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from aish.config.models import ModelEntry
from aish.config.pipeline import Pipeline
from aish.config.steps import Limits, PromptStep, Step
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.models.pricing import has_list, is_priced
from aish.run.checks.complaint import Complaint
from aish.run.free_models import is_free
from aish.run.judges import judges_of
from aish.wire.chat_encode import answer_limit

_BY = (
    *("model", "models**", "limits**", "params**"),
    *(f"steps[].{key}" for key in ("model", "limits**", "params**", "expect**")),
)
_PRICE = "`price: {input: 3.0, output: 15.0}` gives it in US dollars per million tokens"
_LIST = "`pip install 'aish-pipelines[prices]'` brings a price list"


@frozen
class _Use:
    """A model that a step asks, with the parameters of that step over its own."""

    alias: str
    params: Mapping[str, JsonValue]


def limit_complaints(
    pipeline: Pipeline,
    limits: Limits | None = None,
    steps: Sequence[Step] | None = None,
    default: str | None = None,
    judges: Iterable[str] | None = None,
) -> Iterator[Complaint]:
    """About models that a limit needs to know more of.

    `limits`, `steps`, the `default` model and the `judges` beside those of steps are those of the
    file, if a run has no others.
    """
    run = pipeline.limits if limits is None else limits
    default = default or _default(pipeline)
    if judges is None:
        judges = judges_of(one for case in pipeline.tests for one in case.expect)
    told: set[tuple[str, str]] = set()
    for complaint in (
        *_of_steps(pipeline.steps if steps is None else steps, run, pipeline, default),
        *_of_uses(
            (_Use(alias, {}) for alias in _with_fallbacks(judges, pipeline.models)),
            run,
            "",
            pipeline.models,
        ),
    ):
        if (complaint.path, complaint.message) not in told:
            told.add((complaint.path, complaint.message))
            yield complaint


def _of_steps(
    steps: Iterable[Step], run: Limits, pipeline: Pipeline, default: str | None
) -> Iterator[Complaint]:
    models = pipeline.models
    for step in steps:
        for bounds, whose in ((run, ""), (step.flow.limits, f" of the step `{step.id}`")):
            yield from _of_uses(_uses(step, models, default), bounds, whose, models)


def _of_uses(
    uses: Iterable[_Use], bounds: Limits, whose: str, models: Mapping[str, ModelEntry]
) -> Iterator[Complaint]:
    if bounds.tokens is None and bounds.cost_usd is None:
        return
    key = "`limits.tokens`" if bounds.cost_usd is None else "`limits.cost_usd`"
    for use in uses:
        entry, path = models[use.alias], f"models.{use.alias}"
        if answer_limit({**entry.params, **use.params}) is None and not is_free(entry):
            message = f"{key}{whose} needs `max_tokens` in the `params` of the model `{use.alias}`"
            hint = "how long an answer can be is not known otherwise; a step's own `params` do too"
            yield Complaint(f"{path}.params", message, hint, by=_BY)
        if bounds.cost_usd is not None and not is_priced(entry):
            message = f"`limits.cost_usd`{whose} needs a price for the model `{use.alias}`"
            hint = _PRICE if has_list() else f"{_PRICE}, or {_LIST}"
            yield Complaint(path, message, hint, by=_BY)


def _uses(step: Step, models: Mapping[str, ModelEntry], default: str | None) -> Iterator[_Use]:
    """What a step may ask: its model, who answers in its stead, its judges, who sums up."""
    aside: list[str | None] = list(judges_of(step.expect))
    if isinstance(step, PromptStep):
        for alias in _with_fallbacks((step.model or default,), models):
            yield _Use(alias, step.params)
        aside.append(step.context.summary_model if step.context.max_tokens else None)
    for alias in _with_fallbacks(aside, models):
        yield _Use(alias, {})


def _with_fallbacks(
    aliases: Iterable[str | None], models: Mapping[str, ModelEntry]
) -> Iterator[str]:
    waiting, seen = [alias for alias in aliases if alias], set[str]()
    while waiting:
        alias = waiting.pop(0)
        # One that is not there is complained of elsewhere.
        if alias in models and alias not in seen:
            seen.add(alias)
            yield alias
            waiting.extend(models[alias].fallback)


def _default(pipeline: Pipeline) -> str | None:
    if pipeline.model is not None:
        return pipeline.model
    return next(iter(pipeline.models)) if len(pipeline.models) == 1 else None
