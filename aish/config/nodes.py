"""A parsed file as our own tree: plain values, each with the place where it stands.

The tree is made by `source`, put together by `merge` and `overrides`, and read by `decode`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from aish.core.errors import Position, Problem
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue

_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$-]*\Z", re.ASCII)


@frozen
class ScalarNode:
    """Text, a number, true, false or null."""

    position: Position
    value: bool | int | float | str | None


class BrokenNode(ScalarNode):
    """Stands where something could not be read, or is missing; its problem is known.

    What is looked at reads null there. What would follow from that is not to be said.
    """


@slotted
class ListNode:
    """A list; filled while it is read, left alone afterwards."""

    position: Position
    items: list["Node"] = field(default_factory=list)


@slotted
class MappingNode:
    """A mapping; `keys` says where each key stands."""

    position: Position
    entries: dict[str, "Node"] = field(default_factory=dict)
    keys: dict[str, Position] = field(default_factory=dict)

    def put(self, key: str, value: "Node", position: Position) -> None:
        """Add or replace an entry."""
        self.entries[key] = value
        self.keys[key] = position


Node = ScalarNode | ListNode | MappingNode


def join(path: str, key: str) -> str:
    """The path of an entry of the mapping at `path`."""
    if not _PLAIN_KEY.match(key):
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def at(path: str, index: int) -> str:
    """The path of an item of the list at `path`."""
    return f"{path}[{index}]"


def to_data(node: Node) -> JsonValue:
    """The same as plain JSON; a broken entry is left out, and a broken item is null."""
    match node:
        case ScalarNode():
            return node.value
        case ListNode():
            return [to_data(item) for item in node.items]
        case MappingNode():
            return {
                key: to_data(value)
                for key, value in node.entries.items()
                if not isinstance(value, BrokenNode)
            }


UNREADABLE = "<<"
"""The key of what cannot be a key; the mapping it stands in may lack anything."""


def is_whole(node: MappingNode) -> bool:
    """Whether all keys of a mapping could be read."""
    return UNREADABLE not in node.entries


def broken_paths(node: Node, path: str = "") -> Iterator[str]:
    """The paths of all that is broken."""
    match node:
        case BrokenNode():
            yield path
        case ListNode():
            for index, item in enumerate(node.items):
                yield from broken_paths(item, at(path, index))
        case MappingNode():
            for key, value in node.entries.items():
                yield from broken_paths(value, join(path, key))
        case ScalarNode():
            return


def positions_of(root: MappingNode) -> dict[str, Position]:
    """Where each key and each item stands, by its path."""
    return dict(_positions(root, ""))


def _positions(node: Node, path: str) -> Iterator[tuple[str, Position]]:
    match node:
        case MappingNode():
            for key, value in node.entries.items():
                place = join(path, key)
                yield place, _shown(value, node.keys[key])
                yield from _positions(value, place)
        case ListNode():
            for index, item in enumerate(node.items):
                place = at(path, index)
                yield place, item.position
                yield from _positions(item, place)
        case ScalarNode():
            return


def _shown(value: Node, key: Position) -> Position:
    """A value where it is on its key's line, else the key: what a person looks for."""
    there = value.position
    return there if there.file == key.file and there.line == key.line else key


def nearest_position(positions: Mapping[str, Position], path: str, file: str) -> Position:
    """Where `path` stands, or the nearest thing around it that stands anywhere."""
    while path:
        if path in positions:
            return positions[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return Position(file, 1, 1)


def in_file_order(problems: Iterable[Problem], first: str = "") -> tuple[Problem, ...]:
    """Problems as they stand in their files, `first` before the other files; none twice."""
    found = list(dict.fromkeys(problems))
    files = dict.fromkeys((first, *(problem.position.file for problem in found)))
    number = {file: index for index, file in enumerate(files)}
    return tuple(
        sorted(
            found,
            key=lambda problem: (
                number[problem.position.file],
                problem.position.line,
                problem.position.column,
            ),
        )
    )
