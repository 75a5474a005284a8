"""`--github` for a run: positions of its steps, and reports from its journal (B11)."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from aish.cli.boundary import say
from aish.config.loader import lookup_position
from aish.config.model import Pipeline
from aish.reports.github.commands import Job, Spot
from aish.reports.github.report import GitHub

Spots = Mapping[str, Spot]


def github_of(pipeline: Pipeline | None) -> GitHub:
    """The GitHub report of a run of `pipeline`; of a past run the file may have changed since."""
    spots = {} if pipeline is None else spots_of(pipeline)
    return GitHub(job(), spots, annotated_file)


def job() -> Job:
    """The GitHub Actions step in which we run."""
    return Job(os.environ, sys.stderr, lambda said: say(f"warning: {said}"))


def spots_of(pipeline: Pipeline) -> Spots:
    """The position of each step in its file, with GitHub's file names."""
    spots = {}
    for number, step in enumerate(pipeline.steps):
        place = lookup_position(pipeline, f"steps[{number}]")
        spots[step.id] = Spot(file_in_repository(place.file), place.line, place.column)
    return spots


def annotated_file(path: str) -> str:
    """A file that a run annotates: its path is already relative to the repository."""
    return file_in_repository(path) if Path(path).is_absolute() else path


def file_in_repository(file: str) -> str:
    """The path relative to the folder in which the job has its repository."""
    whole = Path(file).absolute()
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    return str(whole.relative_to(root)) if whole.is_relative_to(root) else file
