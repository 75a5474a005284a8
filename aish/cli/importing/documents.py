"""Files of other programs as trees with positions: JSON with comments, TOML, YAML."""

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from math import inf
from pathlib import Path
from sys import float_info
from typing import Any

from aish.config.documents import UnreadableError, read_text
from aish.config.yaml_tree import MAX_DEPTH, ListNode, MappingNode, Node, ScalarNode, parse_yaml
from aish.core.errors import PipelineError, Position, Problem

LIMIT = 1024 * 1024

# As VS Code reads its files: comments, and a comma too many.
_SPACE = re.compile(r"(?:[ \t\r\n]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<part>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_DECODER = json.JSONDecoder()
_LONGEST_NUMBER = 1000
_WORD = re.compile(r"[A-Za-z]+")
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TOML_HEADER = re.compile(r"[ \t]*\[\[?(?P<name>[^\]]+)\]")
_TOML_KEY = re.compile(r"""[ \t]*(?P<name>[\w-]+|"[^"]*"|'[^']*')[ \t]*[.=]""")
_TOML_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def read_document(path: Path) -> MappingNode:
    """The mapping that a file holds; its name says in which language.

    Raises:
        PipelineError: it cannot be read, or holds something else; says where.
    """
    try:
        text = read_text(path, LIMIT)
    except UnreadableError as error:
        raise PipelineError((error.problem,)) from error
    file = str(path)
    match path.suffix.lower():
        case ".toml":
            root = _toml(text, file)
        case ".json" | ".jsonc" | ".code-workspace":
            root = _Json(text, file).document()
        case _:
            root = _yaml(text, file)
    if not isinstance(root, MappingNode):
        raise _wrong(root.position, "a mapping is expected here", None)
    return root


def read_data(path: Path) -> Node:
    """What a file beside it holds, of any shape; JSON or YAML.

    Raises:
        PipelineError: it cannot be read; says where.
    """
    try:
        text = read_text(path, LIMIT)
    except UnreadableError as error:
        raise PipelineError((error.problem,)) from error
    if path.suffix.lower() == ".json":
        return _Json(text, str(path)).document()
    return _yaml(text, str(path))


def _yaml(text: str, file: str) -> Node:
    parsed = parse_yaml(text, file)
    if parsed.problems:
        raise PipelineError(parsed.problems)
    if parsed.root is None:
        raise _wrong(Position(file, 1, 1), "the file is empty", None)
    return parsed.root


def _toml(text: str, file: str) -> Node:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        found = _TOML_PLACE.search(said)
        end = text.count("\n") + 1
        line, column = map(int, found.groups()) if found and found[1] else (end, 1)
        message = f"not TOML: {_TOML_PLACE.sub('', said)}"
        raise _wrong(Position(file, line, column), message, None) from error
    except RecursionError as error:
        raise _wrong(Position(file, 1, 1), "nested too deeply", None) from error
    except ValueError as error:
        raise _wrong(Position(file, 1, 1), "a number is too large", None) from error
    places = dict(_toml_places(text, file))
    return _of_toml(data, (), Position(file, 1, 1), places)


def _toml_places(text: str, file: str) -> Iterator[tuple[tuple[str, ...], Position]]:
    """Where tables and keys stand; the library does not say."""
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
    value: Any,
    path: tuple[str, ...],
    above: Position,
    places: dict[tuple[str, ...], Position],
) -> Node:
    position = places.get(path, above)
    if isinstance(value, dict):
        made = MappingNode(position)
        for key, inner in value.items():
            place = (*path, key)
            node = _of_toml(inner, place, position, places)
            made.put(key, node, places.get(place, position))
        return made
    if isinstance(value, list):
        return ListNode(position, [_of_toml(one, path, position, places) for one in value])
    if isinstance(value, int | float) and not abs(value) <= float_info.max:
        raise _wrong(position, "a number is too large, or none", None)
    # Dates and times are texts wherever we have a use for them.
    plain = value if isinstance(value, bool | int | float | str) else str(value)
    return ScalarNode(position, plain)


