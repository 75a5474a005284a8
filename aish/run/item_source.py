"""Where the items of a step are read from, and how many there are (F5)."""

from collections.abc import Iterable
from typing import Literal

from anyio import to_thread

from aish.config.steps import Foreach, PromptStep, Step
from aish.items.counting import count_of
from aish.items.items import Items, from_file, from_glob, from_list
from aish.run.order import needs_of
from aish.run.plan import Plan
from aish.run.stage import Stage
from aish.templates.references import references, references_of_expression
from aish.templates.render import render, render_value
from aish.vocab.json import JsonValue


def items_of(foreach: Foreach, stage: Stage) -> Items:
    """The items, none of a file read yet.

    Raises:
        StepFailedError: there are none to be read.
    """
    if foreach.file is not None:
        path = foreach.folder / render(foreach.file, stage.context())
        return from_file(path, foreach.delimiter)
    if foreach.glob is not None:
        return from_glob(foreach.glob, foreach.folder)
    return from_list(value_of(foreach.expression or "", stage))


def given_parts(step: Step, plan: Plan) -> tuple[Literal["item", "key"], ...]:
    """What of the items came with the input: what no model and no tool of the run has written.

    A file whose path no step makes is input too, unless a step before this one may have written it.
    Not for the steps of a sub-pipeline: who runs it makes its inputs.
    """
    foreach = step.flow.foreach
    if foreach is None:
        return ()
    if foreach.expression is not None:
        made = _reads_steps(references_of_expression(foreach.expression))
    else:
        made = _reads_steps(references(foreach.file or "")) or _may_be_written(step, plan)
    if made:
        return ()
    own_key = foreach.key is not None and _reads_steps(references_of_expression(foreach.key))
    return ("item",) if own_key else ("item", "key")


def _reads_steps(names: Iterable[str]) -> bool:
    return any(name.split(".")[0] == "steps" for name in names)


def _may_be_written(step: Step, plan: Plan) -> bool:
    """Whether a step that this one waits for could have written a file."""
    steps = {one.id: one for one in plan.pipeline.steps}
    waiting, seen = [step], {step.id}
    while waiting:
        for id in needs_of(waiting.pop(), steps):
            one = steps[id]
            if not isinstance(one, PromptStep) or (plan.servers and one.tools != ()):
                return True
            if id not in seen:
                seen.add(id)
                waiting.append(one)
    return False


async def count(items: Items, stage: Stage) -> int | None:
    """How many items will be run, for people who wait; of a shard nobody knows before."""
    if stage.options.shard is not None:
        return None
    if items.total is not None or items.file is None:
        return items.total
    return await to_thread.run_sync(count_of, items.file)


def value_of(expression: str, stage: Stage) -> JsonValue:
    """What an expression gives; a plain path, as most are, needs no Jinja2."""
    return render_value("{{ " + expression + " }}", stage.context())
