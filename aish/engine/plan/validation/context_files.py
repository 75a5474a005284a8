"""Validation of `context.files`: paths that no file could have, or that are never shown."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from aish.config.model import ContextFile, Pipeline, PromptStep
from aish.core.text import for_line
from aish.engine.plan.validation.issue import Issue
from aish.packs.pack_error import PackError
from aish.packs.workspace.confined_path import segments_of
from aish.packs.workspace.deny_list import is_denied
from aish.templates.values import is_template

_RELATIVE = "paths are relative to the folder of the file that they are written in"


def context_file_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Problems of each entry, once: steps inherit those at the top."""
    of_steps = (step.context.files for step in pipeline.steps if isinstance(step, PromptStep))
    entries = [entry for files in (pipeline.context.files, *of_steps) for entry in files]
    for entry in {entry.where: entry for entry in entries}.values():
        place = entry.where
        inner = f"{place}.path"
        yield from _of(entry, inner if inner in pipeline.positions else place)


_LANGUAGES: Mapping[str, str] = {
    **dict.fromkeys((".py", ".pyi"), "python"),
    ".c": "c",
    ".h": "either",
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".hpp", ".hh", ".ipp"), "cpp"),
}


def language_of(path: str) -> str:
    """The language whose definitions can be shown; empty for any other file."""
    return _LANGUAGES.get(PurePosixPath(path).suffix.lower(), "")


def _of(entry: ContextFile, place: str) -> Iterator[Issue]:
    path = for_line(entry.path)
    if is_template(entry.path):
        hint = "`attach` takes templates, and a glob takes what there is"
        yield Issue(place, f"`{path}` is not a template here", hint)
        return
    try:
        segments = segments_of(entry.path)
    except PackError:
        yield Issue(place, f"`{path}` is not a path below the folder of the file", _RELATIVE)
        return
    if not segments:
        yield Issue(place, f"`{path}` is the folder itself", "name files, as in `docs/*.md`")
    elif (entry.name is not None or entry.skeleton) and not language_of(entry.path):
        hint = "`name` and `show` are for Python, C and C++; write `lines`, or the file alone"
        yield Issue(place, f"`{path}` is of no language whose definitions are known", hint)
    elif not entry.is_glob and is_denied(segments):
        hint = "files such as `.env` and keys are never shown to a model"
        yield Issue(place, f"`{path}` may not be shown", hint)
