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
)
from aish.cli.output_setup import check_table
from aish.cli.printer import print_json
from aish.core.errors import UsageError
from aish.core.phrases import counted
from aish.features.history.merge import merge
from aish.features.history.run_store import JOURNAL, RunStore, find_run, open_store, open_stores
from aish.output.items.results import open_items_file
from aish.output.items.table import ALL_RAW, write_table


def command(
    runs: Annotated[
        list[str],
        Argument("RUN...", "The run of each shard: its id, or its folder.", completes="run_ids"),
    ],
    *,
    output: Annotated[Path, Option("-o --output FILE", "A .csv, .tsv or .jsonl file.")],
    step: TableStepOption = None,
    csv_raw: CsvRawOption = False,
    run_dir: PastRunDirOption = None,
    output_format: ReportOption = Report.TEXT,
    quiet: QuietOption = False,
) -> int:
    """Join the results of all shards of a run, if they are all there.

    Example: aish runs merge shards/*/.aish/runs/* -o results.csv
    """
    check_table(output, "results")
    with ExitStack() as stack:
        parts = [_find(name, run_dir, stack) for name in runs]
        items = stack.enter_context(closing(open_items_file(None)))
        step_id = merge(parts, step, items)
        write_table(items, step_id, output, ALL_RAW if csv_raw else None)
        statuses = [str(row["status"]) for row in items.rows(step_id)]
    failed = sum(status not in {"ok", "skipped"} for status in statuses)
    if output_format is Report.JSON:
        summary = {"runs": [name for _, name in parts], "step": step_id, "output": str(output)}
        print_json({"v": 1, **summary, "items": len(statuses), "failed": failed})
    elif not quiet:
        counts = f"{counted(len(statuses), 'item')} of {counted(len(parts), 'run')}"
        say(f"{counts}, {failed} failed" if failed else counts)
    return 0


def _find(name: str, run_dir: Path | None, stack: ExitStack) -> tuple[RunStore, str]:
    folder = Path(name)
    if (folder / JOURNAL).is_file():
        whole = folder.resolve()
        return stack.enter_context(open_store(whole.parent, folder.parent)), whole.name
    if folder.is_dir():
        within = any(folder.glob(f"*/{JOURNAL}"))
        hint = f"runs are in it: `{name.rstrip('/')}/*` names them" if within else None
        raise UsageError("the folder has no journal of a run", where=name, hint=hint)
    return find_run(open_stores(run_dir, stack), name)
