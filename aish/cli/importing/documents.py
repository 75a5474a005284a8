"""Files of other programs as trees with positions: JSON with comments, TOML, YAML."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from sys import float_info
from typing import Any

from aish.config.documents import UnreadableError, read_text
from aish.config.yaml_tree import MAX_DEPTH, ListNode, MappingNode, Node, ScalarNode, parse_yaml
from aish.core.errors import PipelineError, Position, Problem

LIMIT = 1024 * 1024

# As VS Code reads its files: comments, and a comma too many.
_COMMENT = r"//[^\n]*+|/\*(?:.*?\*/|.*+)"
_EXTRA = re.compile(
    rf'(?P<string>"(?:[^"\\\n]|\\.)*+"?)|{_COMMENT}|\t|,(?=(?:\s|{_COMMENT})*+[}}\]])', re.DOTALL
)
_LONGEST_NUMBER = 1000
_NOT_YAML = re.compile(r"[\x7f-\xa0\u2028\u2029\ufeff]")
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TOML_HEADER = re.compile(r"[ \t]*\[\[?(?P<name>[^\]]+)\]")
_TOML_KEY = re.compile(r"""[ \t]*(?P<name>[\w-]+|"[^"]*"|'[^']*')[ \t]*[.=]""")
_TOML_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def read_document(path: Path) -> MappingNode:
    """The mapping that a file holds; its name says in which language.

    Raises:
        PipelineError: it cannot be read, or holds something else; says where.
    """
    text = _read(path)
    file = str(path)
    match path.suffix.lower():
        case ".toml":
            root = _toml(text, file)
        case ".json" | ".jsonc" | ".code-workspace":
            root = _json(text, file)
        case _:
            root = _yaml(text, file)
    if not isinstance(root, MappingNode):
        raise _wrong(root.position, "a mapping is expected here")
    return root


def read_data(path: Path) -> Node:
    """The data of a file beside it, of any shape: JSON, lines of JSON, or YAML.

    Raises:
        PipelineError: it cannot be read; says where.
    """
    text = _read(path)
    if path.suffix.lower() == ".jsonl":
        rows = [f"{row}," if row.strip() else row for row in text.split("\n")]
        return _json("[" + "\n".join(rows) + "]", str(path))
    if path.suffix.lower() == ".json":
        return _json(text, str(path))
    return _yaml(text, str(path))


def _read(path: Path) -> str:
    try:
        return read_text(path, LIMIT)
    except UnreadableError as error:
        raise PipelineError((error.problem,)) from error


def _yaml(text: str, file: str) -> Node:
    parsed = parse_yaml(text, file)
    if parsed.problems:
        raise PipelineError(parsed.problems)
    if parsed.root is None:
        raise _wrong(Position(file, 1, 1), "the file is empty")
    return parsed.root


def _toml(text: str, file: str) -> Node:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message_text = str(error)
        match = _TOML_PLACE.search(message_text)
        end = text.count("\n") + 1
        line, column = map(int, match.groups()) if match and match[1] else (end, 1)
        message = f"not TOML: {_TOML_PLACE.sub('', message_text)}"
        raise _wrong(Position(file, line, column), message) from error
    except RecursionError as error:
        raise _wrong(Position(file, 1, 1), "nested too deeply") from error
    except ValueError as error:
        raise _wrong(Position(file, 1, 1), "a number is too large") from error
    places = dict(_toml_places(text, file))
    return _of_toml(data, (), Position(file, 1, 1), places)


def _toml_places(text: str, file: str) -> Iterator[tuple[tuple[str, ...], Position]]:
    """Yield the positions of tables and keys, which the library does not report."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TOML_HEADER.match(line):
            table = tuple(part.strip("\"'") for part in _TOML_PART.findall(header["name"]))
            column = len(line) - len(line.lstrip()) + 1
            for length in range(1, len(table) + 1):
                yield table[:length], Position(file, number, column)
        elif key := _TOML_KEY.match(line):
            place = (*table, key["name"].strip("\"'"))
            yield place, Position(file, number, key.start("name") + 1)


def _of_toml(
    value: Any, path: tuple[str, ...], above: Position, places: dict[tuple[str, ...], Position]
) -> Node:
    position = places.get(path, above)
    if isinstance(value, dict):
        mapping = MappingNode(position)
        for key, inner in value.items():
            place = (*path, key)
            node = _of_toml(inner, place, position, places)
            mapping.put(key, node, places.get(place, position))
        return mapping
    if isinstance(value, list):
        return ListNode(position, [_of_toml(item, path, position, places) for item in value])
    if isinstance(value, int | float) and not abs(value) <= float_info.max:
        raise _wrong(position, "a number is too large, or none")
    # Dates and times are texts wherever we have a use for them.
    plain = value if isinstance(value, bool | int | float | str) else str(value)
    return ScalarNode(position, plain)


def _json(text: str, file: str) -> Node:
    """JSON as people keep it; once that is known, YAML reads it with the place of each value."""
    plain = _EXTRA.sub(_plain, text)
    if not plain.strip():
        raise _wrong(Position(file, 1, 1), "the file is empty")
    try:
        json.loads(plain, parse_int=_digits, parse_float=_digits, parse_constant=_digits)
    except json.JSONDecodeError as error:
        place = Position(file, error.lineno, error.colno)
        raise _wrong(place, f"not JSON: {error.msg[0].lower()}{error.msg[1:]}") from error
    except RecursionError as error:
        raise _wrong(Position(file, 1, 1), f"nested more than {MAX_DEPTH} deep") from error
    except ValueError as error:
        raise _wrong(Position(file, 1, 1), f"not JSON: {error}") from error
    return _yaml(plain, file)


def _plain(match: re.Match[str]) -> str:
    """A string in characters that YAML leaves as they are; spaces for what JSON does not have."""
    if match["string"] is not None:
        return _NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", match[0])
    return re.sub(r"[^\n]", " ", match[0])


def _digits(word: str) -> str:
    if len(word) > _LONGEST_NUMBER or word.endswith(("NaN", "Infinity")):
        raise ValueError(f"`{word[:20]}` is too large a number, or none")
    return word


def _wrong(position: Position, message: str) -> PipelineError:
    return PipelineError((Problem(position, "", message),))
