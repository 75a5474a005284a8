"""`aish runs list`."""

import sys
from contextlib import ExitStack
from shutil import get_terminal_size

from aish.cli.boundary import say
from aish.cli.options import PastRunDirOption, Report, ReportOption, VerboseOption
from aish.cli.printing import print_json, print_text
from aish.cli.runs_text import row_of, table
from aish.features.history.run_store import open_stores, sessions_elsewhere
from aish.features.history.summary import past_runs


def command(
    *,
    run_dir: PastRunDirOption = None,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """List the runs that were kept, and how each ended; the newest first.

    Example: aish runs list
    """
    del verbose
    with ExitStack() as stack:
        stores = open_stores(run_dir, stack)
        runs = list(past_runs(stores))
        hint = None if run_dir else sessions_elsewhere(stores)
    if format_ is Report.JSON:
        print_json([row_of(run) for run in runs])
    elif runs:
        width = get_terminal_size().columns if sys.stdout.isatty() else None
        print_text("\n".join(table(runs, width)))
    else:
        say("there are no runs here" + (f"; {hint}" if hint else ""))
    for run in runs:
        if run.problem is not None and format_ is Report.TEXT:
            say(f"warning: {run.problem}")
    return 0
