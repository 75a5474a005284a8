"""Typed access to a mapping of the file that is known to fit the schema.

Used by `decode`: each getter has the default of the design, and errors that the schema cannot find
become problems with a position. Durations and sizes are written as `1h30m` and `32KiB`;
`${VAR}` and `${VAR:-default}` are allowed in some fields: the value comes from the
environment, and as in a shell, `:-` also replaces an empty value.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from aish.config.file_schema import is_unknown_key
from aish.config.yaml_tree import (
    UNREADABLE,
    BrokenNode,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    at,
    join,
    to_data,
)
from aish.core.errors import Position, Problem
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.patterns import lazy_pattern

_REFERENCE = lazy_pattern(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{"
)

_VARIABLES = (".key_env", ".auth_env", ".token_env", ".url_env", ".client_secret_env")


def is_variable_name(path: str) -> bool:
    """Tell whether the value at a path of a file is the name of a variable."""
    in_list = path.startswith(("secrets[", "env[")) and path.find("]") == len(path) - 1
    return in_list or path.endswith(_VARIABLES)


def variables(text: str) -> tuple[tuple[str, str | None], ...]:
    """The names that `text` refers to, each with its default or `None`."""
    if "${" not in text:
        return ()
    return tuple(
        (match["name"], match["default"])
        for match in _REFERENCE.finditer(text)
        if match["name"] is not None
    )


def find_malformed(text: str) -> str | None:
    """The beginning of the first `${` that is not a reference, if there is one."""
    for match in _REFERENCE.finditer(text):
        if match[0] == "${":
            return text[match.start() : match.start() + 20]
    return None


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`text` with its variables replaced once, and `$${` made `${`.

    Raises:
        KeyError: a variable is not set and has no default.
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, default = match["name"], match["default"]
        if name is None:
            return match[0]
        value = environ.get(name)
        if default is not None:
            return value or default
        if value is None:
            raise KeyError(name)
        return value

    return _REFERENCE.sub(replace, text) if "${" in text else text


_HOST = lazy_pattern(r"(?:[^:/?#]*://)?(?:[^/?#]*@)?(?P<host>[^/?#]*)")


def host_span(url: str) -> tuple[int, int]:
    """Start and end of host and port in a URL that may contain references to variables."""
    # A default may contain any character.
    match = _HOST.match(_REFERENCE.sub(lambda one: "x" * len(one[0]), url))
    assert match is not None, "every part is optional"
    return match.span("host")


_DURATION = lazy_pattern(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})?(?:ms|[dhms])){1,5}\Z")
_PART = lazy_pattern(r"([0-9.]+)(ms|[dhms])")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_SIZE = lazy_pattern(r"([0-9]{1,12}) ?(B|kB|MB|GB|KiB|MiB|GiB)\Z")
_BYTES = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}


def duration(text: str) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, `500ms`.

    Raises:
        ValueError: it is none: no unit, an unknown one, one twice, or a smaller before a larger.
    """
    if _DURATION.match(text):
        parts = _PART.findall(text)
        sizes = [_SECONDS[unit] for _, unit in parts]
        if all(first > two for first, two in pairwise(sizes)):
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
            if seconds > 0:
                return seconds
            raise ValueError("duration must be greater than zero")
    raise ValueError(f"`{text}` is not a duration such as `90s`, `10m` or `1h30m`")


def size(text: str) -> int:
    """Bytes of `32KiB`, `2MB`, `512B`.

    Raises:
        ValueError: it is not a size.
    """
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"`{text}` is not a size such as `32KiB` or `2MiB`")
    count = int(match[1]) * _BYTES[match[2]]
    if count == 0:
        raise ValueError("size must be greater than zero")
    return count


