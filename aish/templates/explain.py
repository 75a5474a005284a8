"""What went wrong in a template, as a sentence about it."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from aish.core.errors import StepFailedError, did_you_mean
from aish.templates.limits import TemplateLimitError

_MOST_SHOWN = 60
_MOST_NAMED = 8
_DEEPEST_LOOK = 8


class TemplateError(StepFailedError):
    """A template that cannot be rendered: which, and why."""

    code = "template"


def explained(error: Exception, source: str, names: Mapping[str, Any]) -> TemplateError:
    """Jinja2's and Python's errors as one of ours."""
    line = getattr(error, "lineno", None) or _line_of(error)
    where = f", line {line}" if line and source.strip().count("\n") else ""
    why, hint = _reason(error, source, names)
    return TemplateError(f"the template `{_shown(source)}`{where}: {why}", hint=hint)


def syntax_reason(error: Exception, known_filters: Iterable[str]) -> tuple[str, str | None]:
    """Why a text is no template, and what may have been meant."""
    if isinstance(error, RecursionError | MemoryError):
        return "it is too deep or too large", None
    said = (getattr(error, "message", None) or str(error)).rstrip(".")
    if said.startswith("No filter named"):
        name = said.split("'")[1]
        return f"there is no filter `{name}`", did_you_mean(name, known_filters)
    return said or type(error).__name__, None


def _reason(error: Exception, source: str, names: Mapping[str, Any]) -> tuple[str, str | None]:
    if isinstance(error, TemplateLimitError):
        return str(error), None
    if hasattr(error, "inside"):
        return _not_defined(error, source, names)
    return syntax_reason(error, ())


def _not_defined(error: Any, source: str, names: Mapping[str, Any]) -> tuple[str, str | None]:
    """The whole name, and the nearest that is there."""
    inside, name = error.inside, error.name
    path = "" if inside is None else _path_to(inside, names, source)
    known = names if inside is None else inside
    if path is None:
        return f"`{name}` is not defined", None
    dot = "." if path else ""
    said = f"`{path}{dot}{name}` is not defined"
    if not isinstance(known, Mapping):
        return said, None
    near = did_you_mean(str(name), map(str, known))
    if near is None and path:
        return said, _there_is(path, known)
    return said, near and near.replace("`", f"`{path}{dot}", 1)


def _there_is(path: str, known: Mapping[str, Any]) -> str:
    """What there is instead, as far as it is soon said."""
    names = [f"`{str(name)[:_MOST_SHOWN]}`" for name in islice(known, _MOST_NAMED)]
    more = " and others" if len(known) > len(names) else ""
    return f"`{path}` has {', '.join(names)}{more}" if names else f"`{path}` is empty"


def _path_to(wanted: Any, names: Mapping[str, Any], source: str) -> str | None:
    """Where the very object stands among the names, if it does.

    It may stand in several places (a step's `text` and `output`): the one the template names.
    """
    ahead: list[tuple[str, Any, int]] = [(name, value, 0) for name, value in names.items()]
    found: list[str] = []
    while ahead:
        path, value, depth = ahead.pop(0)
        if value is wanted:
            found.append(path)
        elif isinstance(value, Mapping) and depth < _DEEPEST_LOOK:
            ahead += [(f"{path}.{key}", inner, depth + 1) for key, inner in value.items()]
    named = (path for path in found if path in source)
    return next(named, found[0] if found else None)


def _line_of(error: Exception) -> int | None:
    """The line of the template in which an error came up while it was rendered."""
    trace = error.__traceback__
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in {"<template>", "<unknown>"}:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _shown(source: str) -> str:
    first = source.strip().partition("\n")[0]
    return first if len(first) <= _MOST_SHOWN else f"{first[: _MOST_SHOWN - 1]}…"
