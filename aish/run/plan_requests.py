"""How many items a step runs over, and how many model requests a run makes, as far as is known."""

from collections.abc import Mapping

from aish.config.steps import Foreach, PipelineStep, PromptStep, Step
from aish.core.errors import AishError
from aish.core.events import KeySurvey
from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue
from aish.run.context import template_context
from aish.run.options import RunOptions
from aish.run.order import texts
from aish.run.plan import Plan
from aish.templates.references import references, references_of_expression
from aish.templates.render import render, render_tree, render_value

Context = Mapping[str, JsonValue]

Surveys = Mapping[str, KeySurvey]


@slotted
class _Requests:
    """`most` of `None` is unknown, because of the items of `uncounted`."""

    least: int = 0
    most: int | None = 0
    uncounted: str | None = None

    def add(self, other: "_Requests") -> None:
        self.least += other.least
        self.uncounted = self.uncounted or other.uncounted
        both = self.most is not None and other.most is not None
        self.most = (self.most or 0) + (other.most or 0) if both else None


def requests(plan: Plan, context: Context, surveys: Surveys | None = None) -> JsonObject:
    """How many model requests the run makes: at least, and at most under its own bounds.

    `surveys` are of the steps whose keys were looked at, by their ids as events have them.
    `uncounted` is a step of which nobody knows how many items it has, if the most is unknown.
    """
    counted = _requests(plan, context, surveys or {})
    known = [most for most in (counted.most, plan.limits.turns) if most is not None]
    view: dict[str, JsonValue] = {"at_least": counted.least, "at_most": min(known, default=None)}
    return view if known else {**view, "uncounted": counted.uncounted}


def item_count(foreach: Foreach, context: Context, keys: KeySurvey | None = None) -> int | None:
    """How many items will be run, where that can be told before the run."""
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
        # What is wrong with them is said when they are read.
        return None


def inner_context(step: PipelineStep, plan: Plan, context: Context) -> Context:
    """What the templates of a sub-pipeline see; not the inputs that wait for other steps."""
    inner = plan.inner[step.id]
    schemas = inner.pipeline.inputs
    given = {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
    for name, value in step.inputs.items():
        given.pop(name, None)
        if not any(
            one.split(".")[0] == "steps" for text in texts(value) for one in references(text)
        ):
            try:
                given[name] = render_tree(value, context)
            except AishError:
                continue
    return template_context(inner.pipeline, RunOptions(inputs=given), {}, inner.variables)


def _requests(plan: Plan, context: Context, surveys: Surveys, within: str = "") -> _Requests:
    total = _Requests()
    for step in plan.steps:
        one = _of_step(step, plan, context, surveys, within)
        total.add(_with_items(step, one, context, within, surveys.get(f"{within}{step.id}")))
    return total


def _with_items(
    step: Step, one: _Requests, context: Context, within: str, keys: KeySurvey | None
) -> _Requests:
    """The requests of all items and attempts of a step."""
    if one.most is not None:
        one.most *= step.flow.retry.attempts
    foreach = step.flow.foreach
    if foreach is not None and one.most != 0:
        count = item_count(foreach, context, keys)
        one.least *= count or 0
        one.most = None if one.most is None or count is None else one.most * count
        if count is None:
            one.uncounted = f"{within}{step.id}"
    if step.flow.when is not None:
        one.least = 0
    return one


def _of_step(step: Step, plan: Plan, context: Context, surveys: Surveys, within: str) -> _Requests:
    match step:
        case PromptStep():
            return _Requests(1, _most(step, plan))
        case PipelineStep():
            inside = inner_context(step, plan, context)
            return _requests(plan.inner[step.id], inside, surveys, f"{within}{step.id}/")
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
