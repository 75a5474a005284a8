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
    RunRequest,
)
from aish.cli.pipeline_options import load
from aish.cli.run_command import run_pipeline
from aish.config.model import Pipeline
from aish.core.errors import UsageError

if TYPE_CHECKING:
    from aish.features.recording.session import CassetteSession


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    inputs: InputOptions,
    policy: PolicyOptions,
    output: OutputOptions,
    cassettes: CassetteOptions,
    batch: BatchOptions,
    cluster: ClusterOptions,
    resume: ResumeOptions,
    reports: ReportOptions,
    result: ResultOptions,
    control: ControlOptions,
) -> int:
    """Execute a pipeline.

    Example: git diff | aish run pipelines/review.yaml --format json -o review.json
    """
    with reports.files(file.stem) as ended:
        if cassettes.live_model is not None and inputs.model is not None:
            raise UsageError(
                "`--live-model` and `--model` exclude each other",
                hint="`--live-model ALIAS` is the model of every step already",
            )
        if file == OWN_FILE and cassettes != CassetteOptions():
            from aish.features.yaml_files import is_pipeline

            for name in ("replay", "record", "cassette"):
                value = getattr(cassettes, name)
                if value is not None and is_pipeline(value):
                    raise UsageError(
                        f"`{value}` is the value of `--{name}` here, and a pipeline",
                        hint=f"`aish run {value} --{name}` takes the cassette that the file names",
                    )
        pipeline = load(file, inputs.overrides, quiet=output.quiet, lock=policy.lock)
        model = cassettes.live_model
        asked = RunRequest(
            inputs, policy, output, result, model, resume, reports, batch, cluster, control
        )
        return ended(run_pipeline(pipeline, asked, _cassette_session(pipeline, cassettes)))


def _cassette_session(pipeline: Pipeline, cassettes: CassetteOptions) -> "CassetteSession | None":
    if cassettes == CassetteOptions():
        return None
    from aish.cli.cassette_options import session_of

    return session_of(pipeline, cassettes)
