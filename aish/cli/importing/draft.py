"""An import in progress: variables to export, parts that did not map, problems."""

import os
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from aish.cli.importing.keys import TABLES, UNKNOWN, WHOLE
from aish.config.yaml_tree import ListNode, MappingNode, Node, ScalarNode, at, join, to_data
from aish.core.errors import Position, Problem
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.system.secrets.secrets import is_everywhere

_Wanted = TypeVar("_Wanted", str, bool, float)
_KINDS: Mapping[type, str] = {str: "a text", bool: "true or false", float: "a number"}


class LeftOutError(Exception):
    """A part of the source that cannot be carried over; says why."""


@frozen
class SkippedPart:
    """Something that no pipeline says, or says otherwise, where it stands first.

    `instead` is what can be done, `count` how many places there are.
    """

    position: Position
    path: str
    instead: str
    count: int

    def __str__(self) -> str:
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return f"{self.position}: {self.path}: {self.instead}{times}"


@slotted
class ImportDraft:
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
    skips: dict[tuple[str, str], dict[tuple[str, Position], None]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    approved: list[str] = field(default_factory=list)
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
        self.exports.setdefault(name, []).append(what)

    def skip(self, position: Position, path: str, instead: str) -> None:
        """Record that a part of the file has no counterpart; equal remarks are joined."""
        key = re.sub(r"\[\d+\]", "", path).rpartition(".")[2]
        self.skips.setdefault((key, instead), {})[path, position] = None

    @contextmanager
    def catch_left_out(
        self, position: Position, path: str, lead: str = "left out: "
    ) -> Generator[None]:
        """Say of what cannot be carried over within that it is left out."""
        try:
            yield
        except LeftOutError as error:
            self.skip(position, path, f"{lead}{error}")

    def lines_of_skipped(self) -> tuple[SkippedPart, ...]:
        """Return a line for each kind of what did not map, in the order of the file."""
        skips: list[SkippedPart] = []
        for (_, instead), places in self.skips.items():
            path, position = min(places, key=lambda skip: (skip[1].line, skip[1].column))
            skips.append(SkippedPart(position, path, instead, len(places)))
        return tuple(sorted(skips, key=lambda place: (place.position.line, place.position.column)))

    def wrong(self, position: Position, path: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(position, path, message, hint))

    def refuse_empty(self, position: Position, path: str, what: str) -> None:
        """Say that there is no `what` that could be imported, and of each why."""
        for skip in self.lines_of_skipped():
            self.wrong(skip.position, skip.path, skip.instead)
        self.wrong(position, path, f"there is no {what} that could be imported")

    def relative_folder(self, folder: Path) -> str:
        """A folder as the pipeline will call it; `.` where it is its own."""
        return os.path.relpath(folder.resolve(), self.target.resolve().parent)


@frozen
class Section:
    """A mapping of the source that knows which of its keys were read, and what was said of them."""

    node: MappingNode
    path: str
    draft: ImportDraft
    read: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)

    def place(self, key: str) -> str:
        return join(self.path, key)

    def position(self, key: str) -> Position:
        return self.node.keys.get(key, self.node.position)

    def raw(self, key: str) -> Node | None:
        """An entry, from now on read; `None` where it is left out or null."""
        self.read.add(key)
        node = self.node.entries.get(key)
        return None if isinstance(node, ScalarNode) and node.value is None else node

    def data(self, key: str) -> JsonValue:
        node = self.raw(key)
        return None if node is None else to_data(node)

    def text(self, *keys: str) -> str | None:
        """The first of these that is there, which has to be a text."""
        return self._scalar(str, *keys)

    def flag(self, *keys: str) -> bool | None:
        return self._scalar(bool, *keys)

    def number(self, *keys: str) -> float | None:
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
            values: list[str] = []
            for index, item in enumerate(node.items):
                if isinstance(item, ScalarNode) and item.value is not None:
                    values.append(as_text(item.value))
                else:
                    place = at(self.place(key), index)
                    self.draft.wrong(item.position, place, "a text is expected here")
            return tuple(values)
        return ()

    def pairs(self, *keys: str) -> dict[str, str]:
        """The first of these that is there, which has to map names to texts."""
        for key in keys:
            inner = self.section(key)
            if inner is None:
                continue
            values: dict[str, str] = {}
            for name, node in inner.node.entries.items():
                if isinstance(node, ScalarNode) and node.value is not None:
                    values[name] = as_text(node.value)
                elif not isinstance(node, ScalarNode):
                    inner.wrong(name, "a text is expected here")
            return values
        return {}

    def section(self, key: str) -> "Section | None":
        node = self.raw(key)
        if node is None:
            return None
        if not isinstance(node, MappingNode):
            self.wrong(key, "a mapping is expected here")
            return None
        return Section(node, self.place(key), self.draft)

    def items(self, key: str) -> list[tuple[str, Node]]:
        """The items of a list with their paths; of one that stands alone, itself."""
        node = self.raw(key)
        if node is None:
            return []
        if isinstance(node, ListNode):
            return [(at(self.place(key), index), item) for index, item in enumerate(node.items)]
        return [(self.place(key), node)]

    def sections(self, key: str) -> "Iterator[Section]":
        """The mappings of a list; what is none is wrong."""
        for path, node in self.items(key):
            if (section := as_section(node, path, self.draft)) is not None:
                yield section

    def wrong(self, key: str, message: str, hint: str | None = None) -> None:
        self.draft.wrong(self.position(key), self.place(key), message, hint)

    def skip(self, key: str, instead: str) -> None:
        self.told.add(key)
        self.draft.skip(self.position(key), self.place(key), instead)

    def leave(self, kind: str) -> bool:
        """Say of each entry what the table of its kind says; true if the whole mapping is out."""
        keys, is_out = TABLES[kind], False
        for key, node in self.node.entries.items():
            instead = keys.get(key, UNKNOWN)
            if key in self.told or (isinstance(node, ScalarNode) and node.value is None):
                continue
            if instead or key not in self.read:
                self.skip(key, instead or UNKNOWN)
                is_out = is_out or instead.startswith(WHOLE)
        return is_out

    def _scalar(self, kind: type[_Wanted], *keys: str) -> _Wanted | None:
        for key in keys:
            node = self.raw(key)
            if node is None:
                continue
            value = node.value if isinstance(node, ScalarNode) else None
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if isinstance(value, kind):
                return value
            self.wrong(key, f"{_KINDS[kind]} is expected here")
        return None


def as_section(node: Node, path: str, draft: ImportDraft) -> Section | None:
    """A mapping as a section; what is none is wrong."""
    if isinstance(node, MappingNode):
        return Section(node, path, draft)
    draft.wrong(node.position, path, "a mapping is expected here")
    return None


def as_text(value: bool | int | float | str) -> str:  # ruff: ignore[boolean-type-hint-positional-argument, redundant-numeric-union] - a scalar of the file, whichever
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def variable_name(text: str) -> str:
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    name = re.sub(r"[^A-Za-z0-9]+", "_", split).strip("_").upper()
    return f"V_{name}" if not name or name[0].isdigit() else name


def slug(text: str, otherwise: str) -> str:
    """A name of a pipeline or a step near `text`."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (name if name[:1].isalpha() else f"{otherwise}-{name}")[:60].rstrip("-")
