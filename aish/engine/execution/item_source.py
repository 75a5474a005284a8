"""Where the items of a step are read from, and how many there are (F5)."""

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
    """The items, none of a file read yet.

    Raises:
        StepFailedError: there are none to be read.
    """
    if foreach.file is not None:
        path = foreach.folder / render(foreach.file, context)
        return from_file(path, foreach.delimiter)
    if foreach.glob is not None:
        return from_glob(foreach.glob, foreach.folder)
    return from_list(value_of(foreach.expression or "", context))


def key_of(foreach: Foreach, context: Context) -> KeyOf:
    """What gives an item's key, its index where the file names none."""
    if foreach.key is None:
        return lambda item: str(item.index)
    root = context.root if isinstance(context, ProjectNames) else foreach.folder
    path = _path_in_item(foreach)

    def key(item: Item) -> JsonValue:
        if path and isinstance(item.value, Mapping):
            found, value = look_up(path, item.value)
            if found:
                return value
        names = {**context, foreach.name: item.value, "index": item.index}
        return value_of(foreach.key or "", ProjectNames(names, root))

    return key


_COLUMN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[(['\"])([^'\"\\]+)\2\]")


def _column(foreach: Foreach) -> str | None:
    """The column that the key is, if it is no more than that."""
    key = foreach.key or ""
    if (found := _COLUMN.fullmatch(key)) is not None:
        return found[3] if found[1] == foreach.name else None
    path = _path_in_item(foreach)
    return path[0] if len(path) == 1 and isinstance(path[0], str) else None


def _path_in_item(foreach: Foreach) -> NamePath:
    """Where in the item the key stands, if it is plainly there; looked up without a template."""
    match parts_of("{{ " + (foreach.key or "") + " }}"):
        case ("", (foreach.name, *path), ""):
            return tuple(path)
        case _:
            return ()


def survey_keys(foreach: Foreach, items: Items, context: Context) -> Iterator[KeySurvey | None]:
    """What the keys of all items are like; goes through all of them.

    That is the last one; before it, `None` where something else is to get a turn.

    Raises:
        ItemsError: they cannot be read, or one key is there twice and that is to fail.
        ComputationStoppedError: a signal or the deadline of the task has stopped it.
    """
    own_key, is_computed = key_of(foreach, context), not _path_in_item(foreach)
    for found in survey(items, own_key, _column(foreach), is_computed=is_computed):
        if found is not None:
            _check(found, foreach)
        yield found


def _check(found: KeySurvey, foreach: Foreach) -> None:
    if found.items and found.unusable == found.items:
        raise ItemsError(f"no item has a key: {found.odd}")
    if found.twice is None or foreach.on_duplicate != "fail":
        return
    key, first, second = found.twice
    more = f"; {found.repeated:,} items repeat a key" if found.repeated > 1 else ""
    if found.file is None:
        said = f"items {first} and {second} have the same key `{key}`{more}"
        raise ItemsError(said, hint=SAME_KEY)
    said = f"the key `{key}` is that of line {first} too{more}"
    raise ItemsError(said, where=f"{found.file}:{second}", hint=SAME_KEY)


def with_surveys(plan: Plan, options: RunOptions) -> RunOptions:
    """The options with what the keys of items are like that are there before anything is run.

    Raises:
        UsageError: items cannot be read, or one key is there twice and that is to fail.
    """
    return replace(options, surveys=_surveys(plan, options)) if options.key_check else options


def _surveys(plan: Plan, options: RunOptions) -> dict[str, KeySurvey]:
    found: dict[str, KeySurvey] = {}
    context = template_context(plan.pipeline, options, {}, plan.variables)
    for id, foreach, names, is_sure in _known_before(_Scope(plan, context)):
        try:
            looks = survey_keys(foreach, items_of(foreach, names), names)
            found[id] = next(survey for survey in looks if survey is not None)
        except AishError as error:
            if not is_sure:
                # It is said when the step begins, if it does.
                continue
            where = error.where or f"step `{id}`"
            raise UsageError(error.message, where=where, hint=error.hint) from error
    return found


@frozen
class _Scope:
    """What is known of a plan before anything is run.

    `unknown` are the inputs of a sub-pipeline that only the run gives; `written` says that a step
    before it may write the files it reads, `sure` that nothing decides whether it is run at all,
    and `prefix` goes before the ids of its steps.
    """

    plan: Plan
    context: Context
    unknown: frozenset[str] = frozenset()
    written: bool = False
    sure: bool = True
    prefix: str = ""

    def waits(self, names: Iterable[str]) -> bool:
        """Whether one of the names has its value only while the pipeline runs."""
        return any(
            name.split(".")[0] == "steps"
            or (name == "inputs" and bool(self.unknown))
            or (name.startswith("inputs.") and name.split(".")[1] in self.unknown)
            for name in names
        )


def _known_before(scope: _Scope) -> Iterator[tuple[str, Foreach, Context, bool]]:
    """The steps with a key whose items are there before the run, those of sub-pipelines too.

    With each, whether it is sure to be run; none that is sure not to be.
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
            yield from _known_before(_inside(step, scope, sure=sure and not names_item(step)))


def _will_run(step: Step, scope: _Scope, runs: Mapping[str, bool | None]) -> bool | None:
    """Whether a step is run unless one before it fails; `None` where only the run tells.

    `runs` are the steps before it.
    """
    when = step.flow.when
    if when is None:
        steps = {one.id: one for one in scope.plan.pipeline.steps}
        needs = [runs.get(need) for need in needs_of(step, steps)]
        # With a need that was skipped it is skipped too.
        return False if False in needs else None if None in needs else True
    if names_item(step):
        return True
    if scope.waits(references_of_expression(when)):
        return None
    try:
        return bool(evaluate(when, scope.context))
    except AishError:
        # It is said when the step begins.
        return None


def _is_known(step: Step, foreach: Foreach, scope: _Scope) -> bool:
    """Whether the items and their keys are those that the run will find."""
    if given_parts(step, scope.plan) != ("item", "key"):
        return False
    if scope.written and foreach.expression is None:
        return False
    reads = set(references_of_expression(foreach.key or ""))
    if foreach.expression is not None:
        reads |= references_of_expression(foreach.expression)
    else:
        reads |= references(foreach.file or "")
    return not scope.waits(reads)


def _inside(step: PipelineStep, scope: _Scope, *, sure: bool) -> _Scope:
    """What is known of the sub-pipeline of a step."""
    from aish.engine.plan.estimate import inner_context

    foreach = step.flow.foreach
    of_items = set() if foreach is None else {foreach.name, "index"}
    unknown: set[str] = set()
    for name, value in step.inputs.items():
        reads = {one for text in texts(value) for one in references(text)}
        if scope.waits(reads) or any(one.split(".")[0] in of_items for one in reads):
            unknown.add(name)
    return _Scope(
        scope.plan.inner[step.id],
        inner_context(step, scope.plan, scope.context),
        frozenset(unknown),
        scope.written or _may_be_written(step, scope.plan),
        sure,
        f"{scope.prefix}{step.id}/",
    )


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


async def count(
    items: Items, keys: KeySurvey | None, foreach: Foreach, stage: StepContext
) -> int | None:
    """How many items will be run, for people who wait; of a shard nobody knows before."""
    if stage.options.shard is not None:
        return None
    if keys is not None:
        return keys.runs(foreach.on_duplicate)
    if items.total is not None or items.file is None:
        return items.total
    return await to_thread.run_sync(count_of, items.file)


def value_of(expression: str, context: Context) -> JsonValue:
    """What an expression gives; a plain path, as most are, needs no Jinja2."""
    return render_value("{{ " + expression + " }}", context)