class _Json:
    """JSON as people keep it in files, with the place of each value."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._lines = [0, *(found.end() for found in re.finditer(r"\n", text))]
        self._at = 0

    def document(self) -> Node:
        """The whole text.

        Raises:
            PipelineError: it is no JSON; says where.
        """
        self._skip()
        if self._at == len(self._text):
            raise self._fail("the file is empty")
        node = self._value(0)
        self._skip()
        if self._at < len(self._text):
            raise self._fail("not JSON: something follows the end of the document")
        return node

    def _value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._fail(f"nested more than {MAX_DEPTH} deep")
        position, sign = self._position(self._at), self._text[self._at : self._at + 1]
        if sign == "{":
            return self._mapping(MappingNode(position), depth)
        if sign == "[":
            return self._list(ListNode(position), depth)
        if sign == '"':
            return ScalarNode(position, self._string())
        if (word := _WORD.match(self._text, self._at)) and word[0] in _WORDS:
            self._at = word.end()
            return ScalarNode(position, _WORDS[word[0]])
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            real = number["part"] or number["power"]
            return ScalarNode(position, self._number(number[0], float if real else int))
        raise self._fail("not JSON: a value is expected here")

    def _number(self, digits: str, kind: type[int] | type[float]) -> int | float:
        # More digits than the interpreter takes are more than a float has, too.
        found = inf if kind is int and len(digits) > _LONGEST_NUMBER else kind(digits)
        if not abs(found) <= float_info.max:
            raise self._fail(f"`{digits[:20]}` is too large a number")
        return found

    def _mapping(self, made: MappingNode, depth: int) -> MappingNode:
        for place in self._parts("}"):
            if self._text[place : place + 1] != '"':
                raise self._fail("not JSON: a key in double quotes is expected here")
            position, key = self._position(place), self._string()
            self._expect(":")
            if key in made.entries:
                line = made.keys[key].line
                raise _wrong(position, f"duplicate key `{key}`, first in line {line}", None)
            made.put(key, self._value(depth + 1), position)
        return made

    def _list(self, made: ListNode, depth: int) -> ListNode:
        made.items.extend(self._value(depth + 1) for _ in self._parts("]"))
        return made

    def _parts(self, end: str) -> Iterator[int]:
        """Where each part of a collection begins; leaves its end behind."""
        opened = self._at
        self._at += 1
        while True:
            self._skip()
            if self._text.startswith(end, self._at):
                break
            if self._at == len(self._text):
                raise self._fail(f"not JSON: `{self._text[opened]}` is never closed", opened)
            yield self._at
            self._skip()
            if not self._text.startswith((",", end), self._at) and self._at < len(self._text):
                raise self._fail(f"not JSON: `,` or `{end}` is expected here")
            self._at += self._text.startswith(",", self._at)
        self._at += 1

    def _expect(self, sign: str) -> None:
        self._skip()
        if not self._text.startswith(sign, self._at):
            raise self._fail(f"not JSON: `{sign}` is expected here")
        self._at += 1
        self._skip()

    def _string(self) -> str:
        try:
            # The decoder takes a text that begins here, and leaves what follows alone.
            text, self._at = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            raise self._fail(f"not JSON: {error.msg}", error.pos) from error
        assert isinstance(text, str)
        return text

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _position(self, offset: int) -> Position:
        line = bisect_right(self._lines, offset)
        return Position(self._file, line, offset - self._lines[line - 1] + 1)

    def _fail(self, message: str, offset: int | None = None) -> PipelineError:
        place = self._position(self._at if offset is None else offset)
        return _wrong(place, message, None)


def _wrong(position: Position, message: str, hint: str | None) -> PipelineError:
    return PipelineError((Problem(position, "", message, hint),))
