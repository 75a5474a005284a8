"""What a run may cost at most, as far as that can be known before it (B8, B10)."""

from collections.abc import Iterator, Mapping

from aish.config.steps import PipelineStep, Prompt, PromptStep, Step
from aish.core.deltas import Usage
from aish.core.errors import AishError
from aish.core.json import JsonObject, JsonValue
from aish.models.pricing import Listed, Pricing, Rates, pricing_of
from aish.run.order import systems_of
from aish.run.plan import Plan
from aish.run.plan_requests import inner_context
from aish.templates.references import references
from aish.templates.render import render
from aish.wire.chat_encode import answer_limit

# Of a request beside its texts, in bytes; and of what is said of an answer that does not fit.
_FRAME = 256
_COMPLAINT = 4096
_BYTES_PER_TOKEN = 4


def price_view(plan: Plan, alias: str) -> JsonValue:
    """The price of a model: per million tokens, `listed`, or `null` for one that is not known."""
    pricing = pricing_of(plan.models[alias].entry)
    if isinstance(pricing, Rates):
        return {"input": pricing.input, "output": pricing.output}
    return "listed" if isinstance(pricing, Listed) and pricing.known else None


def cost_view(plan: Plan, context: Mapping[str, JsonValue]) -> JsonObject:
    """The most that the run may cost; `null` where neither its steps nor a limit bound it."""
    bounds = [_all(plan, context), plan.limits.cost_usd]
    return {"at_most": min((bound for bound in bounds if bound is not None), default=None)}


def _all(plan: Plan, context: Mapping[str, JsonValue]) -> float | None:
    """What all steps may cost, if that is known of each."""
    costs = [_most(step, plan, context) for step in plan.steps]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _most(step: Step, plan: Plan, context: Mapping[str, JsonValue]) -> float | None:
    """What one step may cost; a try that breaks off may be charged for and is not counted."""
    if isinstance(step, PipelineStep):
        inner = _all(plan.inner[step.id], inner_context(step, plan, context))
        if inner and step.flow.foreach is not None:
            return None
        return None if inner is None else inner * step.flow.retry.attempts
    judged = any(one.kind == "judge" for one in step.expect)
    if not isinstance(step, PromptStep):
        return None if judged else 0.0
    models = list(_asked(plan.model_of(step), plan))
    pricings = {alias: pricing_of(plan.models[alias].entry) for alias in models}
    if not judged and all(one == Rates(0.0, 0.0) for one in pricings.values()):
        return 0.0
    size = _opening(step, context)
    if judged or size is None or step.flow.foreach is not None or _may_call(step, plan):
        return None
    costs = [_of_model(alias, pricing, step, size, plan) for alias, pricing in pricings.items()]
    known = [cost for cost in costs if cost is not None]
    return max(known) * step.flow.retry.attempts if len(known) == len(costs) else None


def _of_model(
    alias: str, pricing: Pricing | None, step: PromptStep, size: int, plan: Plan
) -> float | None:
    most = answer_limit({**plan.models[alias].entry.params, **step.params})
    if most is None or pricing is None:
        return None
    total = 0.0
    for attempt in range(1 if step.output is None else step.output.attempts):
        more = attempt * (most * _BYTES_PER_TOKEN + _COMPLAINT)
        cost = pricing.cost(Usage(-(-(size + more) // _BYTES_PER_TOKEN), most))
        if cost is None:
            return None
        total += cost
    return total


def _asked(alias: str, plan: Plan) -> Iterator[str]:
    """A model, and those that answer in its stead."""
    waiting, seen = [alias], set[str]()
    while waiting:
        one = waiting.pop(0)
        if one not in seen and one in plan.models:
            seen.add(one)
            yield one
            waiting.extend(plan.models[one].entry.fallback)


def _may_call(step: PromptStep, plan: Plan) -> bool:
    """Whether tools may be called, whose results nobody knows the size of."""
    return bool(plan.servers) and step.tools != ()


def _opening(step: PromptStep, context: Mapping[str, JsonValue]) -> int | None:
    """The bytes of the first request, where they do not wait for other steps."""
    if step.attach or step.continues or not isinstance(step.prompt, Prompt):
        # What a server says, what is in a file, or what was said before.
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
