"""`aish cassette diff A B`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from aish.cassettes.format.file import load
from aish.cassettes.inspect.trajectory import Comparison, compare, comparison_lines
from aish.cli.options import Argument, Report, ReportOption, VerboseOption
from aish.cli.printer import print_json, print_text
from aish.core.errors import ExitCode
from aish.features.recording.compare import sent


def command(
    before: Annotated[Path, Argument(metavar="A", help="The cassette of the first run.")],
    after: Annotated[Path, Argument(metavar="B", help="The cassette of the second run.")],
    *,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Say what changed between two runs.

    Models, parameters, tools, prompts, calls, results, approvals, answers: the
    exit code is 1 if anything did. Endpoints, tokens and seconds are told, and make no
    difference by themselves.

    Example: aish cassette diff before.yaml after.yaml
    """
    del verbose
    comparison = compare(sent(load(before).interactions), sent(load(after).interactions))
    if format_ is Report.JSON:
        print_json({"same": comparison.same, **asdict(comparison)})
    else:
        _print(before, after, comparison)
    return int(ExitCode.OK if comparison.same else ExitCode.FAILED)


def _print(before: Path, after: Path, comparison: Comparison) -> None:
    lines = [f"--- {before}", f"+++ {after}", *comparison_lines(comparison)]
    print_text("\n".join(lines))