@frozen
class Table:
    """A mapping at `path`; the problems of all tables of a file are collected in one list."""

    node: MappingNode
    path: str
    problems: list[Problem]

    def raw(self, key: str) -> Node | None:
        """The node of an entry; `None` if it is missing or null."""
        node = self.node.entries.get(key)
        return None if isinstance(node, ScalarNode) and node.value is None else node

    def has(self, key: str) -> bool:
        return self.raw(key) is not None

    def is_broken(self, key: str) -> bool:
        return isinstance(self.node.entries.get(key), BrokenNode)

    def place(self, key: str) -> str:
        return join(self.path, key)

    def position(self, key: str) -> Position:
        """The position of an entry: its value if that is on the line of its key."""
        there, named = self.node.entries[key].position, self.node.keys[key]
        return there if (there.file, there.line) == (named.file, named.line) else named

    def problem(self, key: str | None, message: str, hint: str | None = None) -> None:
        """Report a problem with an entry, or with the mapping itself.

        Missing entries are not reported if the mapping has a misspelt or broken key, which is
        probably the missing one. Broken entries are not reported again.
        """
        if self.is_broken(key) if key is not None else self._may_lack_nothing():
            return
        position = self.node.position if key is None else self.position(key)
        path = self.path if key is None else self.place(key)
        self.problems.append(Problem(position, path, message, hint))

    def _may_lack_nothing(self) -> bool:
        broken = any(isinstance(node, BrokenNode) for node in self.node.entries.values())
        return broken or any(_is_unknown_in(self.path, problem) for problem in self.problems)

    def data(self, key: str) -> JsonValue:
        node = self.raw(key)
        return None if node is None else to_data(node)

    def mapping(self, key: str) -> dict[str, JsonValue]:
        value = self.data(key)
        return dict(value) if isinstance(value, Mapping) else {}

    def text(self, key: str) -> str | None:
        node = self.raw(key)
        return node.value if isinstance(node, ScalarNode) and isinstance(node.value, str) else None

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.data(key)
        return value if isinstance(value, bool) else default

    def whole(self, key: str, default: int) -> int:
        value = self.data(key)
        return int(value) if isinstance(value, (int, float)) else default

    def seconds(self, key: str, default: float) -> float:
        text = self.text(key)
        try:
            return default if text is None else duration(text)
        except ValueError as error:
            self.problem(key, str(error))
            return default

    def size(self, key: str, default: int) -> int:
        text = self.text(key)
        try:
            return default if text is None else size(text)
        except ValueError as error:
            self.problem(key, str(error))
            return default

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; a single text is a list of one."""
        value = self.data(key)
        if isinstance(value, str):
            return (value,)
        return tuple(map(str, value)) if isinstance(value, list) else ()

    def pairs(self, key: str) -> dict[str, str]:
        return {name: str(value) for name, value in self.mapping(key).items()}

    def child(self, key: str) -> "Table | None":
        """A nested mapping, or `None` if missing."""
        node = self.raw(key)
        if not isinstance(node, MappingNode):
            return None
        return Table(node, self.place(key), self.problems)

    def part(self, key: str) -> "Table":
        return self.child(key) or Table(
            MappingNode(self.node.position), self.place(key), self.problems
        )

    def tables(self) -> Iterator[tuple[str, "Table"]]:
        """The entries that are mappings, by name; for a broken one, a table that lacks anything."""
        for key, node in self.node.entries.items():
            table = self.child(key)
            if table is not None:
                yield key, table
            elif isinstance(node, BrokenNode) and key != UNREADABLE:
                # Its name is known nevertheless.
                inner = MappingNode(node.position, {UNREADABLE: node}, {UNREADABLE: node.position})
                yield key, Table(inner, self.place(key), self.problems)

    def names(self) -> Iterator[str]:
        """The keys of a mapping whose names are chosen by the author."""
        return (key for key in self.node.entries if key != UNREADABLE)

    def items(self, key: str) -> Iterator[tuple[str, Node]]:
        node = self.raw(key)
        if isinstance(node, ListNode):
            for index, item in enumerate(node.items):
                yield at(self.place(key), index), item

    def folder_of(self, key: str) -> Path:
        """The folder of the file that contains an entry: the base of its relative path."""
        node = self.node.entries[key]
        return Path(node.position.file).parent

    def absolute(self, key: str) -> Path | None:
        text = self.text(key)
        return None if text is None else absolute_path(self.folder_of(key), text)

    def absolutes(self, key: str) -> tuple[Path, ...]:
        return tuple(
            absolute_path(Path(node.position.file).parent, node.value)
            for _, node in self.items(key)
            if isinstance(node, ScalarNode) and isinstance(node.value, str)
        )

    def check_references(self, key: str) -> None:
        """Report each `${` in an entry that is not a reference to a variable."""
        node = self.raw(key)
        if node is not None:
            self._check_references(node, self.place(key))

    def _check_references(self, node: Node, path: str) -> None:
        match node:
            case ScalarNode(value=str(text)):
                reference = find_malformed(text)
                if reference is not None:
                    message = f"`{reference}` is not a reference to a variable"
                    hint = "write `${NAME}` or `${NAME:-default}`; `$${` stands for `${` itself"
                    self.problems.append(Problem(node.position, path, message, hint))
            case ListNode():
                for index, item in enumerate(node.items):
                    self._check_references(item, at(path, index))
            case MappingNode():
                for key, value in node.entries.items():
                    self._check_references(value, join(path, key))
            case ScalarNode():
                return


def _is_unknown_in(path: str, problem: Problem) -> bool:
    above = problem.path[: max(problem.path.rfind("."), problem.path.rfind("["), 0)]
    return above == path and is_unknown_key(problem)


def absolute_path(folder: Path, text: str) -> Path:
    """A path that is written in a file of `folder`, made absolute."""
    # Not resolved: symbolic links in the path are the author's, and are shown as written.
    return Path.cwd() / folder / text
