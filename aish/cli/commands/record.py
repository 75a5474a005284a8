"""`aish record FILE`: a live run that becomes a cassette."""

from pathlib import Path
from typing import Annotated

from aish.cli.cassette_options import session_to_record
from aish.cli.options import (
    OWN_FILE,
    InputOptions,
    KeepFailedOption,
    Option,
    OutputOptions,
    PolicyOptions,
    ProjectFileArgument,
    ReportOptions,
    RunRequest,
)
from aish.cli.pipeline_options import load
from aish.cli.run_command import run_pipeline


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    inputs: InputOptions,
    policy: PolicyOptions,
    output: OutputOptions,
    reports: ReportOptions,
    cassette: Annotated[
        Path | None,
        Option("-o --output CASSETTE", "The cassette; default: the one that the file names."),
    ] = None,
    keep_failed: KeepFailedOption = False,
) -> int:
    """Run a pipeline live and record it.

    A run that ends with 0, 1, 3, 4 or 7 replaces the cassette. Any other, such as one whose
    model could not be reached (5), leaves it as it is.

    Example: aish record pipelines/review.yaml -o tests/cassettes/review.yaml
    """
    with reports.files(file.stem) as ended:
        pipeline = load(file, inputs.overrides, quiet=output.quiet, lock=policy.lock)
        session = session_to_record(pipeline, cassette, keep_failed=keep_failed)
        asked = RunRequest(inputs, policy, output, reports=reports)
        return ended(run_pipeline(pipeline, asked, session))
