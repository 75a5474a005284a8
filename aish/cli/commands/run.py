"""`aish run FILE`: the main job."""

from pathlib import Path
from typing import Annotated

import typer

from aish.cli.grouping import grouped
from aish.cli.loading import load
from aish.cli.option_groups import (
    Batching,
    Filling,
    Reporting,
    Resuming,
    Ruling,
    Spreading,
    Taping,
    Telling,
)
from aish.cli.options import FileArgument
from aish.cli.running import Asked, Film, run_pipeline
from aish.config.pipeline import Pipeline
from aish.errors import UsageError


@grouped
def command(
    file: FileArgument,
    filling: Filling,
    ruling: Ruling,
    telling: Telling,
    taping: Taping,
    batching: Batching,
    spreading: Spreading,
    resuming: Resuming,
    reporting: Reporting,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the result there.")
    ] = None,
) -> int:
    """Execute a pipeline.

    Example: git diff | aish run pipelines/review.yaml --format json -o review.json
    """
    if taping.live_model is not None and filling.model is not None:
        raise UsageError(
            "`--live-model` and `--model` exclude each other",
            hint="`--live-model ALIAS` is the model of every step already",
        )
    pipeline = load(file, filling.overrides, quiet=telling.quiet)
    asked = Asked(
        filling,
        ruling,
        telling,
        output,
        taping.live_model,
        resuming,
        reporting,
        batching,
        spreading,
    )
    return run_pipeline(pipeline, asked, _film(pipeline, taping))


def _film(pipeline: Pipeline, taping: Taping) -> Film | None:
    if taping == Taping():
        return None
    from aish.cli.taping import reel_of

    return reel_of(pipeline, taping)
