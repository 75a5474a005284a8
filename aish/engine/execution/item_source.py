"""The items of a step: their source and number."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from anyio import to_thread

from aish.config.model import Foreach, PipelineStep, PromptStep, Step
from aish.core.errors import AishError, UsageError
from aish.core.events import KeySurvey
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import names_item, needs_of, texts
from aish.engine.plan.plan import Plan
from aish.engine.plan.template_context import template_context
from aish.engine.steps.context import StepContext
from aish.items.counting import count_of
from aish.items.items import Item, Items, from_file, from_glob, from_list
from aish.items.keys import SAME_KEY, KeyOf, survey
from aish.items.source import ItemsError
from aish.templates.render import (
    evaluate,
    references,
    references_of_expression,
    render,
    render_value,
)
from aish.templates.values import NamePath, ProjectNames, look_up, parts_of

Context = Mapping[str, JsonValue]


def items_of(foreach: Foreach, context: Context) -> Items:
    """The items; a file is read lazily.

    Raises:
        StepFailedError: they cannot be read.
    """
    if foreach.file is not None:
        path = foreach.folder / render(foreach.file, context)
        return from_file(path, foreach.delimiter)
    if foreach.glob is not None:
        return from_glob(foreach.glob, foreach.folder)
    return from_list(value_of(foreach.expression or "", context))


def key_of(foreach: Foreach, context: Context) -> KeyOf:
    """The expression of an item's key, the index if the file defines none."""
    if foreach.key is None:
        return lambda item: str(item.index)
    root = context.root if isinstance(context, ProjectNames) else foreach.folder
    path = _path_in_item(foreach)

    def key(item: Item) -> JsonValue:
        if path and isinstance(item.value, Mapping):
            is_there, value = look_up(path, item.value)
            if is_there:
                return value
        names = {**context, foreach.name: item.value, "index": item.index}
        return value_of(foreach.key or "", ProjectNames(names, root))

    return key


