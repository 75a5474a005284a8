"""From a path to a `Pipeline`, or to everything that is wrong with the file (F10)."""

from collections.abc import Sequence
from pathlib import Path

from aish.config.decode import decode
from aish.config.file_schema import pipeline_schema, shape_problems
from aish.config.merge import read_with_bases
from aish.config.model import Pipeline
from aish.config.overrides import overridden, parse_override
from aish.config.yaml_tree import MappingNode, in_file_order, nearest_position
from aish.core.errors import PipelineError, Position, Problem
from aish.core.frozen import frozen


@frozen
class Reading:
    """What could be read of a file.

    `pipeline` is there although there are problems, for what else can be found: what is broken is
    left out of it, and named in its `broken`.
    """

    pipeline: Pipeline | None
    problems: tuple[Problem, ...]


def load_pipeline(path: Path, *, overrides: Sequence[str] = ()) -> Pipeline:
    """The pipeline of a file, its bases and overrides merged in.

    Nothing is resolved and nothing is contacted.

    Raises:
        PipelineError: all that is wrong with it, in the order of the file.
    """
    reading = read_pipeline(path, overrides=overrides)
    if reading.pipeline is None or reading.problems:
        raise PipelineError(reading.problems)
    return reading.pipeline


def read_pipeline(path: Path, *, overrides: Sequence[str] = ()) -> Reading:
    """As much of a file as can be read, with its problems."""
    gathered = read_with_bases(path)
    problems = gathered.problems
    if gathered.root is None:
        return Reading(None, in_file_order(problems, str(path)))
    root = _overridden(gathered.root, overrides, problems)
    problems += shape_problems(root)
    pipeline = decode(root, path, overrides, problems)
    return Reading(pipeline, in_file_order(problems, str(path)))


def lookup_position(pipeline: Pipeline, path: str) -> Position:
    """Where `path` stands, or the nearest thing around it that stands anywhere."""
    return nearest_position(pipeline.positions, path, str(pipeline.file))


def _overridden(
    root: MappingNode, overrides: Sequence[str], problems: list[Problem]
) -> MappingNode:
    for number, text in enumerate(overrides, 1):
        override = parse_override(text, number)
        changed = (
            override
            if isinstance(override, Problem)
            else overridden(root, override, pipeline_schema())
        )
        if isinstance(changed, Problem):
            problems.append(changed)
        else:
            root = changed
    return root
