"""`aish run FILE`: the main job."""

from typing import TYPE_CHECKING

from aish.cli.options import (
    OWN_FILE,
    BatchOptions,
    CassetteOptions,
    ClusterOptions,
    ControlOptions,
    InputOptions,
    OutputOptions,
    PolicyOptions,
    ProjectFileArgument,
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
    file: ProjectFileArgument = OWN_FILE,
    *,
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
    with reporting.files(file.stem) as ended:
        if cassettes.live_model is not None and filling.model is not None:
            raise UsageError(
                "`--live-model` and `--model` exclude each other",
                hint="`--live-model ALIAS` is the model of every step already",
            )
        if file == OWN_FILE and cassettes != CassetteOptions():
            _check_values(cassettes)
        pipeline = load(file, filling.overrides, quiet=telling.quiet, lock=ruling.lock)
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
        return ended(run_pipeline(pipeline, asked, _cassette_session(pipeline, cassettes)))


def _check_values(cassettes: CassetteOptions) -> None:
    """Check that no option has taken the pipeline file as its value.

    Raises:
        UsageError: one has.
    """
    from aish.features.yaml_files import is_pipeline

    for name in ("replay", "record", "cassette"):
        value = getattr(cassettes, name)
        if value is not None and is_pipeline(value):
            raise UsageError(
                f"`{value}` is the value of `--{name}` here, and a pipeline",
                hint=f"`aish run {value} --{name}` takes the cassette that the file names",
            )


def _cassette_session(pipeline: Pipeline, cassettes: CassetteOptions) -> "CassetteSession | None":
    if cassettes == CassetteOptions():
        return None
    from aish.cli.cassette_options import session_of

    return session_of(pipeline, cassettes)
