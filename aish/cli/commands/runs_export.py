"""`aish runs export ID DIR`."""

import gc
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from aish.cli.options import Argument, PastRunDirOption, Report, ReportOption, RunArgument
from aish.cli.printer import print_json, print_text
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.features.history.export import export_run
from aish.features.history.run_store import find_run, open_stores

_NOUNS = {
    "comms.jsonl": "message",
    "toolcalls.md": "tool call",
    "control.log": "line",
    "commands.jsonl": "command",
    "scripts": "script",
}


def command(
    id: RunArgument,
    folder: Annotated[Path, Argument("DIR", "The folder to write: a new or an empty one.")],
    *,
    run_dir: PastRunDirOption = None,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Write a past run's messages, tool calls and commands to a folder.

    An interrupted or live run is written as far as it has come.

    Example: aish runs export latest exported
    """
    # A long journal makes garbage that only the collector, which is off at the start, frees.
    gc.enable()
    with ExitStack() as stack:
        store, run = find_run(open_stores(run_dir, stack), id)
        done = export_run(store, run, folder)
    if output_format is Report.JSON:
        print_json(
            {
                "v": 1,
                "run": run,
                "folder": str(folder),
                "state": done.state,
                "writer": done.writer,
                "files": dict(done.counts),
            }
        )
    else:
        for name, count in done.counts.items():
            print_text(f"{for_line(str(folder / name))}: {counted(count, _NOUNS[name])}")
        if done.writer is not None:
            print_text(f"still running: {done.writer} writes the journal")
        elif done.state == "no_end":
            print_text("interrupted: the journal has no end")
    if done.problem is not None:
        raise done.problem
    return 0
