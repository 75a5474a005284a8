"""Inserts items into a list of a YAML file, leaving every other byte unchanged.

Only produces the text. The caller verifies the result: a file may have a layout that is not
supported here.
"""

from collections.abc import Sequence
from typing import Any

from aish.config.yaml_tree import LETTERS, yaml_reader
from aish.core.errors import UsageError

_BLOCKS = frozenset({"|", ">"})
_BY_HAND = "add the rules by hand"


def with_items(text: str, path: tuple[str, str], block: Sequence[str], flow: Sequence[str]) -> str:
    """The text with items at the end of the list at `path`, which is made if it is missing.

    `block` are the items as lines of a block list without indentation, `flow` each as one line.

    Raises:
        UsageError: there is a value other than a list, or no place for one.
    """
    root = yaml_reader().compose(text.translate(LETTERS))
    outer, inner = path
    parent = _value(root, outer)
    if parent is None:
        return _with_key(text, root, (outer, inner), block, flow)
    if parent.id == "scalar" and _is_empty(parent):
        raise UsageError(f"`{outer}` is empty", hint=f"remove the line `{outer}:`, and try again")
    if parent.id != "mapping":
        raise UsageError(f"`{outer}` is not a mapping", hint=_BY_HAND)
    node = _value(parent, inner)
    where = f"{outer}.{inner}"
    if node is None:
        return _with_key(text, parent, (inner,), block, flow)
    if node.id == "scalar" and _is_empty(node):
        raise UsageError(f"`{where}` is empty", hint=f"write `{inner}: []`, and try again")
    if node.id != "sequence":
        raise UsageError(f"`{where}` is not a list", hint=f"make it one, or {_BY_HAND}")
    if node.start_mark.index < parent.start_mark.index or node.anchor is not None:
        raise UsageError(f"`{where}` is shared with another part of the file", hint=_BY_HAND)
    if node.flow_style:
        return _in_flow(text, node, ", ".join(flow))
    return _after_line(text, _end(text, node), _indent(block, node.start_mark.column))


def _with_key(
    text: str, mapping: Any, keys: tuple[str, ...], block: Sequence[str], flow: Sequence[str]
) -> str:
    """The mapping with the list under a new key, or under two nested ones."""
    if mapping.flow_style:
        entry = f"{keys[-1]}: [{', '.join(flow)}]"
        if len(keys) > 1:
            entry = f"{keys[0]}: {{{entry}}}"
        return _in_flow(text, mapping, entry)
    indent = mapping.value[0][0].start_mark.column
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(keys)]
    lines += _indent(block, 2 * len(keys))
    return _after_line(text, _end(text, mapping), _indent(lines, indent))


def _in_flow(text: str, node: Any, entry: str) -> str:
    if not node.value:
        place = node.start_mark.index + 1
        return text[:place] + entry + text[place:]
    place = _end(text, _last(node))
    return f"{text[:place]}, {entry}{text[place:]}"


def _after_line(text: str, place: int, lines: Sequence[str]) -> str:
    """The text with lines inserted below the line of `place`."""
    newline = "\r\n" if "\r\n" in text else "\n"
    end = text.find("\n", place)
    before, after = (text + newline, "") if end < 0 else (text[: end + 1], text[end + 1 :])
    return before + "".join(line + newline for line in lines) + after


def _end(text: str, node: Any) -> int:
    """The end of a value, without the blank lines and comments after it."""
    while node.id != "scalar" and not node.flow_style and node.value:
        node = _last(node)
    end = int(node.end_mark.index)
    return len(text[:end].rstrip()) if node.id == "scalar" and node.style in _BLOCKS else end


def _last(node: Any) -> Any:
    last = node.value[-1]
    return last[1] if isinstance(last, tuple) else last


def _indent(lines: Sequence[str], indent: int) -> list[str]:
    return [" " * indent + line for line in lines]


def _value(mapping: Any, key: str) -> Any:
    return next((value for name, value in mapping.value if name.value == key), None)


def _is_empty(node: Any) -> bool:
    return node.value in {"", "~", "null"} and node.style is None
