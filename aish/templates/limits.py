"""The bounds of templates: the cost of a template, and template errors as messages."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any

from aish.core.errors import StepFailedError, did_you_mean
from aish.core.patterns import lazy_pattern
from aish.core.phrases import shorten

MAX_OUTPUT = 4 * 1024 * 1024
MAX_SECONDS = 5.0
"""What the text of a template may take."""
MAX_EXPRESSION_SECONDS = 60.0
"""What an expression may take, which may go over all items of a step."""
_MAX_BITS = 64 * 1024
_WIDTH = lazy_pattern(r"\d{5,}")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_SEQUENCES = (str, bytes, list, tuple)


class TemplateLimitError(Exception):
    """A bound was reached; the message says which, and `hint` what may be done instead."""

    hint: str | None = None


def collect(chunks: Iterable[str]) -> str:
    """The chunks joined, counted as they come."""
    texts: list[str] = []
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_OUTPUT:
            raise TemplateLimitError(f"the text is larger than {MAX_OUTPUT // 1024**2} MiB")
        texts.append(chunk)
    return "".join(texts)


def join_texts(texts: Iterable[str], between: str = "") -> str:
    parts = list(texts)
    check_size(sum(map(len, parts)) + len(between) * len(parts))
    return between.join(parts)


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse `+`, `*`, `**` and `%` whose result would be huge.

    Raises:
        TemplateLimitError: it would.
    """
    if operator == "+" and isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
        check_size(len(left) + len(right))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(operator, left.bit_length() * max(right, 0))
    elif operator == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, _SEQUENCES) and isinstance(times, int):
                check_size(len(sequence) * times)
        if isinstance(left, int) and isinstance(right, int):
            _check_bits("*", left.bit_length() + right.bit_length())
    elif operator == "%" and isinstance(left, str | bytes):
        check_format(str(left), (right,))


def check_call(function: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse calls of text methods that pad, repeat or format without a bound.

    Raises:
        TemplateLimitError: the call would.
    """
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if not isinstance(owner, str):
        return
    if name in _PADDING:
        check_numbers(*arguments, *named.values())
        if name == "expandtabs":
            width = next((n for n in (*arguments, *named.values()) if isinstance(n, int)), 8)
            check_size(len(owner) + owner.count("\t") * width)
    elif name == "replace" and len(arguments) > 1:
        check_replaced(owner, arguments[0], arguments[1])
    elif name == "join" and arguments and isinstance(arguments[0], Sized):
        check_size(len(owner) * len(arguments[0]))
    elif name == "translate":
        raise TemplateLimitError("`translate` is not available; use `replace`")


def check_numbers(*arguments: Any) -> None:
    for argument in arguments:
        if isinstance(argument, int):
            check_size(argument)


def check_replaced(text: str, old: Any, new: Any) -> None:
    """Refuse a replacement that makes a small text huge."""
    check_size(len(text) + text.count(str(old)) * len(str(new)))


def check_format(form: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a format with a huge width, its own or one among the arguments."""
    if _WIDTH.search(form):
        raise TemplateLimitError("a width in the format is too large")
    if "*" in form or ("{" in form and form.count("{") > form.count("}")) or _nests_width(form):
        for argument in arguments:
            check_numbers(*(argument if isinstance(argument, tuple | list) else (argument,)))


def check_size(size: int) -> None:
    """Refuse a text or list larger than a whole output may be."""
    if size > MAX_OUTPUT:
        raise TemplateLimitError(f"a text or list of {size:,} parts is too large")


def _nests_width(form: str) -> bool:
    """Return true if a format takes its width from an argument, as in `{:{}}`."""
    return bool(re.search(r"\{[^}]*\{", form))


def _check_bits(operator: str, bits: int) -> None:
    if bits > _MAX_BITS:
        raise TemplateLimitError(f"the result of `{operator}` is too large")


_MOST_SHOWN = 59
_MOST_NAMED = 8
_DEEPEST_LOOK = 8
_MOST_LOOKED_AT = 10_000
_WORD = lazy_pattern(r"[\w-]+")


class TemplateError(StepFailedError):
    """A template that cannot be rendered: which, and why."""

    code = "template"


def template_error(error: Exception, source: str, names: Mapping[str, Any]) -> TemplateError:
    line = getattr(error, "lineno", None) or _line_of(error)
    where = f", line {line}" if line and source.strip().count("\n") else ""
    why, hint = _reason(error, source, names)
    return TemplateError(f"the template `{_first_line(source)}`{where}: {why}", hint=hint)


def syntax_reason(error: Exception, known_filters: Iterable[str]) -> tuple[str, str | None]:
    """Why a text is not a template, and what may have been meant."""
    if isinstance(error, RecursionError | MemoryError):
        return "it is too deep or too large", None
    said = (getattr(error, "message", None) or str(error)).rstrip(".")
    if said.startswith("No filter named"):
        name = said.split("'")[1]
        return f"there is no filter `{name}`", did_you_mean(name, known_filters)
    return said or type(error).__name__, None


def _reason(error: Exception, source: str, names: Mapping[str, Any]) -> tuple[str, str | None]:
    if isinstance(error, TemplateLimitError):
        return str(error), error.hint
    if hasattr(error, "inside"):
        return _not_defined(error, source, names)
    return syntax_reason(error, ())


def _not_defined(error: Any, source: str, names: Mapping[str, Any]) -> tuple[str, str | None]:
    """The full name, and the most similar one that is defined."""
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
    """The names defined at `path`, up to a limit."""
    names = [f"`{str(name)[:_MOST_SHOWN]}`" for name in islice(known, _MOST_NAMED)]
    more = " and others" if len(known) > len(names) else ""
    return f"`{path}` has {', '.join(names)}{more}" if names else f"`{path}` is empty"


def _path_to(wanted: Any, names: Mapping[str, Any], source: str) -> str | None:
    """The path of this very object among the names, if there is one.

    It may have several paths (a step's `text` and `output`): the one that the template names. Only
    if it names none, the first names of all are looked at.
    """
    words = dict.fromkeys(_WORD.findall(source))
    found = _paths_to(wanted, names, lambda known: (word for word in words if word in known))
    named = [path for path in found if path in source]
    return next(iter(named or found or _paths_to(wanted, names, iter)), None)


def _paths_to(
    wanted: Any, names: Mapping[str, Any], keys: Callable[[Mapping[str, Any]], Iterator[Any]]
) -> list[str]:
    """The paths of an object, by these keys of each mapping."""
    ahead: deque[tuple[str, Any, int]] = deque([("", names, 0)])
    found: list[str] = []
    left = _MOST_LOOKED_AT
    while ahead:
        path, value, depth = ahead.popleft()
        if value is wanted:
            found.append(path)
        elif isinstance(value, Mapping) and depth <= _DEEPEST_LOOK:
            inside = list(islice(keys(value), left))
            left -= len(inside)
            dot = "." if path else ""
            ahead += [(f"{path}{dot}{key}", value[key], depth + 1) for key in inside]
    return found


def _line_of(error: Exception) -> int | None:
    """The line of the template in which an error occurred while it was rendered."""
    trace = error.__traceback__
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in {"<template>", "<unknown>"}:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _first_line(source: str) -> str:
    return shorten(source.strip().partition("\n")[0], _MOST_SHOWN)
