"""`extends`: files under files, merged into one tree in which each value keeps its place (F8)."""

import os
from dataclasses import field
from pathlib import Path

from aish.config.text_file import UnreadableError, read_text, reason
from aish.config.yaml_tree import (
    UNREADABLE,
    BrokenNode,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    at,
    parse_yaml,
)
from aish.core.errors import Position, Problem
from aish.core.frozen import slotted

MAX_FILES = 64


@slotted
class Gathered:
    """The merged tree of a file and its bases, and everything that was wrong on the way."""

    root: MappingNode | None
    problems: list[Problem] = field(default_factory=list)


def read_with_bases(path: Path) -> Gathered:
    """The tree of `path`, its bases merged in."""
    reader = _Reader()
    try:
        root = reader.read(path, ())
    except UnreadableError as error:
        return Gathered(None, [error.problem])
    return Gathered(root, reader.problems)


def parse_mapping(text: str, file: str) -> tuple[MappingNode | None, list[Problem]]:
    """The mapping that a text holds, as far as it can be read, and what is wrong with it."""
    parsed = parse_yaml(text, file)
    root = parsed.root
    if isinstance(root, MappingNode):
        return root, list(parsed.problems)
    if parsed.problems:
        return None, list(parsed.problems)
    if root is None or (isinstance(root, ScalarNode) and root.value is None):
        message, hint = "the file is empty", "`aish init` writes a first pipeline"
        return None, [Problem(Position(file, 1, 1), "", message, hint)]
    kind = "a list" if isinstance(root, ListNode) else "a single value"
    return None, [Problem(root.position, "", f"a mapping is expected here, and this is {kind}")]


@slotted
class _Reader:
    """Reads each file once, however many name it."""

    problems: list[Problem] = field(default_factory=list)
    known: dict[str, MappingNode | None] = field(default_factory=dict)

    def read(self, path: Path, above: tuple[str, ...]) -> MappingNode | None:
        """The tree of a file with its bases.

        Raises:
            UnreadableError: there is no text at `path`.
        """
        key = _identity(path)
        if key in self.known:
            return self.known[key]
        self.known[key] = None
        root, problems = parse_mapping(read_text(path), str(path))
        self.problems += problems
        if root is not None:
            self.known[key] = self._with_bases(root, path, (*above, key))
        return self.known[key]

    def _with_bases(self, root: MappingNode, path: Path, above: tuple[str, ...]) -> MappingNode:
        whole: MappingNode | None = None
        bases, complete = self._bases(root)
        for named, place in bases:
            base = self._base(path.parent / str(named.value), named, place, above)
            if base is None:
                complete = False
            else:
                whole = base if whole is None else merged(whole, base)
        own = MappingNode(root.position, dict(root.entries), dict(root.keys))
        own.entries.pop("extends", None)
        own.keys.pop("extends", None)
        whole = own if whole is None else merged(whole, own)
        if not complete:
            # Whatever is missing may stand in the base that could not be read.
            whole.put(UNREADABLE, BrokenNode(root.position, None), root.position)
        return whole

    def _base(
        self, path: Path, named: ScalarNode, place: str, above: tuple[str, ...]
    ) -> MappingNode | None:
        key = _identity(path)
        if key in above:
            chain = " → ".join(f"`{Path(name).name}`" for name in (*above[above.index(key) :], key))
            self._problem(named, place, f"circular `extends`: {chain}")
            return None
        if len(self.known) >= MAX_FILES:
            self._problem(named, place, f"more than {MAX_FILES} files in one pipeline")
            return None
        try:
            return self.read(path, above)
        except UnreadableError as error:
            if error.problem.position.line > 1 or error.problem.position.column > 1:
                self.problems.append(error.problem)
            else:
                self._problem(named, place, f"the file `{named.value}` {reason(error)}")
            return None

    def _bases(self, root: MappingNode) -> tuple[list[tuple[ScalarNode, str]], bool]:
        """The names under `extends`, with the path of each; and whether all can be read."""
        value = root.entries.get("extends")
        if value is None:
            return [], True
        listed = (
            [(item, at("extends", index)) for index, item in enumerate(value.items)]
            if isinstance(value, ListNode)
            else [(value, "extends")]
        )
        names: list[tuple[ScalarNode, str]] = []
        for node, place in listed:
            if isinstance(node, ScalarNode) and isinstance(node.value, str) and node.value:
                names.append((node, place))
            elif not isinstance(node, BrokenNode):
                self._problem(node, place, "the name of a file is expected here")
        return names, len(names) == len(listed)

    def _problem(self, node: Node, place: str, message: str) -> None:
        self.problems.append(Problem(node.position, place, message))


def merged(below: MappingNode, over: MappingNode) -> MappingNode:
    """Mappings deeply merged; lists and scalars of `over` replace those of `below`."""
    whole = MappingNode(over.position, dict(below.entries), dict(below.keys))
    for key, value in over.entries.items():
        under = below.entries.get(key)
        if isinstance(under, MappingNode) and isinstance(value, MappingNode):
            whole.put(key, merged(under, value), over.keys[key])
        else:
            whole.put(key, value, over.keys[key])
    return whole


def _identity(path: Path) -> str:
    """The same for all names of one file."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return str(path)
