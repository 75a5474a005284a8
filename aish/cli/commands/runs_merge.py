"""`aish runs merge RUN…`."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import (
    Argument,
    CsvRawOption,
    Option,
    PastRunDirOption,
    QuietOption,
    Report,
    ReportOption,
    TableStepOption,
    VerboseOption,
)
from aish.cli.output_setup import check_kind, check_writable
from aish.cli.printer import print_json
from aish.core.errors import UsageError
from aish.core.phrases import backticked, counted
from aish.features.history.merge import merge
from aish.features.history.run_store import JOURNAL, RunStore, find_run, open_store, open_stores
from aish.output.items.results import open_items_file
from aish.output.items.table import ALL_RAW, WRITERS, write_table


def command(
    runs: Annotated[
        list[str],
        Argument(
            metavar="RUN...",
            help="The run of each shard: its id, or its folder.",
            completes="run_ids",
        ),
    ],
    *,
    output: Annotated[
        Path, Option("-o", "--output", metavar="FILE", help="A .csv, .tsv or .jsonl file.")
    ],
    step: TableStepOption = None,
    csv_raw: CsvRawOption = False,
    run_dir: PastRunDirOption = None,
    format_: ReportOption = Report.TEXT,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Join the results of all shards of a run, if they are all there.

    Example: aish runs merge shards/*/.aish/runs/* -o results.csv
    """
    del verbose
    check_kind(output)
    if output.suffix.lower() not in WRITERS:
        known = backticked(WRITERS)
        raise UsageError(f"results are written as {known}", where=f"-o {output}")
    check_writable(output)
    with ExitStack() as stack:
        parts = [_find(name, run_dir, stack) for name in runs]
        items = stack.enter_context(closing(open_items_file(None)))
        found = merge(parts, step, items)
        write_table(items, found, output, ALL_RAW if csv_raw else None)
        statuses = [str(row["status"]) for row in items.rows(found)]
    failed = sum(status not in {"ok", "skipped"} for status in statuses)
    if format_ is Report.JSON:
        made = {"runs": [name for _, name in parts], "step": found, "output": str(output)}
        print_json({"v": 1, **made, "items": len(statuses), "failed": failed})
    elif not quiet:
        said = f"{counted(len(statuses), 'item')} of {counted(len(parts), 'run')}"
        say(f"{said}, {failed} failed" if failed else said)
    return 0


def _find(name: str, run_dir: Path | None, stack: ExitStack) -> tuple[RunStore, str]:
    """A run by its folder, anywhere, or by its id."""
    folder = Path(name)
    if (folder / JOURNAL).is_file():
        whole = folder.resolve()
        return stack.enter_context(open_store(whole.parent, folder.parent)), whole.name
    if folder.is_dir():
        within = any(folder.glob(f"*/{JOURNAL}"))
        hint = f"runs are in it: `{name.rstrip('/')}/*` names them" if within else None
        raise UsageError("the folder has no journal of a run", where=name, hint=hint)
    return find_run(open_stores(run_dir, stack), name)
