"""`aish doctor [FILE]`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import anyio

from aish.cli.options import Argument, Report, ReportOption
from aish.cli.printer import print_json, print_text
from aish.cli.tool_preview import beginnings_at_terminal
from aish.config.loader import read_pipeline
from aish.core.errors import ExitCode
from aish.core.events import plain
from aish.core.text import for_line
from aish.engine.preview.checkup import (
    CheckResult,
    check_machine,
    check_pipeline,
    check_system,
)
from aish.engine.preview.compatibility import check_compatibility
from aish.engine.preview.pack_checks import check_offered_packs, check_packs
from aish.engine.preview.sandbox_checks import check_server_sandboxes
from aish.packs.catalogue import PACKS
from aish.system.pack_index import offered_packs


def command(
    file: Annotated[Path | None, Argument("[FILE]", "Check only what this pipeline needs.")] = None,
    *,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Check the environment: packs, sandbox, keys, endpoints, servers.

    With a file, only what it needs, and what is missing first.

    Example: aish doctor pipelines/review.yaml
    """
    if file is None:
        findings = [
            *check_machine(),
            *check_system(),
            *check_packs(PACKS, os.environ, required=False),
            *check_server_sandboxes(os.environ),
            *check_offered_packs(offered_packs(), required=False),
        ]
    else:
        opening = beginnings_at_terminal(str)
        findings = [*anyio.run(check_pipeline, file, opening), *_read_findings(file)]
        findings.sort(key=lambda finding: finding.state != "bad")
    if output_format is Report.JSON:
        print_json([plain(finding) for finding in findings])
    else:
        print_text("\n".join(map(_line, findings)))
    failed = [finding for finding in findings if finding.state == "bad"]
    return int(ExitCode.UNAVAILABLE if failed else ExitCode.OK)


def _read_findings(file: Path) -> Iterator[CheckResult]:
    """Yield the findings on what a file names, as far as it can be read."""
    pipeline = read_pipeline(file).pipeline
    if pipeline is None:
        return
    yield from check_compatibility(pipeline)
    named = [pack for one in pipeline.servers.values() for pack in one.pack]
    yield from check_packs(dict.fromkeys(filter(PACKS.get, named)), os.environ, required=True)
    others = dict.fromkeys(name for name in named if name not in PACKS)
    yield from check_offered_packs(filter(offered_packs().get, others), required=True)


def _line(finding: CheckResult) -> str:
    line = f"{finding.state:4}  {for_line(finding.subject)}: {for_line(finding.text)}"
    return f"{line}\n      hint: {finding.hint}" if finding.hint else line
