"""Sources of the values that the templates of a step read, where a run follows them.

They are those of all names that a template could read, not of those that it has read: what a
template leaves out may have decided that.
"""

from collections.abc import Iterable, Mapping

from aish.config.model import Foreach, Step
from aish.core.json import JsonValue
from aish.core.sources import ITEM, NO_SOURCES, READFILE, STDIN, Sources, union
from aish.engine.plan.order import texts
from aish.engine.records import StepRecord
from aish.engine.steps.context import StepContext
from aish.templates.render import references

_NO_TEXT = frozenset({"status", "usage"})
"""Fields of a step that have no text of a model or tool."""
_OUTPUT = "output"


def sources_of(templates: Iterable[str], context: StepContext) -> Sources:
    """The sources of what some templates give."""
    flow = context.agent.flow
    if flow is None:
        return NO_SOURCES
    found: list[Sources] = []
    for template in templates:
        found += (_of_name(name, context) for name in references(template))
        # In an expression too, and however it is spelled: it is seldom there for nothing.
        if READFILE in template:
            found += (frozenset({READFILE}), flow.local)
    return union(found)


def sources_of_tree(value: JsonValue | Mapping[str, JsonValue], context: StepContext) -> Sources:
    """The sources of a value with templates in it."""
    return sources_of(texts(value), context)


def base_sources(step: Step, context: StepContext) -> Sources:
    """The sources of whether, and over what, a step runs: all of its text has them."""
    if context.agent.flow is None:
        return NO_SOURCES
    found = [context.base]
    if step.flow.when is not None:
        found.append(sources_of((as_template(step.flow.when),), context))
    if context.item is not None:
        found.append(context.item.sources)
    return union(found)


def item_sources(foreach: Foreach, context: StepContext) -> Sources:
    """The sources of an item; what was written may be read with it."""
    flow = context.agent.flow
    if flow is None:
        return NO_SOURCES
    key = () if foreach.key is None else (as_template(foreach.key),)
    if foreach.expression is not None:
        return sources_of((as_template(foreach.expression), *key), context)
    path = sources_of((foreach.file or "", *key), context)
    return union((path, frozenset({ITEM}), flow.local))


def as_template(expression: str) -> str:
    return "{{ " + expression + " }}"


def _of_name(name: str, context: StepContext) -> Sources:
    """The sources of the value at a path such as `steps.notes.output`."""
    first, *rest = name.split(".")
    found: Iterable[Sources] = ()
    match first:
        case "steps":
            records = context.records
            ids = [id for id in rest[:1] if id in records] if rest else records
            found = (_of_field(records[id], rest[1:]) for id in ids)
        case "inputs":
            found = (_of_input(one, context) for one in rest[:1] or context.options.inputs)
        case "stdin" if context.options.stdin is not None:
            found = (frozenset({STDIN}),)
        case "env" | "stdin":
            pass
        case _ if context.item is not None:
            found = (context.item.sources,)
        case _:
            pass
    return union(found)


def _of_input(name: str, context: StepContext) -> Sources:
    return union((frozenset({f"inputs.{name}"}), context.given.get(name, NO_SOURCES)))


def _of_field(record: StepRecord, path: Iterable[str]) -> Sources:
    field = next(iter(path), "")
    if field in _NO_TEXT:
        return NO_SOURCES
    if field == _OUTPUT and record.output_sources is not None:
        return record.output_sources
    return record.sources
