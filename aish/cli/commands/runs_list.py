"""`aish runs list`: past runs as text and as JSON.

Names of runs are untrusted text.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from shutil import get_terminal_size

from aish.cli.boundary import say
from aish.cli.options import PastRunDirOption, Report, ReportOption
from aish.cli.printer import print_json, print_text, table_lines
from aish.core.events import plain, rfc3339
from aish.core.json import JsonObject
from aish.core.messages import Usage
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.features.history.run_store import open_stores, sessions_elsewhere
from aish.features.history.summary import PastRun, State, past_runs
from aish.output.status import seconds_text

STATES: Mapping[State, str] = {
    "running": "running",
    "no_end": "interrupted (no end)",
    "unreadable": "unreadable",
}

_HEAD = ("id", "when (UTC)", "pipeline", "status", "exit", "steps", "tokens in / out", "took")
_RIGHT = frozenset({"exit", "steps"})
# The id contains the start time.
_LEFT_OUT_FIRST = ("when (UTC)", "steps", "tokens in / out", "took")
_LONGEST_NAME = 39


def table(runs: Sequence[PastRun], width: int | None = None) -> Iterator[str]:
    return table_lines(
        _HEAD, map(_cells, runs), width, right=_RIGHT, left_out_first=_LEFT_OUT_FIRST
    )


def row_of(run: PastRun) -> JsonObject:
    """Return a run for `--format json`; unknown values are null."""
    end = run.finished
    return {
        "run": run.id,
        "folder": str(run.folder),
        "began": rfc3339(run.began),
        "pipeline": run.pipeline,
        "status": run.state if end is None else end.status,
        "exit": None if end is None else plain(end.exit),
        "steps": run.steps,
        "usage": None if end is None else plain(end.usage),
        "seconds": None if end is None else end.seconds,
        "pending": _count_pending(run),
        "writer": run.writer,
        "problem": run.problem,
    }


def _cells(run: PastRun) -> tuple[str, ...]:
    end = run.finished
    return (
        run.id,
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run.began)),
        shorten(for_line(run.pipeline or ""), _LONGEST_NAME),
        _status(run),
        "" if end is None else str(end.exit.code),
        str(run.steps),
        "" if end is None else _tokens(end.usage),
        "" if end is None else seconds_text(end.seconds),
    )


def _status(run: PastRun) -> str:
    """The status, with the number of calls that can still be answered."""
    end, pending = run.finished, _count_pending(run)
    status = STATES[run.state] if end is None else end.status
    return f"{status} ({pending:,} pending)" if pending else status


def _count_pending(run: PastRun) -> int:
    now = time.time()
    return sum(question.outlives_process(now) for question in run.pending)


def _tokens(usage: Usage) -> str:
    """`412 / 96`, in and out; an unknown value is `?`."""
    if usage.input is None and usage.output is None:
        return ""
    known = ("?" if count is None else f"{count:,}" for count in (usage.input, usage.output))
    return " / ".join(known)


def bytes_text(size: int) -> str:
    """`412 B`, `1.4 MB`."""
    number, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while number >= 1000 and len(units) > 1:  # ruff: ignore[magic-value-comparison] - as defined by the units
        number, units = number / 1000, units[1:]
    return f"{size} B" if units[0] == "B" else f"{number:.1f} {units[0]}"


def command(*, run_dir: PastRunDirOption = None, output_format: ReportOption = Report.TEXT) -> int:
    """List the runs that were kept, and how each ended; the newest first.

    Example: aish runs list
    """
    with ExitStack() as stack:
        stores = open_stores(run_dir, stack)
        runs = list(past_runs(stores))
        hint = None if run_dir else sessions_elsewhere(stores)
    if output_format is Report.JSON:
        print_json([row_of(run) for run in runs])
    elif runs:
        width = get_terminal_size().columns if sys.stdout.isatty() else None
        print_text("\n".join(table(runs, width)))
    else:
        say("there are no runs here" + (f"; {hint}" if hint else ""))
    for run in runs:
        if run.problem is not None and output_format is Report.TEXT:
            say(f"warning: {run.problem}")
    return 0