_COLUMN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[(['\"])([^'\"\\]+)\2\]")


def _column(foreach: Foreach) -> str | None:
    """The column that is the key, if the expression is a plain column."""
    key = foreach.key or ""
    if (match := _COLUMN.fullmatch(key)) is not None:
        return match[3] if match[1] == foreach.name else None
    path = _path_in_item(foreach)
    return path[0] if len(path) == 1 and isinstance(path[0], str) else None


def _path_in_item(foreach: Foreach) -> NamePath:
    """The path of the key in the item, if it can be looked up without a template."""
    match parts_of("{{ " + (foreach.key or "") + " }}"):
        case ("", (foreach.name, *path), ""):
            return tuple(path)
        case _:
            return ()


def survey_keys(foreach: Foreach, items: Items, context: Context) -> Iterator[KeySurvey | None]:
    """Survey the keys of all items; reads all of them.

    Yields the survey last; before it, `None` to let other tasks run.

    Raises:
        ItemsError: they cannot be read, or a duplicate key is an error.
        ComputationStoppedError: a signal or the deadline of the task has stopped it.
    """
    own_key, is_computed = key_of(foreach, context), not _path_in_item(foreach)
    for result in survey(items, own_key, _column(foreach), is_computed=is_computed):
        if result is not None:
            _check(result, foreach)
        yield result


def _check(keys: KeySurvey, foreach: Foreach) -> None:
    if keys.items and keys.unusable == keys.items:
        raise ItemsError(f"no item has a key: {keys.odd}")
    if keys.twice is None or foreach.on_duplicate != "fail":
        return
    key, first, second = keys.twice
    more = f"; {keys.repeated:,} items repeat a key" if keys.repeated > 1 else ""
    if keys.file is None:
        message = f"items {first} and {second} have the same key `{key}`{more}"
        raise ItemsError(message, hint=SAME_KEY)
    message = f"the key `{key}` is that of line {first} too{more}"
    raise ItemsError(message, where=f"{keys.file}:{second}", hint=SAME_KEY)


def with_surveys(plan: Plan, options: RunOptions) -> RunOptions:
    """The options with surveys of the items' keys that are known before the run.

    Raises:
        UsageError: items cannot be read, or a duplicate key is an error.
    """
    return replace(options, surveys=_surveys(plan, options)) if options.key_check else options


def _surveys(plan: Plan, options: RunOptions) -> dict[str, KeySurvey]:
    surveys: dict[str, KeySurvey] = {}
    context = template_context(plan.pipeline, options, {}, plan.variables)
    for id, foreach, names, is_sure in _steps_with_items(_PlanScope(plan, context)):
        try:
            looks = survey_keys(foreach, items_of(foreach, names), names)
            surveys[id] = next(survey for survey in looks if survey is not None)
        except AishError as error:
            if not is_sure:
                # It is reported when the step begins, if it does.
                continue
            where = error.where or f"step `{id}`"
            raise UsageError(error.message, where=where, hint=error.hint) from error
    return surveys


@frozen
class _PlanScope:
    """Knowledge of a plan before the run.

    `unknown` are inputs of a sub-pipeline that are known only during the run; `written` says that
    an earlier step may write the files it reads, `sure` that it will certainly run, and `prefix`
    precedes the ids of its steps.
    """

    plan: Plan
    context: Context
    unknown: frozenset[str] = frozenset()
    written: bool = False
    sure: bool = True
    prefix: str = ""

    def waits(self, names: Iterable[str]) -> bool:
        """Return true if one of the names gets its value only during the run."""
        return any(
            name.split(".")[0] == "steps"
            or (name == "inputs" and bool(self.unknown))
            or (name.startswith("inputs.") and name.split(".")[1] in self.unknown)
            for name in names
        )


def _steps_with_items(scope: _PlanScope) -> Iterator[tuple[str, Foreach, Context, bool]]:
    """The steps with keys whose items exist before the run, including those of sub-pipelines.

    With each, whether it is certain to run; steps that are certain not to run are omitted.
    """
    runs: dict[str, bool | None] = {}
    for step in scope.plan.steps:
        will = runs[step.id] = _will_run(step, scope, runs)
        if will is False:
            continue
        foreach = step.flow.foreach
        sure = scope.sure and will is True
        if foreach is not None and foreach.key is not None and _is_known(step, foreach, scope):
            yield scope.prefix + step.id, foreach, scope.context, sure
        if isinstance(step, PipelineStep):
            yield from _steps_with_items(_inside(step, scope, sure=sure and not names_item(step)))


def _will_run(step: Step, scope: _PlanScope, runs: Mapping[str, bool | None]) -> bool | None:
    """Return true if a step runs unless an earlier one fails; `None` if only the run can tell.

    `runs` has the same for the earlier steps.
    """
    when = step.flow.when
    if when is None:
        steps = {other.id: other for other in scope.plan.pipeline.steps}
        needs = [runs.get(need) for need in needs_of(step, steps)]
        # It is skipped if a needed step was skipped.
        return False if False in needs else None if None in needs else True
    if names_item(step):
        return True
    if scope.waits(references_of_expression(when)):
        return None
    try:
        return bool(evaluate(when, scope.context))
    except AishError:
        # It is reported when the step begins.
        return None


def _is_known(step: Step, foreach: Foreach, scope: _PlanScope) -> bool:
    """Return true if the items and their keys are certain to be the same during the run."""
    if input_parts(step, scope.plan) != ("item", "key"):
        return False
    if scope.written and foreach.expression is None:
        return False
    reads = set(references_of_expression(foreach.key or ""))
    if foreach.expression is not None:
        reads |= references_of_expression(foreach.expression)
    else:
        reads |= references(foreach.file or "")
    return not scope.waits(reads)


def _inside(step: PipelineStep, scope: _PlanScope, *, sure: bool) -> _PlanScope:
    """The scope of the sub-pipeline of a step."""
    from aish.engine.plan.estimate import inner_context

    foreach = step.flow.foreach
    of_items = set() if foreach is None else {foreach.name, "index"}
    unknown: set[str] = set()
    for name, value in step.inputs.items():
        reads = {reference for text in texts(value) for reference in references(text)}
        if scope.waits(reads) or any(reference.split(".")[0] in of_items for reference in reads):
            unknown.add(name)
    return _PlanScope(
        scope.plan.inner[step.id],
        inner_context(step, scope.plan, scope.context),
        frozenset(unknown),
        scope.written or _may_be_written(step, scope.plan),
        sure,
        f"{scope.prefix}{step.id}/",
    )


def input_parts(step: Step, plan: Plan) -> tuple[Literal["item", "key"], ...]:
    """The parts of the items that came with the input, not written by a model or tool of the run.

    A file with a constant path is input too, unless an earlier step may have written it. Not for
    the steps of a sub-pipeline, whose inputs come from the outer run.
    """
    foreach = step.flow.foreach
    if foreach is None:
        return ()
    if foreach.expression is not None:
        is_computed = _reads_steps(references_of_expression(foreach.expression))
    else:
        is_computed = _reads_steps(references(foreach.file or "")) or _may_be_written(step, plan)
    if is_computed:
        return ()
    own_key = foreach.key is not None and _reads_steps(references_of_expression(foreach.key))
    return ("item",) if own_key else ("item", "key")


def _reads_steps(names: Iterable[str]) -> bool:
    return any(name.split(".")[0] == "steps" for name in names)


def _may_be_written(step: Step, plan: Plan) -> bool:
    """Return true if a step that this one waits for could have written a file."""
    steps = {other.id: other for other in plan.pipeline.steps}
    waiting, ids = [step], {step.id}
    while waiting:
        for id in needs_of(waiting.pop(), steps):
            other = steps[id]
            if not isinstance(other, PromptStep) or (plan.servers and other.tools != ()):
                return True
            if id not in ids:
                ids.add(id)
                waiting.append(other)
    return False


async def count(
    items: Items, keys: KeySurvey | None, foreach: Foreach, step_context: StepContext
) -> int | None:
    """The number of items to run, for progress display; unknown in advance for a shard."""
    if step_context.options.shard is not None:
        return None
    if keys is not None:
        return keys.runs(foreach.on_duplicate)
    if items.total is not None or items.file is None:
        return items.total
    return await to_thread.run_sync(count_of, items.file)


def value_of(expression: str, context: Context) -> JsonValue:
    """The value of an expression; a plain path, the usual case, needs no Jinja2."""
    return render_value("{{ " + expression + " }}", context)
