"""Which cassettes the paths of a command line lead to."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aish.config.expected import CassetteSettings
from aish.config.pipeline import Pipeline
from aish.core.errors import UsageError
from aish.engine.plan.plan import load_checked
from aish.run.cassette_check.check import PARTIAL, Subject, named_in
from aish.run.yaml_files import SUFFIXES, files_below, is_cassette, is_pipeline


def subjects(paths: Sequence[Path], pipeline: Pipeline | None) -> tuple[Subject, ...]:
    """The cassettes that the paths name: themselves, in a folder, or in a pipeline file; each once.

    Raises:
        PipelineError: a pipeline file cannot be read.
        UsageError: a pipeline names no cassette, or there is none in a folder.
    """
    found = list(_named(paths, pipeline))
    played = {one.settings.path.resolve() for one in found if one.pipeline is not None}
    unique: dict[tuple[Path, Path | None], Subject] = {}
    for one in found:
        place = one.settings.path.resolve()
        if one.pipeline is not None or place not in played:
            unique.setdefault((place, one.pipeline.file if one.pipeline is not None else None), one)
    return tuple(unique.values())


def _named(paths: Sequence[Path], pipeline: Pipeline | None) -> Iterator[Subject]:
    known = (
        {} if pipeline is None else {one.settings.path.resolve(): one for one in named_in(pipeline)}
    )
    for path in paths:
        if path.is_file() and is_pipeline(path):
            yield from _of_pipeline(path)
            continue
        if path.is_dir():
            yield from _of_folder(path, known, pipeline)
        else:
            yield _alone(path, known, pipeline)


def _of_folder(
    folder: Path, known: Mapping[Path, Subject], pipeline: Pipeline | None
) -> Iterator[Subject]:
    """Its cassettes, and those that its pipelines name."""
    found = False
    for path in _within(folder):
        if is_pipeline(path):
            named = named_in(load_checked(path, (), locked=False))
            yield from named
            found = found or bool(named)
        else:
            yield _alone(path, known, pipeline)
            found = True
    if not found:
        raise UsageError(
            f"there are no cassettes in `{folder}`, and no pipelines that name some",
            hint="give files, or folders of cassettes or pipelines",
        )


def _alone(path: Path, known: Mapping[Path, Subject], pipeline: Pipeline | None) -> Subject:
    same = known.get(path.resolve())
    return Subject(same.settings if same else CassetteSettings(path), pipeline)


def _of_pipeline(path: Path) -> Iterator[Subject]:
    found = named_in(load_checked(path, (), locked=False))
    if not found:
        raise UsageError(
            f"`{path}` names no cassette",
            hint="`cassette: FILE` at its top, or in one of its tests",
        )
    yield from found


def _within(folder: Path) -> Iterator[Path]:
    """The cassettes, interrupted ones too, and pipelines in a folder and below; no hidden ones."""
    for path in files_below(folder):
        whole = path.with_name(path.name.removesuffix(PARTIAL))
        if whole.suffix not in SUFFIXES:
            continue
        if whole != path and whole.exists():
            continue  # told of with the cassette beside it
        if is_cassette(path) or is_pipeline(path):
            yield path
