"""Loads a `Pipeline` from a path, or reports all problems of the file.

`--set a.b.c=VALUE` replaces one value of the file.
"""

from collections.abc import Sequence
from pathlib import Path

from aish.config.decode import decode
from aish.config.documents import read_with_bases
from aish.config.file_schema import SchemaPlace, pipeline_schema, shape_problems
from aish.config.model import Pipeline
from aish.config.yaml_tree import (
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    at,
    in_file_order,
    join,
    nearest_position,
    parse_yaml,
)
from aish.core.errors import PipelineError, Position, Problem, did_you_mean
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.patterns import lazy_pattern

_SEGMENT = lazy_pattern(
    r"\.?(?P<key>[^.\[\]=\"]+)|\[(?P<index>[0-9]{1,6})\]|\[\"(?P<quoted>[^\"]*)\"\]"
)
OPTION = "--set"


@frozen
class Override:
    """A value and its path in the file."""

    steps: tuple[str | int, ...]
    value: Node
    position: Position


def parse_override(text: str, number: int) -> Override | Problem:
    """The `number`th `--set`, from 1."""
    name, equals, value = text.partition("=")
    position = Position(OPTION, number, 1)
    steps = _steps(name.strip())
    if not equals or not steps:
        hint = "for example --set models.cloud.params.temperature=0"
        return Problem(position, "", f"`{text}` is not PATH=VALUE", hint)
    parsed = parse_yaml(value, OPTION)
    if parsed.problems:
        problem = parsed.problems[0]
        return Problem(position, path_text(steps), f"`{value}`: {problem.message}", problem.hint)
    return Override(steps, _copy_at(parsed.root or ScalarNode(position, None), position), position)


def overridden(root: MappingNode, override: Override, schema: JsonValue) -> MappingNode | Problem:
    """The tree with the value at its path; an invalid path is a problem.

    A missing parent is created if the schema has a key of that name, or allows any.
    """
    try:
        whole = _replace_at(root, override, 0, SchemaPlace(schema, schema))
    except _NowhereError as error:
        return error.problem
    assert isinstance(whole, MappingNode)
    return whole


class _NowhereError(Exception):
    def __init__(self, override: Override, depth: int, message: str, hint: str | None) -> None:
        super().__init__(message)
        path = path_text(override.steps[: depth + 1])
        self.problem = Problem(override.position, path, message, hint)


def _replace_at(node: Node, override: Override, depth: int, shape: SchemaPlace) -> Node:
    """A copy of the nodes along the path: an alias may have put a node in two places."""
    if depth == len(override.steps):
        return override.value
    step = override.steps[depth]
    if isinstance(node, ListNode):
        index = _index(node, step)
        if index is None:
            message = f"no such item among {len(node.items)}"
            raise _NowhereError(override, depth, message, None)
        items = list(node.items)
        items[index] = _replace_at(items[index], override, depth + 1, shape.item())
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
    copy.put(step, _replace_at(inner, override, depth + 1, shape.entry(step)), key)
    return copy


def path_text(steps: Sequence[str | int]) -> str:
    """A path as problems have it."""
    path = ""
    for step in steps:
        path = at(path, step) if isinstance(step, int) else join(path, step)
    return path


def _steps(name: str) -> tuple[str | int, ...]:
    """The parts of a path; empty if it is not a valid path."""
    steps: list[str | int] = []
    place = 0
    while place < len(name):
        match = _SEGMENT.match(name, place)
        if match is None:
            return ()
        if match["index"] is not None:
            steps.append(int(match["index"]))
        else:
            steps.append(match["key"] if match["key"] is not None else match["quoted"])
        place = match.end()
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


def _copy_at(node: Node, position: Position) -> Node:
    """The same value, with the command line as its position."""
    match node:
        case ScalarNode():
            return ScalarNode(position, node.value)
        case ListNode():
            return ListNode(position, [_copy_at(item, position) for item in node.items])
        case MappingNode():
            entries = {key: _copy_at(value, position) for key, value in node.entries.items()}
            return MappingNode(position, entries, dict.fromkeys(entries, position))


@frozen
class Reading:
    """The readable part of a file.

    `pipeline` is set despite problems, so that further ones can be found: broken values are left
    out of it, and listed in its `broken`.
    """

    pipeline: Pipeline | None
    problems: tuple[Problem, ...]


def load_pipeline(path: Path, *, overrides: Sequence[str] = ()) -> Pipeline:
    """The pipeline of a file, merged with its bases and overrides.

    Nothing is resolved and no server is contacted.

    Raises:
        PipelineError: all its problems, in the order of the file.
    """
    reading = read_pipeline(path, overrides=overrides)
    if reading.pipeline is None or reading.problems:
        raise PipelineError(reading.problems)
    return reading.pipeline


def read_pipeline(path: Path, *, overrides: Sequence[str] = ()) -> Reading:
    """The readable part of a file, with its problems."""
    gathered = read_with_bases(path)
    problems = gathered.problems
    if gathered.root is None:
        return Reading(None, in_file_order(problems, str(path)))
    root = _overridden(gathered.root, overrides, problems)
    problems += shape_problems(root)
    pipeline = decode(root, path, overrides, problems, gathered.files)
    return Reading(pipeline, in_file_order(problems, str(path)))


def lookup_position(pipeline: Pipeline, path: str) -> Position:
    """The position of `path`, or of its nearest parent that has one."""
    return nearest_position(pipeline.positions, path, str(pipeline.file))


def _overridden(
    root: MappingNode, overrides: Sequence[str], problems: list[Problem]
) -> MappingNode:
    for number, text in enumerate(overrides, 1):
        override = parse_override(text, number)
        changed = (
            override
            if isinstance(override, Problem)
            else overridden(root, override, pipeline_schema())
        )
        if isinstance(changed, Problem):
            problems.append(changed)
        else:
            root = changed
    return root
