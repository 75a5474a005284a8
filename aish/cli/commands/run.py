"""`aish run FILE`: the main job."""

from typing import TYPE_CHECKING

from aish.cli.options import (
    BatchOptions,
    CassetteOptions,
    ClusterOptions,
    ControlOptions,
    FileArgument,
    InputOptions,
    OutputOptions,
    PolicyOptions,
    ReportOptions,
    ResultOptions,
    ResumeOptions,
)
from aish.cli.pipeline_options import load
from aish.cli.run_command import RunRequest, run_pipeline
from aish.config.model import Pipeline
from aish.core.errors import UsageError

if TYPE_CHECKING:
    from aish.features.recording.session import CassetteSession


def command(
    file: FileArgument,
    filling: InputOptions,
    ruling: PolicyOptions,
    telling: OutputOptions,
    cassettes: CassetteOptions,
    batching: BatchOptions,
    spreading: ClusterOptions,
    resuming: ResumeOptions,
    reporting: ReportOptions,
    writing: ResultOptions,
    controlling: ControlOptions,
) -> int:
    """Execute a pipeline.

    Example: git diff | aish run pipelines/review.yaml --format json -o review.json
    """
    if cassettes.live_model is not None and filling.model is not None:
        raise UsageError(
            "`--live-model` and `--model` exclude each other",
            hint="`--live-model ALIAS` is the model of every step already",
        )
    pipeline = load(file, filling.overrides, quiet=telling.quiet)
    asked = RunRequest(
        filling,
        ruling,
        telling,
        writing,
        cassettes.live_model,
        resuming,
        reporting,
        batching,
        spreading,
        controlling,
    )
    return run_pipeline(pipeline, asked, _cassette_session(pipeline, cassettes))


def _cassette_session(pipeline: Pipeline, cassettes: CassetteOptions) -> "CassetteSession | None":
    if cassettes == CassetteOptions():
        return None
    from aish.cli.cassette_options import session_of

    return session_of(pipeline, cassettes)
