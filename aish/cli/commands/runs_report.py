"""`aish runs report ID`."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from aish.cli.github import annotated_file
from aish.cli.option_groups import Reporting
from aish.cli.options import (
    GitHubOption,
    OtelContentOption,
    OtelEndpointOption,
    OtelOption,
    PastRunDirOption,
    Report,
    ReportOption,
    VerboseOption,
    completes,
)
from aish.cli.printing import print_json, print_text
from aish.cli.writable import check_reports
from aish.errors import UsageError
from aish.reports.make import ReportFiles, make_reports
from aish.run.past.shelf import Shelf, open_shelves
from aish.run.past.telling import PastJournal, events, find, open_past
from aish.sinks.fanout import Sink
from aish.system.secrets import Secrets
from aish.text import for_line
from aish.vocab.events import Stamped

_IN_FOLDER = "report.html"


def command(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The run: its id, the end of its id, or `latest`.",
            autocompletion=completes("run_ids"),
        ),
    ],
    *,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML there.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page there.")
    ] = None,
    sarif: Annotated[
        Path | None,
        typer.Option("--sarif", metavar="FILE", help="Write annotations as SARIF there."),
    ] = None,
    github: GitHubOption = False,
    otel: OtelOption = False,
    otel_endpoint: OtelEndpointOption = None,
    otel_content: OtelContentOption = False,
    run_dir: PastRunDirOption = None,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Make reports of a past run, from its journal: an HTML page in its folder, or what is named.

    Example: aish runs report latest --junit junit.xml --html report.html
    """
    del verbose
    asked = Reporting(junit, html, sarif, github, otel, otel_endpoint, otel_content)
    secrets = Secrets()
    check_reports(asked, None, secrets)
    with ExitStack() as stack:
        shelf, found = find(open_shelves(run_dir, stack), id)
        journal = _journal(shelf, found, stack)
        in_folder = not (asked.at_end or asked.traced)
        if in_folder:
            html = shelf.path / found / _IN_FOLDER
        try:
            others = _others(asked, found, secrets, stack)
            files = ReportFiles(junit, html, sarif, shared=not in_folder)
            make_reports(events(journal.reading), found, files, others, annotated_file)
        except OSError as error:
            said = f"cannot write the report: {error.strerror}"
            raise UsageError(said, where=str(error.filename)) from error
    _tell(found, files, format_)
    return 0


def _others(
    asked: Reporting, run: str, secrets: Secrets, stack: ExitStack
) -> list[Callable[[Stamped], None]]:
    """What tells of the run elsewhere than in a file."""
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


def _journal(shelf: Shelf, id: str, stack: ExitStack) -> PastJournal:
    try:
        return open_past(shelf, id, stack)
    except FileNotFoundError as error:
        raise UsageError("it has no journal", where=str(shelf.path / id)) from error


def _tell(id: str, files: ReportFiles, format_: Report) -> None:
    """Where the reports are."""
    paths = {"junit": files.junit, "html": files.html, "sarif": files.sarif}
    made = {name: None if path is None else str(path) for name, path in paths.items()}
    if format_ is Report.JSON:
        print_json({"v": 1, "run": id, **made})
        return
    for path in filter(None, made.values()):
        print_text(for_line(path))
