"""`aish runs report ID`."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Annotated

from aish.cli.github import annotated_file
from aish.cli.options import (
    Argument,
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
    TableStepOption,
    VerboseOption,
)
from aish.cli.output_setup import check_kind, check_reports, check_writable
from aish.cli.printer import print_json, print_text
from aish.core.errors import UsageError
from aish.core.events import ItemFinished, ItemMoved, ItemStarted, Stamped, StepStarted
from aish.core.json import JsonObject
from aish.core.phrases import backticked
from aish.core.text import for_line
from aish.features.history.run_store import find_run, open_stores
from aish.features.history.summary import events, require_past
from aish.output.event_log import Sink
from aish.output.items.results import ItemsFile, open_items_file
from aish.output.items.table import ALL_RAW, WRITERS, step_of, write_table
from aish.reports.make import ReportFiles, make_reports
from aish.system.secrets.secrets import Secrets

_IN_FOLDER = "report.html"


def command(
    id: Annotated[
        str,
        Argument(
            metavar="ID",
            help="The run: its id, the end of its id, or `latest`.",
            completes="run_ids",
        ),
    ],
    *,
    junit: Annotated[
        Path | None, Option("--junit", metavar="FILE", help="Write JUnit XML to this file.")
    ] = None,
    html: Annotated[
        Path | None, Option("--html", metavar="FILE", help="Write an HTML page to this file.")
    ] = None,
    sarif: Annotated[
        Path | None,
        Option("--sarif", metavar="FILE", help="Write annotations as SARIF to this file."),
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the finished items to this .csv, .tsv or .jsonl file.",
        ),
    ] = None,
    step: TableStepOption = None,
    csv_raw: CsvRawOption = False,
    github: GitHubOption = False,
    otel: OtelOption = False,
    otel_endpoint: OtelEndpointOption = None,
    otel_content: OtelContentOption = False,
    run_dir: PastRunDirOption = None,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Make reports of a past run, from its journal: an HTML page in its folder, or what is named.

    Of a run that was interrupted, `-o` writes the table of the items that have ended.

    Example: aish runs report latest --junit junit.xml --html report.html
    """
    del verbose
    asked = ReportOptions(junit, html, sarif, github, otel, otel_endpoint, otel_content)
    with asked.files(id):
        secrets = Secrets()
        check_reports(asked, None, secrets)
        _check_table(output, step, csv_raw=csv_raw)
        with ExitStack() as stack:
            store, found = find_run(open_stores(run_dir, stack), id)
            journal = require_past(store, found, stack)
            in_folder = not (asked.at_end or asked.traced or output is not None)
            if in_folder:
                html = store.path / found / _IN_FOLDER
            others = _others(asked, found, secrets, stack)
            items = stack.enter_context(closing(open_items_file(None)))
            if output is not None:
                others.append(partial(_take_item, items))
            files = ReportFiles(junit, html, sarif, shared=not in_folder)
            table: JsonObject = {}
            try:
                make_reports(events(journal.reading), found, files, others, annotated_file)
                if output is not None:
                    table = _write_items(items, step, output, csv_raw=csv_raw)
            except OSError as error:
                said = f"cannot write the report: {error.strerror}"
                raise UsageError(said, where=str(error.filename)) from error
        _tell(found, files, format_, table)
        return 0


def _others(
    asked: ReportOptions, run: str, secrets: Secrets, stack: ExitStack
) -> list[Callable[[Stamped], None]]:
    """Reports of the run that are not files."""
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
    check_kind(output)
    if output.suffix.lower() not in WRITERS:
        known = backticked(WRITERS)
        raise UsageError(f"items are written as {known}", where=f"-o {output}")
    check_writable(output)


def _take_item(items: ItemsFile, stamped: Stamped) -> None:
    """The items of a sub-pipeline that runs for an item are part of that item."""
    event = stamped.event
    if isinstance(event, StepStarted | ItemStarted | ItemFinished | ItemMoved) and "/" not in (
        event.place.step or ""
    ):
        items(stamped)


def _write_items(items: ItemsFile, step: str | None, output: Path, *, csv_raw: bool) -> JsonObject:
    """Write the table of finished items; returns its path, and their number."""
    meant = step_of(items.steps(), step, f"-o {output}")
    write_table(items, meant, output, ALL_RAW if csv_raw else None)
    return {"output": str(output), "items": items.count(meant)}


def _tell(id: str, files: ReportFiles, format_: Report, table: JsonObject) -> None:
    """Print the paths of the reports, and of the table of items if requested."""
    paths = {"junit": files.junit, "html": files.html, "sarif": files.sarif}
    made = {name: None if path is None else str(path) for name, path in paths.items()}
    if format_ is Report.JSON:
        print_json({"v": 1, "run": id, **made, **table})
        return
    if table:
        print_text(for_line(str(table["output"])))
    for path in filter(None, made.values()):
        print_text(for_line(path))
