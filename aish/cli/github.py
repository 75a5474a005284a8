"""`--github` for a run: positions of its steps, and reports from its journal."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from aish.cli.boundary import say
from aish.config.decode import KINDS
from aish.config.loader import lookup_position
from aish.config.model import Pipeline
from aish.reports.github.commands import RunnerJob, Spot
from aish.reports.github.report import GitHub

Spots = Mapping[str, Spot]


def github_of(pipeline: Pipeline | None) -> GitHub:
    """The GitHub report of a run of `pipeline`; of a past run the file may have changed since."""
    spots = {} if pipeline is None else spots_of(pipeline)
    return GitHub(job(), spots, path_to_annotate)


def job() -> RunnerJob:
    return RunnerJob(os.environ, sys.stderr, lambda message: say(f"warning: {message}"))


def spots_of(pipeline: Pipeline) -> Spots:
    """The position of each step in its file, with GitHub's file names."""
    spots = {}
    # The keys of a single step may stand at the top level.
    alone = next((kind for kind in KINDS if kind in pipeline.positions), None)
    for number, step in enumerate(pipeline.steps):
        place = lookup_position(pipeline, alone or f"steps[{number}]")
        if (name := file_in_repository(place.file)) is not None:
            spots[step.id] = Spot(name, place.line, place.column)
    return spots


def path_to_annotate(path: str) -> str | None:
    """The path of a file that a run annotates, which is given as from the repository's folder."""
    return file_in_repository(str(_repository() / path))


def file_in_repository(file: str) -> str | None:
    """The path relative to the folder in which the job has its repository; `None` outside of it."""
    for whole in (os.path.normpath, os.path.realpath):
        name = os.path.relpath(whole(Path.cwd() / file), whole(_repository()))
        if name.split(os.sep, 1)[0] != os.pardir:
            return name
    return None


def _repository() -> Path:
    return Path.cwd() / os.environ.get("GITHUB_WORKSPACE", "")
