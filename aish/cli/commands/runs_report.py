"""`aish runs report ID`."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Annotated

from aish.cli.github import path_to_annotate
from aish.cli.options import (
    CsvRawOption,
    GitHubOption,
    Option,
    OtelContentOption,
    OtelEndpointOption,
    OtelOption,
    PastRunDirOption,
    Report,
    ReportOption,
    ReportOptions,
    RunArgument,
    TableStepOption,
)
from aish.cli.output_setup import check_reports, check_table
from aish.cli.printer import print_json, print_text
from aish.core.errors import UsageError
from aish.core.events import ItemFinished, ItemMoved, ItemStarted, Stamped, StepStarted
from aish.core.json import JsonObject
from aish.core.text import for_line
from aish.features.history.run_store import find_run, open_stores
from aish.features.history.summary import events, require_past
from aish.output.event_log import Sink
from aish.output.items.results import ItemsFile, open_items_file
from aish.output.items.table import ALL_RAW, step_of, write_table
from aish.reports.make import PAGE_NAME, ReportFiles, make_reports
from aish.system.secrets.secrets import Secrets


def command(
    id: RunArgument,
    *,
    junit: Annotated[Path | None, Option("--junit FILE", "Write JUnit XML to this file.")] = None,
    html: Annotated[Path | None, Option("--html FILE", "Write an HTML page to this file.")] = None,
    sarif: Annotated[
        Path | None, Option("--sarif FILE", "Write annotations as SARIF to this file.")
    ] = None,
    output: Annotated[
        Path | None,
        Option("-o --output FILE", "Write the finished items to this .csv, .tsv or .jsonl file."),
    ] = None,
    step: TableStepOption = None,
    csv_raw: CsvRawOption = False,
    github: GitHubOption = False,
    otel: OtelOption = False,
    otel_endpoint: OtelEndpointOption = None,
    otel_content: OtelContentOption = False,
    run_dir: PastRunDirOption = None,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Make reports of a past run, from its journal: an HTML page in its folder, or what is named.

    Of a run that was interrupted, `-o` writes the table of the items that have ended.

    Example: aish runs report latest --junit junit.xml --html report.html
    """
    asked = ReportOptions(junit, html, sarif, github, otel, otel_endpoint, otel_content)
    with asked.files(id):
        secrets = Secrets()
        check_reports(asked, None, secrets)
        _check_table(output, step, csv_raw=csv_raw)
        with ExitStack() as stack:
            store, run_id = find_run(open_stores(run_dir, stack), id)
            journal = require_past(store, run_id, stack)
            in_folder = not (asked.at_end or asked.traced or output is not None)
            if in_folder:
                html = store.path / run_id / PAGE_NAME
            others = _others(asked, run_id, secrets, stack)
            items = stack.enter_context(closing(open_items_file(None)))
            if output is not None:
                others.append(partial(_take_item, items))
            files = ReportFiles(junit, html, sarif, shared=not in_folder)
            table: JsonObject = {}
            try:
                make_reports(events(journal.reading), run_id, files, others, path_to_annotate)
                if output is not None:
                    meant = step_of(items.steps(), step, f"-o {output}")
                    write_table(items, meant, output, ALL_RAW if csv_raw else None)
                    table = {"output": str(output), "items": items.count(meant)}
            except OSError as error:
                message = f"cannot write the report: {error.strerror}"
                raise UsageError(message, where=str(error.filename)) from error
        _tell(run_id, files, output_format, table)
        return 0


def _others(
    asked: ReportOptions, run: str, secrets: Secrets, stack: ExitStack
) -> list[Callable[[Stamped], None]]:
    sinks: list[Sink] = []
    if asked.github:
        from aish.cli.github import github_of

        sinks.append(github_of(None))
    if asked.traced:
        from aish.cli.traces import traces_of

        sinks.append(traces_of(asked, run, secrets))
    for sink in sinks:
        stack.callback(sink.close)
    return list(sinks)


def _check_table(output: Path | None, step: str | None, *, csv_raw: bool) -> None:
    if output is None:
        if step is not None or csv_raw:
            named = "--step" if step is not None else "--csv-raw"
            raise UsageError(f"`{named}` goes with `-o FILE.csv`")
        return
    check_table(output, "items")


def _take_item(items: ItemsFile, stamped: Stamped) -> None:
    """The items of a sub-pipeline that runs for an item are part of that item."""
    event = stamped.event
    if isinstance(event, StepStarted | ItemStarted | ItemFinished | ItemMoved) and "/" not in (
        event.place.step or ""
    ):
        items(stamped)


def _tell(id: str, files: ReportFiles, output_format: Report, table: JsonObject) -> None:
    paths = {"junit": files.junit, "html": files.html, "sarif": files.sarif}
    paths_by_name = {name: None if path is None else str(path) for name, path in paths.items()}
    if output_format is Report.JSON:
        print_json({"v": 1, "run": id, **paths_by_name, **table})
        return
    if table:
        print_text(for_line(str(table["output"])))
    for path in filter(None, paths_by_name.values()):
        print_text(for_line(path))
