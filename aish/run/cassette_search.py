"""Which cassettes the paths of a command line lead to."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from aish.config.pipeline import CassetteSettings, Pipeline
from aish.errors import UsageError
from aish.run.cassette_check import PARTIAL, Subject, named_in
from aish.run.plan import load_checked

_SUFFIXES = (".yaml", ".yml")
_BEGINNING = 64 * 1024
_PIPELINE = re.compile(rb"^[\"']?aish[\"']?[ \t]*:", re.MULTILINE)
_CASSETTE = re.compile(rb"^[\"']?interactions[\"']?[ \t]*:", re.MULTILINE)


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
        if path.is_file() and _is_pipeline(path):
            yield from _of_pipeline(path)
            continue
        found = [*_within(path)] if path.is_dir() else [path]
        if not found:
            raise UsageError(f"there are no cassettes in `{path}`")
        for one in found:
            settings = known[one.resolve()].settings if one.resolve() in known else None
            yield Subject(settings or CassetteSettings(one), pipeline)


def _of_pipeline(path: Path) -> Iterator[Subject]:
    found = named_in(load_checked(path, (), locked=False))
    if not found:
        raise UsageError(
            f"`{path}` names no cassette",
            hint="`cassette: FILE` at its top, or in one of its tests",
        )
    yield from found


def _within(folder: Path) -> Iterator[Path]:
    """The cassettes in a folder and below it, those that were interrupted too; no hidden ones."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place, name)
            whole = name.removesuffix(PARTIAL)
            if name.startswith(".") or not whole.endswith(_SUFFIXES):
                continue
            if whole != name and (path.parent / whole).exists():
                continue  # told of with the cassette beside it
            if _CASSETTE.search(_beginning(path)):
                yield path


def _is_pipeline(path: Path) -> bool:
    beginning = _beginning(path)
    return _PIPELINE.search(beginning) is not None and not _CASSETTE.search(beginning)


def _beginning(path: Path) -> bytes:
    """As much of a plain file as it takes to know it; nothing of what cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_BEGINNING)
    except OSError:
        return b""
