"""Parses plain command lines into the keyword arguments of a command, without typer.

Plain are options and arguments that the command has, each with a value of its type. Importing typer
for them would take a ninth of a short run's start (docs/decisions/0011). For everything else, help,
completion and every usage error, `plain_arguments` returns `None`, and `typer_parser` is used,
which reads the same declarations; a test checks that both parse a line in the same way.
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

from aish.cli.options import Argument, Option
from aish.core.frozen import frozen

FILES_OWN = "cassette:"
"""Stands for the cassette that the pipeline file names."""

# A run id or its end: not the name of a pipeline file, which contains a dot or a slash.
_RUN_ID = r"[0-9A-Za-z][0-9A-Za-z-]*\Z"
_PATH = r"[^-]"
# A socket file or a port, and not the name of a pipeline file.
_ADDRESS = r"unix:|\S*:\d+\Z"
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
    "test": {"--record": ("changed", _NOTHING)},
}

_NUMBERS = {int: r"[0-9]{1,15}", float: r"[0-9]{1,15}(\.[0-9]{1,15})?"}


def completed(argv: Sequence[str]) -> list[str]:
    """`argv` with a value added to each option that may be given without one."""
    alone = _ALONE.get(argv[0], {}) if argv else {}
    found: list[str] = []
    for place, word in enumerate(argv):
        if word == "--":
            return [*found, *argv[place:]]
        found.append(word)
        following = argv[place + 1] if place + 1 < len(argv) else ""
        if word in alone:
            meant, value = alone[word]
            if not re.match(value, following):
                found.append(meant)
    return found


@frozen
class Parameter:
    """One of the command line: `kind` is the type of a value, `many` whether it can be repeated."""

    name: str
    annotation: Any
    default: Any
    kind: Any
    many: bool
    declared: Option | Argument


def parameters(command: Callable[..., int]) -> Iterator[Parameter]:
    """The command-line parameters of a command: the fields of a group if it takes a group."""
    for one in inspect.signature(command).parameters.values():
        if not is_dataclass(one.annotation):
            yield _parameter(one.name, one.annotation, one.default)
            continue
        for field in fields(one.annotation):
            missing = field.default is field.default_factory
            yield _parameter(field.name, field.type, one.empty if missing else field.default)


def called(command: Callable[..., int], given: Mapping[str, Any]) -> partial[int]:
    """The call with these arguments, those of a group combined."""
    left = dict(given)
    groups = {
        one.name: one.annotation(**{f.name: left.pop(f.name) for f in fields(one.annotation)})
        for one in inspect.signature(command).parameters.values()
        if is_dataclass(one.annotation) and isinstance(one.annotation, type)
    }
    return partial(command, **left, **groups)


def plain_arguments(command: Callable[..., int], words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of the command, if `words` are plain."""
    known = tuple(parameters(command))
    try:
        given, positional = _options(known, words)
        given |= _positional(known, positional)
    except _NotPlainError:
        return None
    values = {one.name: given.get(one.name, one.default) for one in known}
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
        one = options.get(name)
        if one is None or (equals and (one.kind is bool or not name.startswith("--"))):
            raise _NotPlainError
        if one.kind is bool:
            values[one.name] = True
            continue
        if not equals:
            text = next(following, "--")
            if text.startswith("-") and text != "-":
                raise _NotPlainError
        value = _value(one, text)
        values[one.name] = [*values.get(one.name, ()), value] if one.many else value
    return values, positional


def _positional(known: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any]:
    """The values of arguments, which take the words in their order."""
    values: dict[str, Any] = {}
    for one in known:
        if words and isinstance(one.declared, Argument):
            taken = len(words) if one.many else 1
            found = [_value(one, word) for word in words[:taken]]
            values[one.name] = found if one.many else found[0]
            words = words[taken:]
    if words:
        raise _NotPlainError
    return values


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    kind, declared = get_args(annotation)
    union = [one for one in get_args(kind) if one is not NoneType]
    if get_origin(kind) is not list and union:
        (kind,) = union
    many = get_origin(kind) is list
    return Parameter(name, annotation, default, get_args(kind)[0] if many else kind, many, declared)


def _value(one: Parameter, text: str) -> Any:
    """The value of a word."""
    if one.kind is str:
        return text
    if one.kind is Path:
        if os.access(text, os.R_OK) or not os.path.lexists(text):
            return Path(text)
    elif issubclass(one.kind, Enum):
        for member in one.kind:
            if member.value == text:
                return member
    elif re.fullmatch(_NUMBERS[one.kind], text):
        value = one.kind(text)
        if value >= one.declared.details.get("min", value):
            return value
    raise _NotPlainError
