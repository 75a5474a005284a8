"""Estimates items, model requests and maximum cost of a run.

As far as they can be known before the run.
"""

from collections.abc import Mapping

from aish.config.model import Foreach, PipelineStep, Prompt, PromptStep, Step
from aish.core.errors import AishError
from aish.core.events import KeySurvey
from aish.core.frozen import slotted
from aish.core.json import JsonValue
from aish.core.messages import sum_costs
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import systems_of, texts, with_fallbacks
from aish.engine.plan.plan import Plan
from aish.engine.plan.template_context import template_context
from aish.models.dialect_choice import answer_limit
from aish.models.pricing import (
    Listed,
    Pricing,
    Rates,
    is_free,
    pricing_of,
    single_pricing,
)
from aish.templates.render import (
    references,
    references_of_expression,
    render,
    render_tree,
    render_value,
)

Context = Mapping[str, JsonValue]

Surveys = Mapping[str, KeySurvey]


@slotted
class Requests:
    """`most` of `None` is unknown, because the number of items of `uncounted` is."""

    least: int = 0
    most: int | None = 0
    uncounted: str | None = None

    def add(self, other: "Requests") -> None:
        self.least += other.least
        self.uncounted = self.uncounted or other.uncounted
        both = self.most is not None and other.most is not None
        self.most = (self.most or 0) + (other.most or 0) if both else None


def requests(plan: Plan, context: Context, surveys: Surveys | None = None) -> Requests:
    """The minimum and maximum number of model requests of the run, within its limits.

    `surveys` belong to the steps whose keys were surveyed, by their ids in events.
    """
    counted = _requests(plan, context, surveys or {})
    known = [most for most in (counted.most, plan.limits.turns) if most is not None]
    counted.most = min(known, default=None)
    return counted


def item_count(foreach: Foreach, context: Context, keys: KeySurvey | None = None) -> int | None:
    """The number of items to run, if it can be known before the run."""
    return keys.runs(foreach.on_duplicate) if keys else _count(foreach, context)


def _count(foreach: Foreach, context: Context) -> int | None:
    from aish.items.counting import count_of
    from aish.items.items import from_glob, from_list

    try:
        if foreach.glob is not None:
            return from_glob(foreach.glob, foreach.folder).total
        if foreach.file is not None:
            if any(name.startswith("steps") for name in references(foreach.file)):
                return None
            return count_of(foreach.folder / render(foreach.file, context))
        expression = foreach.expression or ""
        if any(name.startswith("steps") for name in references_of_expression(expression)):
            return None
        return from_list(render_value("{{ " + expression + " }}", context)).total
    except AishError:
        # Problems are reported when they are read.
        return None


