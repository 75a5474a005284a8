"""Where a run puts calls that a rule stages, and what is said of them (B16)."""

from pathlib import Path
from typing import TYPE_CHECKING

from aish.cli.boundary import say
from aish.cli.writable import check_writable
from aish.core.errors import UsageError
from aish.core.phrases import counted
from aish.engine.plan.plan import Plan, stages_calls
from aish.engine.run_folder import RunFolder

if TYPE_CHECKING:
    from aish.features.staging.queue import StagingQueue


def check_staging(plan: Plan, wanted: Path | None, *, ephemeral: bool) -> None:
    """Find out before the run whether staged calls have a place.

    Raises:
        UsageError: they have none.
    """
    if wanted is not None:
        check_writable(wanted, "--staged")
    elif ephemeral and stages_calls(plan):
        raise UsageError(
            "`mcp.stage` stores calls for review, and `--ephemeral` stores nothing",
            hint="`--staged FILE` sets the file for them",
        )


def book_of(plan: Plan, folder: RunFolder, wanted: Path | None) -> "StagingQueue | None":
    """Where the staged calls of a run go; `None` where no rule stages any.

    Raises:
        UsageError: the file has the calls of another run.
    """
    if wanted is None and not stages_calls(plan):
        return None
    from aish.features.staging.queue import open_queue

    return open_queue(plan, folder, wanted)


def tell_of(book: "StagingQueue") -> None:
    """Say what waits for review, and what to do about it."""
    if book.count:
        verb = "waits" if book.count == 1 else "wait"
        say(f"note: {counted(book.count, 'staged call')} {verb} for review: {book.shown}")
        say(f"hint: `aish apply {book.shown} --dry-run` shows what would be executed")
