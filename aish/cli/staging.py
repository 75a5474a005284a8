"""Where a run puts calls that a rule stages, and what is said of them (B16)."""

from pathlib import Path
from typing import Protocol

from aish.cli.boundary import say
from aish.cli.writable import check_writable
from aish.core.errors import UsageError
from aish.core.phrases import counted
from aish.engine.plan.plan import Plan, stages_calls
from aish.engine.run_folder import RunFolder
from aish.output.event_log import Sink
from aish.policy.gate import Staging


class Book(Sink, Staging, Protocol):
    """A `staging.StagingQueue`: most files stage nothing, and import nothing of that room."""

    @property
    def count(self) -> int:
        """How many calls wait for review."""
        ...

    @property
    def shown(self) -> str:
        """Its file, as a person would type it."""
        ...


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


def book_of(plan: Plan, folder: RunFolder, wanted: Path | None) -> Book | None:
    """Where the staged calls of a run go; `None` where no rule stages any.

    Raises:
        UsageError: the file has the calls of another run.
    """
    if wanted is None and not stages_calls(plan):
        return None
    from aish.features.staging.queue import open_queue

    return open_queue(plan, folder, wanted)


def tell_of(book: Book) -> None:
    """Say what waits for review, and what to do about it."""
    if book.count:
        verb = "waits" if book.count == 1 else "wait"
        say(f"note: {counted(book.count, 'staged call')} {verb} for review: {book.shown}")
        say(f"hint: `aish apply {book.shown} --dry-run` shows what would be executed")
