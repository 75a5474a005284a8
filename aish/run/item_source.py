"""Where the items of a step are read from, and how many there are (F5)."""

from anyio import to_thread

from aish.config.steps import Foreach
from aish.items.counting import count_of
from aish.items.items import Items, from_file, from_glob, from_list
from aish.run.stage import Stage
from aish.templates.render import render, render_value
from aish.vocab.json import JsonValue


def items_of(foreach: Foreach, stage: Stage) -> Items:
    """The items, none of a file read yet.

    Raises:
        StepFailedError: there are none to be read.
    """
    if foreach.file is not None:
        return from_file(foreach.folder / render(foreach.file, stage.context()))
    if foreach.glob is not None:
        return from_glob(foreach.glob, foreach.folder)
    return from_list(value_of(foreach.expression or "", stage))


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
