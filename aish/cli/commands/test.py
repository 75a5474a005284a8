"""`aish test [PATH…]`: runs pipelines on their cassettes, offline."""

import gc
import os
import sys
from typing import Annotated

from aish.cli.case_report import (
    CaseLines,
    manners_for,
    session_json,
    suites_of,
    summary,
    tell_github,
    write_file,
)
from aish.cli.options import CaseOptions, LiveOptions, Option, Report
from aish.cli.output_setup import check_writable
from aish.cli.printer import print_json
from aish.cli.report_files import report_files
from aish.core.errors import ExitCode, UsageError
from aish.features.testing.discovery import find_files
from aish.features.testing.outcome import exit_code
from aish.features.testing.session import CassetteRenewal, SessionSettings, run_session
from aish.output.formats.junit import junit_xml

QuietOption = Annotated[bool, Option("-q --quiet", "Print a dot for each case, and the failures.")]
VerboseOption = Annotated[
    bool, Option("-v --verbose", "Show each expectation, and a bug's traceback.")
]


def command(
    live: LiveOptions,
    cases: CaseOptions,
    *,
    update_snapshots: Annotated[
        bool, Option("--update-snapshots", "Update the snapshots that differ.")
    ] = False,
    record: Annotated[
        CassetteRenewal | None,
        Option(
            "--record [missing|all]",
            "First record, live, the cassettes that are missing or do not match any more; or"
            " `--record=missing`, `--record=all`.",
        ),
    ] = None,
    record_missing: Annotated[
        bool, Option("--record-missing", "The same as `--record=missing`.", hidden=True)
    ] = False,
    allow_orphans: Annotated[
        bool, Option("--allow-orphans", "Only warn about cassettes that no test uses.")
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Run the `tests:` of pipelines on their cassettes, offline.

    With `--live` they run on the real models, each case on each model.

    Example: aish test pipelines -n 2 --junit report.xml
    """
    with report_files("aish test", cases.junit, live.html) as ended:
        as_json, junit = cases.output_format is Report.JSON, cases.junit
        # In this case only the object goes to stdout, and text for people to stderr.
        out = sys.stderr if as_json else sys.stdout
        manners = manners_for(out, os.environ, quiet=quiet, verbose=verbose)
        if live.live:
            replayed = {
                "--record": record is not None or record_missing,
                "--update-snapshots": update_snapshots,
                "--allow-orphans": allow_orphans,
            }
            for name, cassette in replayed.items():
                if cassette:
                    raise UsageError(f"`{name}` is for cassettes without `--live`")
            from aish.cli.live_test import test_live

            gc.freeze()
            gc.enable()
            return ended(test_live(live, cases, out, manners))
        if (option := live.first_given()) is not None:
            raise UsageError(f"`{option}` is for live runs", hint="add `--live`")
        if junit is not None:
            check_writable(junit, "--junit")
        settings = SessionSettings(
            keyword=cases.keyword,
            processes=cases.width or 1,
            stop_first=cases.stop_first,
            record=CassetteRenewal.MISSING if record is None and record_missing else record,
            update_snapshots=update_snapshots,
            allow_orphans=allow_orphans,
        )
        lines = CaseLines(out, manners)
        gc.freeze()
        gc.enable()
        session = run_session(find_files(cases.paths or ()), settings, lines)
        lines.close(session)
        if as_json:
            print_json(session_json(session))
        suites = suites_of(session)
        if cases.github:
            tell_github(summary(session), suites)
        code = exit_code(session)
        if junit is not None and not write_file("--junit", junit, junit_xml("aish test", suites)):
            code = code or ExitCode.FAILED
        return ended(int(code))
