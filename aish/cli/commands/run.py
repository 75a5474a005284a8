"""`aish run FILE`: the main job."""

from typing import TYPE_CHECKING

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
    Writing,
)
from aish.cli.options import FileArgument
from aish.cli.running import Asked, run_pipeline
from aish.config.model import Pipeline
from aish.core.errors import UsageError

if TYPE_CHECKING:
    from aish.features.recording.session import CassetteSession


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
    writing: Writing,
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
        writing,
        taping.live_model,
        resuming,
        reporting,
        batching,
        spreading,
    )
    return run_pipeline(pipeline, asked, _film(pipeline, taping))


def _film(pipeline: Pipeline, taping: Taping) -> "CassetteSession | None":
    if taping == Taping():
        return None
    from aish.cli.taping import reel_of

    return reel_of(pipeline, taping)
