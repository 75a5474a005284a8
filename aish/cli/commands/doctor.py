"""`aish doctor [FILE]`."""

from pathlib import Path
from typing import Annotated

import anyio

from aish.cli.options import Argument, VerboseOption
from aish.cli.printer import print_text
from aish.core.errors import ExitCode
from aish.core.text import for_line
from aish.engine.preview.checkup import Finding, check_machine, check_pipeline


def command(
    file: Annotated[
        Path | None, Argument(metavar="[FILE]", help="Also check what this pipeline needs.")
    ] = None,
    *,
    verbose: VerboseOption = False,
) -> int:
    """Check the environment: optional parts, keys, endpoints, servers.

    Example: aish doctor pipelines/review.yaml
    """
    del verbose
    findings = list(check_machine())
    if file is not None:
        findings += anyio.run(check_pipeline, file)
    for finding in findings:
        print_text(_line(finding))
    failed = [finding for finding in findings if finding.state == "bad"]
    return int(ExitCode.UNAVAILABLE if failed else ExitCode.OK)


def _line(finding: Finding) -> str:
    line = f"{finding.state:4}  {for_line(finding.subject)}: {for_line(finding.text)}"
    return f"{line}\n      hint: {finding.hint}" if finding.hint else line
