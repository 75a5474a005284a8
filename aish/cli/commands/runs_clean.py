"""`aish runs clean`."""

import time
from contextlib import ExitStack
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.commands.runs_list import bytes_text
from aish.cli.options import Option, PastRunDirOption, Report, ReportOption, VerboseOption
from aish.cli.printer import print_json, print_text
from aish.config.fields import duration
from aish.core.errors import ExitCode, UsageError
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.features.history.clean import Cleaned, clean, to_clean
from aish.features.history.run_store import open_stores

_WHICH = "`--keep 20` keeps the newest 20, `--older-than 30d` deletes what is older"


def command(
    *,
    keep: Annotated[
        int | None,
        Option("--keep", metavar="N", min=0, help="Delete all but the newest N."),
    ] = None,
    older_than: Annotated[
        str | None,
        Option(
            "--older-than",
            metavar="DURATION",
            help="Delete runs that started longer ago: 30d, 12h.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Delete nothing; print what would be deleted.")
    ] = False,
    run_dir: PastRunDirOption = None,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Delete old run folders, never that of a live run.

    Ends with 1 if a run was chosen and could not be deleted.

    Example: aish runs clean --older-than 30d --dry-run
    """
    del verbose
    before = None if older_than is None else time.time() - _seconds(older_than)
    if (keep is None) == (before is None):
        said = (
            "no runs are selected"
            if keep is None
            else "`--keep` and `--older-than` exclude each other"
        )
        raise UsageError(said, hint=_WHICH)
    with ExitStack() as stack:
        chosen = to_clean(open_stores(run_dir, stack), keep=keep, before=before)
        done = [*clean(chosen, time.time(), dry_run=dry_run)]
    if format_ is Report.JSON:
        print_json([_row(one, dry_run=dry_run) for one in done])
    else:
        _report(done, dry_run=dry_run)
    return int(ExitCode.FAILED if any(one.kept for one in done) else ExitCode.OK)


def _seconds(text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise UsageError(str(error), where="--older-than") from error


def _row(one: Cleaned, *, dry_run: bool) -> JsonObject:
    """A selected run; `kept` is the reason why it was not deleted."""
    return {
        "run": one.id,
        "folder": str(one.store.path / one.id),
        "bytes": one.size,
        "deleted": one.kept is None and not dry_run,
        "kept": one.kept,
    }


def _report(done: list[Cleaned], *, dry_run: bool) -> None:
    deleted = [one for one in done if one.kept is None]
    for one in deleted:
        print_text(f"{for_line(str(one.store.path / one.id))}: {bytes_text(one.size)}")
    for one in done:
        if one.kept is not None:
            say(f"warning: `{one.store.path / one.id}` is kept: {one.kept}")
    freed = bytes_text(sum(one.size for one in deleted))
    verb = "would be" if dry_run else "were" if len(deleted) != 1 else "was"
    print_text(f"{counted(len(deleted), 'run')} {verb} deleted, {freed}")
