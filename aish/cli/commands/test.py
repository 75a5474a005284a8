"""`aish test [PATH…]`: runs pipelines on their cassettes, offline."""

import gc
import os
import sys
from pathlib import Path
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.case_report import CaseLines, manners_for, session_json, tell_github, write_junit
from aish.cli.options import Argument, GitHubOption, LiveOptions, Option, Report, ReportOption
from aish.cli.output_setup import check_writable
from aish.cli.printer import print_json
from aish.cli.report_files import report_files
from aish.core.errors import ExitCode, UsageError
from aish.features.testing.discovery import find_files
from aish.features.testing.outcome import exit_code
from aish.features.testing.session import Renewal, Wish, run_session

PathsArgument = Annotated[
    list[Path] | None,
    Argument(
        metavar="[PATH...]",
        help="Pipeline files or folders; default: `pipelines/`, or this folder if that is missing "
        "or `aish.yaml` is here.",
    ),
]
KeywordOption = Annotated[
    str,
    Option("-k", metavar="TEXT", help="Cases whose names contain this text."),
]
ProcessesOption = Annotated[
    str | None,
    Option("-n", metavar="N", help="Run N cases at a time; `auto` is one for each core."),
]
ExitFirstOption = Annotated[
    bool, Option("-x", "--exitfirst", help="Stop at the first case that does not pass.")
]
JunitOption = Annotated[
    Path | None, Option("--junit", metavar="FILE", help="Write JUnit XML to this file.")
]
UpdateOption = Annotated[
    bool, Option("--update-snapshots", help="Update the snapshots that differ.")
]
RecordOption = Annotated[
    Renewal | None,
    Option(
        "--record",
        metavar="[missing|all]",
        help="First record, live, the cassettes that are missing or do not match any more; or"
        " `--record=missing`, `--record=all`.",
    ),
]
RecordMissingOption = Annotated[
    bool, Option("--record-missing", help="The same as `--record=missing`.", hidden=True)
]
OrphansOption = Annotated[
    bool, Option("--allow-orphans", help="Only warn about cassettes that no test uses.")
]
QuietOption = Annotated[
    bool, Option("-q", "--quiet", help="Print a dot for each case, and the failures.")
]
VerboseOption = Annotated[
    bool, Option("-v", "--verbose", help="Show each expectation, and a bug's traceback.")
]


def command(
    live: LiveOptions,
    paths: PathsArgument = None,
    *,
    keyword: KeywordOption = "",
    processes: ProcessesOption = None,
    stop_first: ExitFirstOption = False,
    junit: JunitOption = None,
    github: GitHubOption = False,
    format_: ReportOption = Report.TEXT,
    update_snapshots: UpdateOption = False,
    record: RecordOption = None,
    record_missing: RecordMissingOption = False,
    allow_orphans: OrphansOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Run the `tests:` of pipelines on their cassettes, offline.

    With `--live` they run on the real models, each case on each model.

    Example: aish test pipelines -n 2 --junit report.xml
    """
    with report_files("aish test", junit, live.html) as ended:
        if live.live:
            replayed = {
                "--record": record is not None or record_missing,
                "--update-snapshots": update_snapshots,
                "--allow-orphans": allow_orphans,
            }
            for name, given in replayed.items():
                if given:
                    raise UsageError(f"`{name}` is for cassettes, and `--live` uses none")
            from aish.cli.live_test import LiveAsked, live_wish, test_live

            width = None if processes is None else _number(processes)
            asked = LiveAsked(
                paths=tuple(paths or ()),
                keyword=keyword,
                wish=live_wish(live, width=width, stop_first=stop_first),
                json=format_ is Report.JSON,
                junit=junit,
                html=live.html,
                github=github,
                baseline=live.baseline,
                write_baseline=live.write_baseline,
                quiet=quiet,
                verbose=verbose,
            )
            gc.freeze()
            gc.enable()
            return ended(test_live(asked))
        if (option := live.first_given()) is not None:
            raise UsageError(f"`{option}` is for live runs", hint="add `--live`")
        if junit is not None:
            check_writable(junit, "--junit")
        wish = Wish(
            keyword=keyword,
            processes=1 if processes is None else _number(processes),
            stop_first=stop_first,
            record=Renewal.MISSING if record is None and record_missing else record,
            update_snapshots=update_snapshots,
            allow_orphans=allow_orphans,
        )
        # In this case only the object goes to stdout, and text for people to stderr.
        out = sys.stderr if format_ is Report.JSON else sys.stdout
        manners = manners_for(out, os.environ, quiet=quiet, verbose=verbose)
        lines = CaseLines(out, manners)
        gc.freeze()
        gc.enable()
        session = run_session(find_files(paths or ()), wish, lines)
        lines.close(session)
        if format_ is Report.JSON:
            print_json(session_json(session))
        if github:
            tell_github(session)
        code = exit_code(session)
        try:
            if junit is not None:
                write_junit(junit, session)
        except OSError as error:
            say(f"error: --junit {junit}: cannot be written: {error.strerror or error}")
            code = code or ExitCode.FAILED
        return ended(int(code))


_LONGEST_NUMBER = 4


def _number(text: str) -> int:
    if text == "auto":
        return len(os.sched_getaffinity(0))
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER and int(text)):
        raise UsageError(f"`{text}` is not a number of processes", where="-n", hint="2, or `auto`")
    return int(text)
