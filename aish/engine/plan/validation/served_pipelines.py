"""Pipelines that a file offers as tools: what is wrong with an entry of `serve.pipelines`.

Also the name that a tool gets.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from aish.config.model import Pipeline, ServedPipeline
from aish.core.errors import Problem, UsageError
from aish.core.patterns import lazy_pattern
from aish.engine.plan.order import uses_stdin
from aish.engine.plan.validation.issue import Issue, within
from aish.engine.plan.validation.names import LONGEST_SERVED, SERVED

_ILLEGAL = lazy_pattern(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = LONGEST_SERVED - len(f"{SERVED}__")

Checked = tuple[Pipeline | None, tuple[Problem, ...]]


def served_name(entry: ServedPipeline, pipeline: Pipeline) -> str:
    """NAME of the tool `pipeline__NAME`."""
    own = _ILLEGAL.sub("_", pipeline.name)[:_LONGEST_NAME].strip("_-")
    return entry.name or own or SERVED


def served_issues(
    pipeline: Pipeline, check: Callable[[Path], Checked]
) -> Iterator[Issue | Problem]:
    """Problems of the entries, and of their files; `check` loads and checks one."""
    names: dict[str, str] = {}
    files: dict[Path, Checked] = {}
    for entry in pipeline.serve.pipelines:
        if not entry.file.exists():
            yield Issue(_file(entry), f"no such file: `{entry.file.name}`")
            continue
        is_new = entry.file not in files
        inner, problems = files[entry.file] = files.get(entry.file) or check(entry.file)
        if is_new:
            yield from problems
        if inner is None or inner.broken:
            continue
        if not inner.steps:
            hint = "only a file with steps can be run"
            yield Issue(_file(entry), f"`{entry.file.name}` has no steps", hint)
        if _reads_stdin(inner):
            message = f"`{entry.file.name}` reads `stdin`, which a served pipeline does not have"
            yield Issue(_file(entry), message, "give it an input")
        name = served_name(entry, inner)
        if name in names:
            message = f"two pipelines would be called `{SERVED}__{name}`: see `{names[name]}` too"
            yield Issue(entry.where, message, "`name` gives one of them another name")
        names.setdefault(name, entry.where)


def _file(entry: ServedPipeline) -> str:
    return within(entry.where, "file")


def _reads_stdin(pipeline: Pipeline) -> bool:
    try:
        return uses_stdin(pipeline)
    except UsageError:
        return False  # an invalid template is a problem of that file
