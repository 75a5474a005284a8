"""`aish record FILE`: a live run that becomes a cassette."""

from pathlib import Path
from typing import Annotated

from aish.cli.loading import load
from aish.cli.option_groups import Filling, Reporting, Ruling, Telling
from aish.cli.options import FileArgument, KeepFailedOption, Option
from aish.cli.running import Asked, run_pipeline
from aish.cli.taping import recording_of


def command(
    file: FileArgument,
    filling: Filling,
    ruling: Ruling,
    telling: Telling,
    reporting: Reporting,
    *,
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
    pipeline = load(file, filling.overrides, quiet=telling.quiet)
    session = recording_of(pipeline, cassette, keep_failed=keep_failed)
    return run_pipeline(pipeline, Asked(filling, ruling, telling, reporting=reporting), session)