def inner_context(step: PipelineStep, plan: Plan, context: Context) -> Context:
    """The template context of a sub-pipeline, without inputs that wait for other steps."""
    inner = plan.inner[step.id]
    schemas = inner.pipeline.inputs
    inputs = {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
    for name, value in step.inputs.items():
        inputs.pop(name, None)
        if not any(
            one.split(".")[0] == "steps" for text in texts(value) for one in references(text)
        ):
            try:
                inputs[name] = render_tree(value, context)
            except AishError:
                continue
    return template_context(inner.pipeline, RunOptions(inputs=inputs), {}, inner.variables)


def _requests(plan: Plan, context: Context, surveys: Surveys, within: str = "") -> Requests:
    total = Requests()
    for step in plan.steps:
        counts = _of_step(step, plan, context, surveys, within)
        keys = surveys.get(f"{within}{step.id}")
        if counts.most is not None:
            counts.most *= step.flow.retry.attempts
        foreach = step.flow.foreach
        if foreach is not None and counts.most != 0:
            count = item_count(foreach, context, keys)
            counts.least *= count or 0
            counts.most = None if counts.most is None or count is None else counts.most * count
            if count is None:
                counts.uncounted = f"{within}{step.id}"
        if step.flow.when is not None:
            counts.least = 0
        total.add(counts)
    return total


def _of_step(step: Step, plan: Plan, context: Context, surveys: Surveys, within: str) -> Requests:
    match step:
        case PromptStep():
            return Requests(1, _most(step, plan))
        case PipelineStep():
            inside = inner_context(step, plan, context)
            return _requests(plan.inner[step.id], inside, surveys, f"{within}{step.id}/")
        case _:
            return Requests()


def _most(step: PromptStep, plan: Plan) -> int:
    """The maximum number of answers, including the tool rounds between them."""
    answers = 1 if step.output is None else step.output.attempts
    if not plan.servers or step.tools == ():
        return answers
    model = plan.models.get(plan.model_of(step))
    # An endpoint that does not support both gets the schema after the tools, in one more request.
    apart = step.output is not None and model is not None and model.entry.json_schema is not False
    return answers + step.limits.max_tool_depth + apart


# Overhead of a request beside its texts, in bytes; and the message about an invalid answer.
_FRAME = 256
_COMPLAINT = 4096
_BYTES_PER_TOKEN = 4


def price_of(plan: Plan, alias: str) -> Rates | Listed | None:
    pricing = single_pricing(plan.models[alias].entry)
    if isinstance(pricing, Rates) or (isinstance(pricing, Listed) and pricing.is_listed):
        return pricing
    return None


def most_cost(plan: Plan, context: Mapping[str, JsonValue]) -> float | None:
    """The maximum cost of the run; `None` if neither its steps nor a limit bound it."""
    bounds = [_all(plan, context), plan.limits.cost_usd]
    return min((bound for bound in bounds if bound is not None), default=None)


def _all(plan: Plan, context: Mapping[str, JsonValue]) -> float | None:
    return sum_costs(_most_paid(step, plan, context) for step in plan.steps)


def _most_paid(step: Step, plan: Plan, context: Mapping[str, JsonValue]) -> float | None:
    """The maximum cost of one step; an aborted attempt may be charged for and is not counted."""
    if isinstance(step, PipelineStep):
        inner = _all(plan.inner[step.id], inner_context(step, plan, context))
        if inner and step.flow.foreach is not None:
            return None
        return None if inner is None else inner * step.flow.retry.attempts
    judged = any(expectation.kind == "judge" for expectation in step.expect)
    if not isinstance(step, PromptStep):
        return None if judged else 0.0
    entries = {alias: model.entry for alias, model in plan.models.items()}
    models = with_fallbacks([plan.model_of(step)], entries)
    pricings = {alias: pricing_of(entries[alias]) for alias in models}
    if not judged and all(is_free(entries[alias]) for alias in pricings):
        return 0.0
    size = _first_request_size(step, context)
    # The size of tool results is unknown.
    calls = bool(plan.servers) and step.tools != ()
    if judged or size is None or step.flow.foreach is not None or calls:
        return None
    costs = [_of_model(alias, pricing, step, size, plan) for alias, pricing in pricings.items()]
    known = [cost for cost in costs if cost is not None]
    return max(known) * step.flow.retry.attempts if len(known) == len(costs) else None


def _of_model(
    alias: str, pricing: Pricing | None, step: PromptStep, size: int, plan: Plan
) -> float | None:
    most = answer_limit(plan.models[alias].entry, step.params)
    if most is None or pricing is None:
        return None
    total = 0.0
    for attempt in range(1 if step.output is None else step.output.attempts):
        more = attempt * (most * _BYTES_PER_TOKEN + _COMPLAINT)
        cost = pricing.most(-(-(size + more) // _BYTES_PER_TOKEN), most)
        if cost is None:
            return None
        total += cost
    return total


def _first_request_size(step: PromptStep, context: Mapping[str, JsonValue]) -> int | None:
    """The bytes of the first request, as far as they do not depend on other steps."""
    if step.attach or step.continues or step.context.files or not isinstance(step.prompt, Prompt):
        # Server content, file content, or an earlier conversation.
        return None
    sources = [text for text in (*systems_of(step), step.prompt.user) if text]
    if any(name.split(".")[0] == "steps" for text in sources for name in references(text)):
        return None
    try:
        texts = [str(render(text, context)) for text in sources]
    except AishError:
        return None
    schema = 0 if step.output is None else len(str(step.output.schema)) * 2
    return sum(len(text.encode("utf-8", "replace")) for text in texts) + schema + _FRAME
