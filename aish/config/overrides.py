"""`--set a.b.c=VALUE`: one value of the file replaced from the command line (F9)."""

import re
from collections.abc import Sequence

from aish.config.file_schema import SchemaPlace
from aish.config.yaml_tree import ListNode, MappingNode, Node, ScalarNode, at, join, parse_yaml
from aish.core.errors import Position, Problem, did_you_mean
from aish.core.frozen import frozen
from aish.core.json import JsonValue

_SEGMENT = re.compile(
    r"\.?(?P<key>[^.\[\]=\"]+)|\[(?P<index>[0-9]{1,6})\]|\[\"(?P<quoted>[^\"]*)\"\]"
)
OPTION = "--set"


@frozen
class Override:
    """One value and where it goes."""

    steps: tuple[str | int, ...]
    value: Node
    position: Position


def parse_override(text: str, number: int) -> Override | Problem:
    """The `number`th `--set`, from 1."""
    name, equals, given = text.partition("=")
    position = Position(OPTION, number, 1)
    steps = _steps(name.strip())
    if not equals or not steps:
        hint = "for example --set models.cloud.params.temperature=0"
        return Problem(position, "", f"`{text}` is not PATH=VALUE", hint)
    parsed = parse_yaml(given, OPTION)
    if parsed.problems:
        found = parsed.problems[0]
        return Problem(position, spelled(steps), f"`{given}`: {found.message}", found.hint)
    return Override(steps, _moved(parsed.root or ScalarNode(position, None), position), position)


def overridden(root: MappingNode, override: Override, schema: JsonValue) -> MappingNode | Problem:
    """The tree with the value where its path leads; a path that leads nowhere is a problem.

    What the file does not have yet is made where the schema has a key of that name, or takes any.
    """
    try:
        whole = _replaced(root, override, 0, SchemaPlace(schema, schema))
    except _NowhereError as error:
        return error.problem
    assert isinstance(whole, MappingNode)
    return whole


class _NowhereError(Exception):
    """The path does not lead anywhere."""

    def __init__(self, override: Override, depth: int, message: str, hint: str | None) -> None:
        super().__init__(message)
        path = spelled(override.steps[: depth + 1])
        self.problem = Problem(override.position, path, message, hint)


def _replaced(node: Node, override: Override, depth: int, shape: SchemaPlace) -> Node:
    """A copy of what the path passes through: an alias may have put a node in two places."""
    if depth == len(override.steps):
        return override.value
    step = override.steps[depth]
    if isinstance(node, ListNode):
        index = _index(node, step)
        if index is None:
            message = f"no such item among {len(node.items)}"
            raise _NowhereError(override, depth, message, None)
        items = list(node.items)
        items[index] = _replaced(items[index], override, depth + 1, shape.item())
        return ListNode(node.position, items)
    if not isinstance(node, MappingNode) or not isinstance(step, str):
        raise _NowhereError(override, depth, "the path continues below a single value", None)
    last = depth == len(override.steps) - 1
    if step not in node.entries and not shape.takes(step, last=last):
        hint = did_you_mean(step, [*node.entries, *shape.names()])
        raise _NowhereError(override, depth, f"no key `{step}` here", hint)
    copy = MappingNode(node.position, dict(node.entries), dict(node.keys))
    inner = node.entries.get(step) or MappingNode(override.position)
    key = override.position if last else node.keys.get(step, override.position)
    copy.put(step, _replaced(inner, override, depth + 1, shape.entry(step)), key)
    return copy


def spelled(steps: Sequence[str | int]) -> str:
    """A path as messages have it."""
    path = ""
    for step in steps:
        path = at(path, step) if isinstance(step, int) else join(path, step)
    return path


def _steps(name: str) -> tuple[str | int, ...]:
    """The parts of a path; empty where it is none."""
    steps: list[str | int] = []
    place = 0
    while place < len(name):
        found = _SEGMENT.match(name, place)
        if found is None:
            return ()
        if found["index"] is not None:
            steps.append(int(found["index"]))
        else:
            steps.append(found["key"] if found["key"] is not None else found["quoted"])
        place = found.end()
    return tuple(steps)


def _index(node: ListNode, step: str | int) -> int | None:
    """An item by its number, or by its `id` or `name`."""
    if isinstance(step, int):
        return step if step < len(node.items) else None
    for index, item in enumerate(node.items):
        if isinstance(item, MappingNode):
            name = item.entries.get("id") or item.entries.get("name")
            if isinstance(name, ScalarNode) and name.value == step:
                return index
    return None


def _moved(node: Node, position: Position) -> Node:
    """The same value, standing on the command line."""
    match node:
        case ScalarNode():
            return ScalarNode(position, node.value)
        case ListNode():
            return ListNode(position, [_moved(item, position) for item in node.items])
        case MappingNode():
            entries = {key: _moved(value, position) for key, value in node.entries.items()}
            return MappingNode(position, entries, dict.fromkeys(entries, position))
