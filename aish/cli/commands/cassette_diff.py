"""`aish cassette diff A B`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from aish.cassettes.format.file import load
from aish.cassettes.inspect.trajectory import compare, comparison_lines
from aish.cli.options import Argument, Report, ReportOption
from aish.cli.printer import print_json, print_text
from aish.core.errors import ExitCode
from aish.features.recording.compare import trajectory_of


def command(
    before: Annotated[Path, Argument("A", "The cassette of the first run.")],
    after: Annotated[Path, Argument("B", "The cassette of the second run.")],
    *,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Compare the cassettes of two runs.

    The exit code is 1 if models, parameters, tools, prompts, calls, results, approvals
    or answers differ. Differences of endpoints, tokens and seconds are printed, and do
    not count.

    Example: aish cassette diff before.yaml after.yaml
    """
    comparison = compare(
        trajectory_of(load(before).interactions), trajectory_of(load(after).interactions)
    )
    if output_format is Report.JSON:
        print_json({"same": comparison.same, **asdict(comparison)})
    else:
        lines = [f"--- {before}", f"+++ {after}", *comparison_lines(comparison)]
        print_text("\n".join(lines))
    return int(ExitCode.OK if comparison.same else ExitCode.FAILED)
