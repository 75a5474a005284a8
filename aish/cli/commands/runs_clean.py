"""`aish runs clean`."""

import time
from contextlib import ExitStack
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.commands.runs_list import bytes_text
from aish.cli.options import Option, PastRunDirOption, Report, ReportOption
from aish.cli.pipeline_options import seconds_of
from aish.cli.printer import print_json, print_text
from aish.core.errors import ExitCode, UsageError
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.features.history.clean import Cleaned, clean, to_clean
from aish.features.history.run_store import open_stores

_WHICH = "`--keep 20` keeps the newest 20, `--older-than 30d` deletes what is older"


def command(
    *,
    keep: Annotated[int | None, Option("--keep N", "Delete all but the newest N.", min=0)] = None,
    older_than: Annotated[
        str | None,
        Option("--older-than DURATION", "Delete runs that started longer ago: 30d, 12h."),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", "Delete nothing; print what would be deleted.")
    ] = False,
    run_dir: PastRunDirOption = None,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Delete old run folders, never that of a live run.

    The exit code is 1 if a chosen run could not be deleted.

    Example: aish runs clean --older-than 30d --dry-run
    """
    oldest = seconds_of(older_than, "--older-than", None)
    before = None if oldest is None else time.time() - oldest
    if (keep is None) == (before is None):
        message = (
            "no runs are selected"
            if keep is None
            else "`--keep` and `--older-than` exclude each other"
        )
        raise UsageError(message, hint=_WHICH)
    with ExitStack() as stack:
        chosen = to_clean(open_stores(run_dir, stack), keep=keep, before=before)
        done = [*clean(chosen, time.time(), dry_run=dry_run)]
    if output_format is Report.JSON:
        print_json([_row(run, dry_run=dry_run) for run in done])
    else:
        deleted = [run for run in done if run.kept is None]
        for run in deleted:
            print_text(f"{for_line(str(run.store.path / run.id))}: {bytes_text(run.size)}")
        for one in done:
            if one.kept is not None:
                say(f"warning: `{one.store.path / one.id}` is kept: {one.kept}")
        freed = bytes_text(sum(one.size for one in deleted))
        verb = "would be" if dry_run else "were" if len(deleted) != 1 else "was"
        print_text(f"{counted(len(deleted), 'run')} {verb} deleted, {freed}")
    return int(ExitCode.FAILED if any(one.kept for one in done) else ExitCode.OK)


def _row(run: Cleaned, *, dry_run: bool) -> JsonObject:
    """A selected run; `kept` is the reason why it was not deleted."""
    return {
        "run": run.id,
        "folder": str(run.store.path / run.id),
        "bytes": run.size,
        "deleted": run.kept is None and not dry_run,
        "kept": run.kept,
    }
