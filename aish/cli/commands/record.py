"""`aish record FILE`: a live run that becomes a cassette."""

from pathlib import Path
from typing import Annotated

from aish.cli.cassette_options import recording_of
from aish.cli.options import (
    OWN_FILE,
    InputOptions,
    KeepFailedOption,
    Option,
    OutputOptions,
    PolicyOptions,
    ProjectFileArgument,
    ReportOptions,
)
from aish.cli.pipeline_options import load
from aish.cli.run_command import RunRequest, run_pipeline


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    filling: InputOptions,
    ruling: PolicyOptions,
    telling: OutputOptions,
    reporting: ReportOptions,
    cassette: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            metavar="CASSETTE",
            help="The cassette; default: the one that the file names.",
        ),
    ] = None,
    keep_failed: KeepFailedOption = False,
) -> int:
    """Run a pipeline live and record it.

    A run that ends with 0, 1, 3, 4 or 7 replaces the cassette. Any other, such as one whose
    model could not be reached (5), leaves it as it is.

    Example: aish record pipelines/review.yaml -o tests/cassettes/review.yaml
    """
    with reporting.files(file.stem) as ended:
        pipeline = load(file, filling.overrides, quiet=telling.quiet, lock=ruling.lock)
        session = recording_of(pipeline, cassette, keep_failed=keep_failed)
        asked = RunRequest(filling, ruling, telling, reporting=reporting)
        return ended(run_pipeline(pipeline, asked, session))
