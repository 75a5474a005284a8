"""How many items a step runs over, and how many model requests a run makes, as far as is known."""

from collections.abc import Mapping
from dataclasses import dataclass

from aish.config.steps import Foreach, PipelineStep, PromptStep, Step
from aish.errors import AishError
from aish.run.plan import Plan
from aish.templates.references import references, references_of_expression
from aish.templates.render import render, render_value
from aish.vocab.json import JsonObject, JsonValue

Context = Mapping[str, JsonValue]


@dataclass(slots=True)
class _Requests:
    """`most` of `None` is unknown."""

    least: int = 0
    most: int | None = 0

    def add(self, least: int, most: int | None) -> None:
        self.least += least
        self.most = None if most is None or self.most is None else self.most + most


def requests(plan: Plan, context: Context) -> JsonObject:
    """How many model requests the run makes: at least, and at most under its own bounds."""
    counted = _requests(plan, context)
    return {"at_least": counted.least, "at_most": counted.most}


def item_count(foreach: Foreach, context: Context) -> int | None:
    """How many items there are, where that can be told before the run."""
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
        # What is wrong with them is said when they are read.
        return None


def _requests(plan: Plan, context: Context) -> _Requests:
    total = _Requests()
    for step in plan.steps:
        one = _of_step(step, plan, context)
        least, most = one.least, one.most
        if most is not None:
            most *= step.flow.retry.attempts
        foreach = step.flow.foreach
        if foreach is not None and most != 0:
            count = item_count(foreach, context)
            least *= count or 0
            most = None if most is None or count is None else most * count
        total.add(0 if step.flow.when is not None else least, most)
    return total


def _of_step(step: Step, plan: Plan, context: Context) -> _Requests:
    match step:
        case PromptStep():
            return _Requests(1, _most(step, plan))
        case PipelineStep():
            return _requests(plan.inner[step.id], context)
        case _:
            return _Requests()


def _most(step: PromptStep, plan: Plan) -> int:
    """The answers that may be asked for, and the tool rounds between them."""
    answers = 1 if step.output is None else step.output.attempts
    if not plan.servers or step.tools == ():
        return answers
    model = plan.models.get(plan.model_of(step))
    # An endpoint that does not take both has its schema after the tools, in one more.
    apart = step.output is not None and model is not None and model.entry.json_schema is not False
    return answers + step.limits.max_tool_depth + apart
