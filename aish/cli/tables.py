"""`-o results.csv` and `-o results.jsonl`: which step's items are meant, and what reads them."""

from pathlib import Path
from typing import BinaryIO

from aish.cli.boundary import say
from aish.cli.options import Format
from aish.config.steps import PipelineStep, Step
from aish.errors import UsageError
from aish.run.folder import RunFolder
from aish.run.plan import Plan
from aish.sinks.fanout import Sink
from aish.sinks.items.file import ItemsFile, open_items_file
from aish.sinks.text import Manner

_ENDINGS = frozenset({".csv", ".jsonl"})


def table_step(plan: Plan, output: Path | None, format_: Format) -> str | None:
    """The step whose items are written to `output` as a table, if that is what its name means.

    The last step, or the only one that has items. Without any, the file is like all others.

    Raises:
        UsageError: several steps have items, and the last one has none.
    """
    if output is None or output.suffix.lower() not in _ENDINGS or format_ is not Format.TEXT:
        return None
    having = [step.id for step in plan.steps if step.flow.foreach is not None]
    if not having or ends_with_items(plan):
        return having[-1] if having else None
    if len(having) > 1:
        names = ", ".join(f"`{name}`" for name in having)
        said = f"the steps {names} have items, and the last step has none: which are meant"
        hint = "`--format json -o results.json` has the items of all steps"
        raise UsageError(said, where=f"-o {output}", hint=hint)
    return having[0]


def ends_with_items(plan: Plan) -> bool:
    """Whether the last step, which speaks for the run, is one over items."""
    return plan.steps[-1].flow.foreach is not None


def items_file(plan: Plan, folder: RunFolder) -> ItemsFile | None:
    """Where the results of items are kept, if any step may have items."""
    return open_items_file(folder.path) if any(map(_may_have_items, plan.steps)) else None


def item_result(plan: Plan, items: ItemsFile, out: BinaryIO, manner: Manner) -> Sink:
    """What prints the texts of the last step's items."""
    from aish.sinks.items.texts import ItemTexts

    return ItemTexts(out, items, plan.steps[-1].id, say, manner)


def table(items: ItemsFile, step: str, path: Path) -> Sink:
    """What writes the items of a step to a file."""
    from aish.sinks.items.outlet import ItemsOutlet

    return ItemsOutlet(items, step, path, say)


def _may_have_items(step: Step) -> bool:
    return step.flow.foreach is not None or isinstance(step, PipelineStep)
