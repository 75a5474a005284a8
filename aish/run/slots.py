"""How many units of work, plain steps and items, are in flight at the same time (F3)."""

from collections.abc import Iterable

from aish.config.steps import Step
from aish.run.options import RunOptions

FEWEST = 8


def slots(steps: Iterable[Step], options: RunOptions) -> int:
    """What the command line says, else enough for the widest `foreach`."""
    if options.concurrency is not None:
        return options.concurrency
    wanted = (step.flow.foreach.concurrency for step in steps if step.flow.foreach is not None)
    return max(FEWEST, *wanted, FEWEST)
