"""Options of tool packs: the marks of their fields, and what the house asks of them.

A pack declares its options as a frozen dataclass in its own package; `config` reads those of a
file into it. A server has the options that its file gives, by the name of the pack.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from aish.core.frozen import frozen

PackOptions = Mapping[str, Any]
"""Instances of the packs' own classes, by the name of the pack, in the order of the schema."""

Mark = Literal["literal", "model", "variable", "environment_file", "own_file"]


def option(default: Any = MISSING, *marks: Mark) -> Any:
    """Declare an option; without a default it is required.

    `${` is refused in a `literal` one, a `model` is the alias of one in the file, a `variable` the
    name of one that holds a secret. A run's tools may not write an `own_file`, which has to exist;
    nor an `environment_file`, which commands have their environment from.
    """
    return field(default=default, metadata=dict.fromkeys(marks, True))


def marked_options(options: PackOptions, mark: Mark) -> Iterator[tuple[str, Any]]:
    """Yield the options with a mark that have a value, by their path: `ide.bridge.token_env`."""
    for pack, values in options.items():
        yield from _marked_fields(pack, values, mark)


def _marked_fields(path: str, values: Any, mark: Mark) -> Iterator[tuple[str, Any]]:
    for one in fields(values):
        value, inner = getattr(values, one.name), f"{path}.{one.name}"
        if mark in one.metadata and value:
            yield inner, value
        elif is_dataclass(value):
            yield from _marked_fields(inner, value, mark)
        elif isinstance(value, tuple):
            for index, item in enumerate(filter(is_dataclass, value)):
                marked = _marked_fields("", item, mark)
                yield from ((f"{inner}[{index}]", word) for _, word in marked)


def hidden_names(options: PackOptions) -> tuple[str, ...]:
    """The names that are hidden from all packs of the server: it has one root."""
    lists = (getattr(values, "deny_names", ()) for values in options.values())
    return tuple(dict.fromkeys(glob for globs in lists for glob in globs))


def option_words(options: PackOptions) -> tuple[str, ...]:
    """Write options other than defaults, as `shell.network=false`: pinned like an argv.

    Files are named without their folders, which differ from machine to machine.
    """
    words: list[str] = []
    for pack, values in options.items():
        usual = type(values)()
        for one in fields(values):
            value = getattr(values, one.name)
            if value != getattr(usual, one.name):
                words.append(f"{pack}.{one.name}={_word(value)}")
    return tuple(words)


def _word(value: Any) -> str:
    if isinstance(value, Path):
        return value.name
    if is_dataclass(value):
        given = {one.name: getattr(value, one.name) for one in fields(value)}
        return json.dumps({key: word for key, word in given.items() if word}, ensure_ascii=False)
    if isinstance(value, tuple):
        items = [item.to_json() if hasattr(item, "to_json") else item for item in value]
        return json.dumps(items, ensure_ascii=False)
    return value if isinstance(value, str) else json.dumps(value)


@frozen
class ModelConsent:
    """Which models of the file the packs of a server may ask.

    `named` are the aliases in its options, `every` adds all others. `unnamed` permits requests that
    name no model: that of the step answers them, or the default one of the file.
    """

    named: tuple[str, ...] = ()
    every: bool = False
    unnamed: bool = False

    @property
    def given(self) -> bool:
        """True if they may ask at all."""
        return bool(self.named) or self.every or self.unnamed

    def permits(self, alias: str) -> bool:
        """Return true if a request may name this model; an empty `alias` is one without a model."""
        return self.unnamed if not alias else self.every or alias in self.named
