"""`aish doctor [FILE]`."""

import os
from pathlib import Path
from typing import Annotated

import anyio

from aish.cli.options import Argument, Report, ReportOption, VerboseOption
from aish.cli.printer import print_json, print_text
from aish.core.errors import ExitCode
from aish.core.json import JsonObject
from aish.core.text import for_line
from aish.engine.preview.checkup import Finding, check_machine, check_pipeline
from aish.engine.preview.pack_checks import check_packs, check_programs


def command(
    file: Annotated[
        Path | None, Argument(metavar="[FILE]", help="Also check what this pipeline needs.")
    ] = None,
    *,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Check the environment: packs, sandbox, keys, endpoints, servers.

    Example: aish doctor pipelines/review.yaml
    """
    del verbose
    findings = [*check_machine(), *check_packs(), *check_programs(os.environ)]
    if file is not None:
        findings += anyio.run(check_pipeline, file)
    if format_ is Report.JSON:
        print_json([_row(finding) for finding in findings])
    else:
        print_text("\n".join(map(_line, findings)))
    failed = [finding for finding in findings if finding.state == "bad"]
    return int(ExitCode.UNAVAILABLE if failed else ExitCode.OK)


def _row(finding: Finding) -> JsonObject:
    return {
        "subject": finding.subject,
        "state": finding.state,
        "text": finding.text,
        "hint": finding.hint,
    }


def _line(finding: Finding) -> str:
    line = f"{finding.state:4}  {for_line(finding.subject)}: {for_line(finding.text)}"
    return f"{line}\n      hint: {finding.hint}" if finding.hint else line
