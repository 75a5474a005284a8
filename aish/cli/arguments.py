"""Parses plain command lines into the keyword arguments of a command, without typer.

A line is plain if it has only options and arguments of the command, with values of their types.
Importing typer for those would take a ninth of a short run's start (docs/decisions/0011). For
everything else, help, completion and every usage error, `plain_arguments` returns `None`, and
`typer_parser` is used, which reads the same declarations; a test checks that both parse a line in
the same way.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from aish.cli.options import Argument, Option, VerboseOption
from aish.core.frozen import frozen

FILES_OWN = "cassette:"
"""Stands for the cassette that the pipeline file names."""

# A run id or its end: not the name of a pipeline file, which contains a dot or a slash.
_RUN_ID = r"[0-9A-Za-z][0-9A-Za-z-]*\Z"
_PATH = r"[^-]"
# A socket file or a port, and not the name of a pipeline file.
_ADDRESS = r"unix:|\S*:\d+\Z"
ASK_MODELS = "models:"
"""Stands for asking the models themselves."""
DEFAULT_ADDRESS = "default"
"""Stands for the address that an option has without a value."""
# Only after a `=`: the next word is an argument of its own.
_NOTHING = r"(?!)"

# Options whose value is optional: the command, and for each of them its default value and a pattern
# that the next word must match to be its value.
_ALONE: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "run": {
        "--resume": ("latest", _RUN_ID),
        "--control": ("auto", _ADDRESS),
        **dict.fromkeys(("--record", "--replay", "--cassette"), (FILES_OWN, _PATH)),
    },
    "shell": {"--resume": ("latest", _RUN_ID), "--control": ("auto", _ADDRESS)},
    "serve": {"--tcp": (DEFAULT_ADDRESS, _ADDRESS), "--control": ("auto", _ADDRESS)},
    "lock": {"--served": (ASK_MODELS, _PATH)},
    "test": {"--record": ("changed", _NOTHING)},
}

_VERBOSE = "verbose"
_NUMBERS = {int: r"[0-9]{1,15}", float: r"[0-9]{1,15}(\.[0-9]{1,15})?"}


def with_values(argv: Sequence[str]) -> list[str]:
    """`argv` with a value added to each option that may be given without one."""
    alone = _ALONE.get(argv[0], {}) if argv else {}
    words: list[str] = []
    for place, word in enumerate(argv):
        if word == "--":
            return [*words, *argv[place:]]
        words.append(word)
        following = argv[place + 1] if place + 1 < len(argv) else ""
        if word in alone:
            meant, value = alone[word]
            if not re.match(value, following):
                words.append(meant)
    return words


@frozen
class Parameter:
    """A parameter of a command; `kind` is the type of a value, `many` allows several."""

    name: str
    annotation: Any
    default: Any
    kind: Any
    many: bool
    declared: Option | Argument


def parameters(command: Callable[..., int]) -> Iterator[Parameter]:
    """The command-line parameters of a command: the fields of a group if it takes a group.

    Each command has `--verbose`, which `main` reads.
    """
    names: set[str] = set()
    for parameter in inspect.signature(command).parameters.values():
        if not is_dataclass(parameter.annotation):
            names.add(parameter.name)
            yield _parameter(parameter.name, parameter.annotation, parameter.default)
            continue
        for field in fields(parameter.annotation):
            names.add(field.name)
            missing = field.default is field.default_factory
            yield _parameter(field.name, field.type, parameter.empty if missing else field.default)
    if _VERBOSE not in names:
        yield _parameter(_VERBOSE, VerboseOption, default=False)


def bind_call(command: Callable[..., int], given: Mapping[str, Any]) -> partial[int]:
    left = dict(given)
    taken = inspect.signature(command).parameters
    groups = {
        one.name: one.annotation(**{f.name: left.pop(f.name) for f in fields(one.annotation)})
        for one in taken.values()
        if is_dataclass(one.annotation) and isinstance(one.annotation, type)
    }
    if _VERBOSE not in taken:
        left.pop(_VERBOSE, None)
    return partial(command, **left, **groups)


def plain_arguments(command: Callable[..., int], words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of the command, if `words` are plain."""
    known = tuple(parameters(command))
    try:
        values_by_name, positional = _options(known, words)
        values_by_name |= _positional(known, positional)
    except _NotPlainError:
        return None
    values = {one.name: values_by_name.get(one.name, one.default) for one in known}
    return None if inspect.Parameter.empty in values.values() else values


class _NotPlainError(Exception):
    """Typer has to parse the word."""


def _options(known: Sequence[Parameter], words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of options, and the words that belong to none of them."""
    options = {name: one for one in known for name in getattr(one.declared, "names", ())}
    values: dict[str, Any] = {}
    positional: list[str] = []
    following = iter(words)
    for word in following:
        if not word.startswith("-") or word == "-":
            positional.append(word)
            continue
        name, equals, text = word.partition("=")
        option = options.get(name)
        if option is None or (equals and (option.kind is bool or not name.startswith("--"))):
            raise _NotPlainError
        if option.kind is bool:
            values[option.name] = True
            continue
        if not equals:
            text = next(following, "--")
            if text.startswith("-") and text != "-":
                raise _NotPlainError
        value = _value(option, text)
        values[option.name] = [*values.get(option.name, ()), value] if option.many else value
    return values, positional


def _positional(known: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for parameter in known:
        if words and isinstance(parameter.declared, Argument):
            taken = len(words) if parameter.many else 1
            items = [_value(parameter, word) for word in words[:taken]]
            values[parameter.name] = items if parameter.many else items[0]
            words = words[taken:]
    if words:
        raise _NotPlainError
    return values


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    kind, declared = get_args(annotation)
    union = [arg for arg in get_args(kind) if arg is not NoneType]
    if get_origin(kind) is not list and union:
        (kind,) = union
    many = get_origin(kind) is list
    return Parameter(name, annotation, default, get_args(kind)[0] if many else kind, many, declared)


def _value(parameter: Parameter, text: str) -> Any:
    if parameter.kind is str:
        return text
    if parameter.kind is Path:
        if os.access(text, os.R_OK) or not os.path.lexists(text):
            return Path(text)
    elif issubclass(parameter.kind, Enum):
        for member in parameter.kind:
            if member.value == text:
                return member
    elif re.fullmatch(_NUMBERS[parameter.kind], text):
        value = parameter.kind(text)
        if value >= parameter.declared.details.get("min", value):
            return value
    raise _NotPlainError
