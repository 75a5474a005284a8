"""What an import has come to so far: variables to export, what did not map, what is wrong."""

import os
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from aish.config.yaml_tree import ListNode, MappingNode, Node, ScalarNode, at, join, to_data
from aish.core.errors import Position, Problem
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.system.secrets.secrets import is_everywhere

_Wanted = TypeVar("_Wanted", str, bool, float)
_KINDS: Mapping[type, str] = {str: "a text", bool: "true or false", float: "a number"}


@frozen
class Skipped:
    """Something that no pipeline says, or says otherwise; `instead` is what can be done."""

    position: Position
    path: str
    instead: str


@slotted
class Draft:
    """`source` is read, `target` will be written.

    `exports` says of each variable what belongs into it, `described` what the source says of it,
    `literals` which of them had a value there. `read` are the variables that the source itself
    reads, `reserved` those that a value of the source must not get, wherever they are read.
    `secrets` are variables that the pipeline declares.
    """

    source: Path
    target: Path
    reserved: frozenset[str] = frozenset()
    read: set[str] = field(default_factory=set)
    exports: dict[str, list[str]] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)
    literals: dict[str, str] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    approved: list[JsonValue] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)

    def uses(self, name: str, what: str) -> None:
        """A variable that the pipeline reads; what every machine has needs no export."""
        self.read.add(name)
        if not is_everywhere(name):
            self._export(name, what)

    def moves(self, value: str, wanted: str, owner: str, what: str) -> str:
        """The variable that takes the place of a value; one value has one variable."""
        name = variable_name(wanted)
        number = 1
        while (
            self.literals.get(name, value) != value or name in self.reserved or is_everywhere(name)
        ):
            # Its owner's name first, and then a number.
            first = number == 1 and not variable_name(wanted).startswith(variable_name(owner))
            number += not first
            name = variable_name(f"{owner}_{wanted}" if first else f"{wanted}_{number}")
            wanted = f"{owner}_{wanted}" if first else wanted
        self.literals[name] = value
        self._export(name, what)
        return name

    def _export(self, name: str, what: str) -> None:
        """Say each use of a variable once."""
        self.exports.setdefault(name, []).append(what)

    def skip(self, position: Position, path: str, instead: str) -> None:
        """Say that something did not map."""
        self.skipped.append(Skipped(position, path, instead))

    def wrong(self, position: Position, path: str, message: str, hint: str | None = None) -> None:
        """Say that something cannot be right."""
        self.problems.append(Problem(position, path, message, hint))

    def relative_folder(self, folder: Path) -> str:
        """A folder as the pipeline will call it; `.` where it is its own."""
        return os.path.relpath(folder.resolve(), self.target.resolve().parent)


@frozen
class Section:
    """A mapping of the source that knows which of its keys were read."""

    node: MappingNode
    path: str
    draft: Draft
    read: set[str]

    def place(self, key: str) -> str:
        """The path of an entry."""
        return join(self.path, key)

    def position(self, key: str) -> Position:
        """Where an entry stands."""
        return self.node.keys.get(key, self.node.position)

    def raw(self, key: str) -> Node | None:
        """An entry, from now on read; `None` where it is left out or null."""
        self.read.add(key)
        node = self.node.entries.get(key)
        return None if isinstance(node, ScalarNode) and node.value is None else node

    def data(self, key: str) -> JsonValue:
        """An entry as it is."""
        node = self.raw(key)
        return None if node is None else to_data(node)

    def text(self, *keys: str) -> str | None:
        """The first of these that is there, which has to be a text."""
        return self._scalar(str, *keys)

    def flag(self, *keys: str) -> bool | None:
        """The same, true or false."""
        return self._scalar(bool, *keys)

    def number(self, *keys: str) -> float | None:
        """The same, a number."""
        return self._scalar(float, *keys)

    def texts(self, *keys: str) -> tuple[str, ...]:
        """The first of these that is there, which has to be a list of texts."""
        for key in keys:
            node = self.raw(key)
            if node is None:
                continue
            if not isinstance(node, ListNode):
                self.wrong(key, "a list is expected here")
                continue
            found: list[str] = []
            for index, item in enumerate(node.items):
                if isinstance(item, ScalarNode) and item.value is not None:
                    found.append(as_text(item.value))
                else:
                    place = at(self.place(key), index)
                    self.draft.wrong(item.position, place, "a text is expected here")
            return tuple(found)
        return ()

    def pairs(self, *keys: str) -> dict[str, str]:
        """The first of these that is there, which has to map names to texts."""
        for key in keys:
            inner = self.section(key)
            if inner is None:
                continue
            found: dict[str, str] = {}
            for name, node in inner.node.entries.items():
                if isinstance(node, ScalarNode) and node.value is not None:
                    found[name] = as_text(node.value)
                elif not isinstance(node, ScalarNode):
                    inner.wrong(name, "a text is expected here")
            return found
        return {}

    def section(self, key: str) -> "Section | None":
        """A mapping within, or `None` if left out."""
        node = self.raw(key)
        if node is None:
            return None
        if not isinstance(node, MappingNode):
            self.wrong(key, "a mapping is expected here")
            return None
        return Section(node, self.place(key), self.draft, set())

    def items(self, key: str) -> list[tuple[str, Node]]:
        """The items of a list with their paths; of one that stands alone, itself."""
        node = self.raw(key)
        if node is None:
            return []
        if isinstance(node, ListNode):
            return [(at(self.place(key), index), item) for index, item in enumerate(node.items)]
        return [(self.place(key), node)]

    def wrong(self, key: str, message: str, hint: str | None = None) -> None:
        """Say that an entry cannot be right."""
        self.draft.wrong(self.position(key), self.place(key), message, hint)

    def skip(self, key: str, instead: str) -> None:
        """Say that an entry did not map."""
        self.read.add(key)
        self.draft.skip(self.position(key), self.place(key), instead)

    def leave(self, instead: Mapping[str, str], ignored: frozenset[str] = frozenset()) -> None:
        """Say of everything that nobody has read that it did not map."""
        for key in self.node.entries:
            if key not in self.read and key not in ignored:
                self.skip(key, instead.get(key, "no pipeline has this"))

    def _scalar(self, wanted: type[_Wanted], *keys: str) -> _Wanted | None:
        for key in keys:
            node = self.raw(key)
            if node is None:
                continue
            value = node.value if isinstance(node, ScalarNode) else None
            if wanted is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if isinstance(value, wanted):
                return value
            self.wrong(key, f"{_KINDS[wanted]} is expected here")
        return None


def as_section(node: Node, path: str, draft: Draft) -> Section | None:
    """A mapping as a section; what is none is wrong."""
    if isinstance(node, MappingNode):
        return Section(node, path, draft, set())
    draft.wrong(node.position, path, "a mapping is expected here")
    return None


def as_text(value: bool | int | float | str) -> str:  # ruff: ignore[boolean-type-hint-positional-argument, redundant-numeric-union] - a scalar of the file, whichever
    """A scalar as other programs pass it to a child."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def variable_name(text: str) -> str:
    """The name of a variable near `text`."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    name = re.sub(r"[^A-Za-z0-9]+", "_", split).strip("_").upper()
    return f"V_{name}" if not name or name[0].isdigit() else name


def slug(text: str, otherwise: str) -> str:
    """A name of a pipeline or a step near `text`."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].rstrip("-")
    return name if name[:1].isalpha() else f"{otherwise}-{name}".rstrip("-")
