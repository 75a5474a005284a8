"""How many units of work, plain steps and items, are in flight at the same time (F3)."""

from collections.abc import Iterator

from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan

FEWEST = 8


def slots(plan: Plan, options: RunOptions) -> int:
    """What the command line says, else enough for the widest `foreach`."""
    if options.concurrency is not None:
        return options.concurrency
    return max(FEWEST, *_widths(plan), FEWEST)


def _widths(plan: Plan) -> Iterator[int]:
    """How many items each step wants in flight, those of sub-pipelines too."""
    for step in plan.steps:
        if step.flow.foreach is not None:
            yield step.flow.foreach.concurrency
    for inner in plan.inner.values():
        yield from _widths(inner)
