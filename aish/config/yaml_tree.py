"""Parses YAML 1.2 into a tree of plain values with positions, from parser events.

Only the core schema of plain scalars; errors of the scanner become clear messages.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from aish.core.errors import Position, Problem
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.core.patterns import lazy_pattern
from aish.system.secrets.literal_keys import without_keys

_PLAIN_KEY = lazy_pattern(r"[A-Za-z_$][\w$-]*\Z", re.ASCII)


@frozen
class ScalarNode:
    """Text, a number, true, false or null."""

    position: Position
    value: bool | int | float | str | None


class BrokenNode(ScalarNode):
    """A placeholder for a value that could not be read, or is missing; its problem is reported.

    It is read as null. Problems that follow from it are not reported.
    """


@slotted
class ListNode:
    """A list; filled while it is read, unchanged afterwards."""

    position: Position
    items: list["Node"] = field(default_factory=list)


@slotted
class MappingNode:
    """A mapping; `keys` holds the position of each key."""

    position: Position
    entries: dict[str, "Node"] = field(default_factory=dict)
    keys: dict[str, Position] = field(default_factory=dict)

    def put(self, key: str, value: "Node", position: Position) -> None:
        self.entries[key] = value
        self.keys[key] = position


Node = ScalarNode | ListNode | MappingNode


def join(path: str, key: str) -> str:
    """The path of an entry of the mapping at `path`."""
    if not _PLAIN_KEY.match(key):
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def at(path: str, index: int) -> str:
    return f"{path}[{index}]"


def texts_with_paths(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    """Every text in a value at `path`, after its own path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts_with_paths(inner, join(path, key))
    elif isinstance(value, Sequence):
        for index, inner in enumerate(value):
            yield from texts_with_paths(inner, at(path, index))


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
    """Return true if all keys of a mapping could be read."""
    return UNREADABLE not in node.entries


def paths_of_broken_nodes(node: Node, path: str = "") -> Iterator[str]:
    match node:
        case BrokenNode():
            yield path
        case ListNode():
            for index, item in enumerate(node.items):
                yield from paths_of_broken_nodes(item, at(path, index))
        case MappingNode():
            for key, value in node.entries.items():
                yield from paths_of_broken_nodes(value, join(path, key))
        case ScalarNode():
            return


def positions_of(root: MappingNode) -> dict[str, Position]:
    """The position of each key and each item, by its path."""
    return dict(_positions(root, ""))


def _positions(node: Node, path: str) -> Iterator[tuple[str, Position]]:
    match node:
        case MappingNode():
            for key, value in node.entries.items():
                place = join(path, key)
                yield place, _position_of(value, node.keys[key])
                yield from _positions(value, place)
        case ListNode():
            for index, item in enumerate(node.items):
                place = at(path, index)
                yield place, item.position
                yield from _positions(item, place)
        case ScalarNode():
            return


def _position_of(value: Node, key: Position) -> Position:
    """The position of a value on its key's line, else of the key."""
    there = value.position
    return there if there.file == key.file and there.line == key.line else key


def nearest_position(positions: Mapping[str, Position], path: str, file: str) -> Position:
    """The position of `path`, or of its nearest parent that has one."""
    while path:
        if path in positions:
            return positions[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return Position(file, 1, 1)


def in_file_order(problems: Iterable[Problem], first: str = "") -> tuple[Problem, ...]:
    """Problems in the order of their files, `first` before the other files, without duplicates.

    What looks like a key is in none of them.
    """
    in_order = list(dict.fromkeys(map(_without_keys, problems)))
    files = dict.fromkeys((first, *(problem.position.file for problem in in_order)))
    number = {file: index for index, file in enumerate(files)}
    return tuple(
        sorted(
            in_order,
            key=lambda problem: (
                number[problem.position.file],
                problem.position.line,
                problem.position.column,
            ),
        )
    )


def _without_keys(problem: Problem) -> Problem:
    hint = None if problem.hint is None else without_keys(problem.hint)
    message, path = without_keys(problem.message), without_keys(problem.path)
    return replace(problem, path=path, message=message, hint=hint)


_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INTEGER = lazy_pattern(r"[-+]?[0-9]+\Z")
_OCTAL = lazy_pattern(r"0o[0-7]+\Z")
_HEXADECIMAL = lazy_pattern(r"0x[0-9a-fA-F]+\Z")
_FLOAT = lazy_pattern(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = lazy_pattern(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_LONGEST_NUMBER = 300
_LONGEST_BITS = 1000
"""Of a whole number in base 8 or 16: a float can be as large."""


def plain_value(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar.

    Raises:
        ValueError: a number that JSON cannot write, or a very long one.
    """
    if text in _NULLS:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text[0] in "+-.0123456789":
        return _number(text)
    return text


def _number(text: str) -> int | float | str:
    if _NOT_FINITE.match(text):
        raise ValueError(f"`{text}` is not a JSON number")
    if not (_FLOAT.match(text) or _OCTAL.match(text) or _HEXADECIMAL.match(text)):
        return text
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} characters")
    if _INTEGER.match(text):
        return int(text)
    if text.startswith(("0o", "0x")):
        value = int(text, 0)
        if value.bit_length() > _LONGEST_BITS:
            raise ValueError(f"a number of {len(text)} characters")
        return value
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"`{text}` is too large a number")
    return number


_TEMPLATE = lazy_pattern(r"(?<![\"'{])\{[{%#]")
_QUOTE = 'put quotes around the whole value: `key: "{{ … }}"`'
_UNQUOTED = "an unquoted `"
_CLOSE = lazy_pattern(r"[}%]\}")
_BAD_START = lazy_pattern(r"found character '?(.+?)'? that cannot start any token")
_LINE_END = lazy_pattern(r"\r\n?|\n")
_START = lazy_pattern(r"[ \t]*(?:[-?:][ \t]+)*")
_TAB_AS_INDENT = "a tab: YAML is indented with spaces"
# Beginnings of the scanner's own messages, and their replacements.
_WORDS: tuple[tuple[str, str, str | None], ...] = (
    (
        "mapping values are not allowed here",
        "a `: ` where no key can be",
        "quote text that holds `: `, and check the indentation",
    ),
    ("expected <block end>", "unexpected content", "check the indentation"),
    ("found unexpected end of stream", "a quote is opened here and never closed", None),
    ("expected ',' or ']'", "a `[` is never closed, or a comma is missing", None),
    ("expected ',' or '}'", "a `{` is never closed, or a comma is missing", None),
    (
        "could not find expected ':'",
        "a key without `:`",
        "write `KEY: VALUE`, with a space after the colon",
    ),
    ("expected '<document start>'", "unexpected content", "check the indentation"),
    (
        "an empty line is indented",
        "an empty line is indented more than the text below it",
        "remove the spaces of the empty line",
    ),
)


def syntax_problem(error: Exception, text: str, file: str) -> Problem:
    """Describe an error of the YAML library."""
    line, column = _place(error, text)
    position = Position(file, line + 1, column + 1)
    lines = _LINE_END.split(text)
    there = lines[line] if line < len(lines) else ""
    start = _START.match(there)
    indent = "" if start is None else start[0]
    column = indent.find("\t") if "\t" in indent else column
    if there[column : column + 1] == "\t":
        message = _TAB_AS_INDENT if column < len(indent) else "a tab: YAML allows only spaces here"
        return Problem(Position(file, line + 1, column + 1), "", message, hint="use spaces")
    brace = _find_unquoted_template(there, column)
    if brace is not None:
        where, opening = brace
        return template_problem(Position(file, line + 1, where + 1), opening)
    return Problem(position, "", *_in_words(error, there, column))


def template_problem(position: Position, opening: str = "{{") -> Problem:
    return Problem(position, "", f"{_UNQUOTED}{opening}`: YAML reads a mapping here", _QUOTE)


def without_template(text: str, problem: Problem) -> str | None:
    """The text with null for an unquoted template; `None` if no template is the cause."""
    if not problem.message.startswith(_UNQUOTED):
        return None
    lines = text.splitlines(keepends=True)
    line, column = problem.position.line - 1, problem.position.column - 1
    if line >= len(lines) or lines[line][column : column + 1] != "{":
        return None  # the library counts lines in its own way
    ending = lines[line][len(lines[line].rstrip("\r\n")) :]
    before, rest = lines[line][:column], lines[line][column:]
    close = _CLOSE.search(rest)
    after = ending if close is None else rest[close.end() :]
    if before.rstrip()[-1:] not in {"", ":", "-", "[", ",", "{", "?"}:
        return None  # within a longer text, whose end is not known
    lines[line] = f"{before}~{after}"
    return "".join(lines)


def _find_unquoted_template(line: str, column: int) -> tuple[int, str] | None:
    """An unquoted template that begins on this line, not after the place of the error."""
    match = _TEMPLATE.search(line.split(" #", maxsplit=1)[0])
    if match is None or match.start() > column or match[0] == "{#":
        return None
    if match[0] == "{%" and column > match.start() + 1:
        return None
    return match.start(), match[0]


def _place(error: Any, text: str) -> tuple[int, int]:
    """Line and column from 0; a reader's error has an offset, others may have no position."""
    message = str(getattr(error, "problem", ""))
    # Where it begins, and not where the end or the colon was expected.
    opened = "unexpected end of stream" in message or "could not find expected ':'" in message
    marks = [getattr(error, "context_mark", None), getattr(error, "problem_mark", None)]
    mark = next((m for m in (marks if opened else reversed(marks)) if m is not None), None)
    if mark is not None:
        return mark.line, mark.column
    offset = getattr(error, "position", None)
    if isinstance(offset, int):
        before = text[:offset]
        return before.count("\n"), offset - (before.rfind("\n") + 1)
    return 0, 0


def _in_words(error: Any, line: str, column: int) -> tuple[str, str | None]:
    """The message and the hint."""
    character = getattr(error, "character", None)
    if character is not None:
        code = character if isinstance(character, int) else ord(character)
        return f"the control character U+{code:04X} is not allowed in YAML", None
    said = str(getattr(error, "problem", None) or "")
    bad = _BAD_START.match(said)
    if bad:
        sign = line[column : column + 1]
        return f"text cannot begin with `{sign}`", "put quotes around it"
    for beginning, message, hint in _WORDS:
        if said.startswith(beginning):
            return message, hint
    said = said or next(iter(str(error).splitlines()), "unreadable")
    return f"not YAML: {said}", None


MAX_DEPTH = 64
MAX_NODES = 200_000
MAX_ALIASED = 10_000
MAX_REPAIRS = 20


@frozen
class Parsed:
    """The result of parsing; `root` is `None` if nothing could be read.

    Single invalid values are `BrokenNode`s in it.
    """

    root: Node | None
    problems: tuple[Problem, ...]


def parse_yaml(text: str, file: str) -> Parsed:
    """The one document of `text`; never raises for invalid text."""
    templates: dict[Position, Problem] = {}
    while True:
        builder = _Builder(text, file, repaired=frozenset(templates))
        try:
            for event in _events(text):
                builder.take(event)
        except _StopReading:
            builder.root = None
        except Exception as error:  # ruff: ignore[blind-except] - the YAML library raises unexpected errors on invalid text
            problem = syntax_problem(error, text, file)
            repaired = None
            if len(templates) < MAX_REPAIRS and problem.position not in templates:
                repaired = without_template(text, problem)
            if repaired is not None:
                # The most common mistake: the rest of the file can be read without it.
                templates[problem.position], text = problem, repaired
                continue
            builder.fail(problem)
        return builder.build(tuple(templates.values()))


# To YAML 1.2 these are letters; the library ends lines with them.
LETTERS = {0x85: 0x10FFFB, 0x2028: 0x10FFFC, 0x2029: 0x10FFFD}
"""For `str.translate`: what the library reads has characters of private use in their places."""
_SEPARATORS = {letter: separator for separator, letter in LETTERS.items()}


def yaml_reader() -> Any:
    """The library's reader, held to YAML 1.2."""
    from ruamel.yaml import YAML

    from aish.config.yaml_scanner import PipelineScanner

    reader = YAML(typ="safe", pure=True)
    reader.Scanner = PipelineScanner
    return reader


def _events(text: str) -> Iterator[Any]:
    for event in yaml_reader().parse(text.translate(LETTERS)):
        if type(event).__name__ == "ScalarEvent":
            event.value = event.value.translate(_SEPARATORS)
        yield event


class _StopReading(Exception):  # ruff: ignore[error-suffix-on-exception-name] - a signal, never seen outside
    """Reading more of this file would only cost time."""


@slotted
class _Open:
    node: ListNode | MappingNode
    anchor: str | None
    before: int
    key: str | None = None
    key_position: Position | None = None
    skip: bool = False
    height: int = 1
    broken: bool = False


@slotted
class _Builder:
    text: str
    file: str
    stack: list[_Open] = field(default_factory=list)
    root: Node | None = None
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, tuple[Node, int, int]] = field(default_factory=dict)
    open_anchors: set[str] = field(default_factory=set)
    repaired: frozenset[Position] = frozenset()
    documents: int = 0
    nodes: int = 0
    aliased: int = 0

    def take(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "ScalarEvent":
            self._scalar(event)
        elif kind == "MappingStartEvent":
            self._start(event, MappingNode(self._position(event)))
        elif kind == "SequenceStartEvent":
            self._start(event, ListNode(self._position(event)))
        elif kind in {"MappingEndEvent", "SequenceEndEvent"}:
            self._end()
        elif kind == "AliasEvent":
            self._alias(event)
        elif kind == "DocumentStartEvent":
            self._document(event)

    def fail(self, problem: Problem) -> None:
        """Report a parser error; an unquoted template on that line explains it."""
        known = (*self.repaired, *(one.position for one in self.problems))
        if problem.position.line not in {position.line for position in known}:
            self.problems.append(problem)
        self.root = None

    def build(self, templates: tuple[Problem, ...]) -> Parsed:
        """The result; `templates` are problems that were found before."""
        return Parsed(self.root, (*templates, *self.problems))

    def _position(self, event: Any) -> Position:
        mark = event.start_mark
        return Position(self.file, mark.line + 1, mark.column + 1)

    def _problem(self, event: Any, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(self._position(event), "", message, hint))

    def _document(self, event: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            self._problem(event, "a second document: a file holds one")
            raise _StopReading
        if event.version is not None and tuple(event.version) != (1, 2):
            version = ".".join(map(str, event.version))
            self._problem(event, f"YAML {version} is not supported, only YAML 1.2")
        if event.tags:
            self._problem(event, "YAML tags are not allowed", "remove the `%TAG` line")

    def _count(self, event: Any) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._problem(event, f"more than {MAX_NODES} values in one file")
            raise _StopReading

    def _has_tag(self, event: Any) -> bool:
        if event.ctag is None:
            return False
        tag = self.text[event.start_mark.index :].split(maxsplit=1)[0][:40]
        self._problem(event, f"the YAML tag in `{tag}`: tags are not allowed", "remove it")
        return True

    def _scalar(self, event: Any) -> None:
        self._count(event)
        broken = self._has_tag(event)
        quoted = event.style is not None and not event.value.isascii()
        lacks_half = quoted and not self._join_halves(event)
        if self._wants_key():
            self._key(event)
            if lacks_half:
                _unreadable(self.stack[-1])
            return
        plain = bool(event.implicit[0]) if event.style is None else False
        value: bool | int | float | str | None = event.value
        if plain:
            try:
                value = plain_value(event.value)
            except ValueError as error:
                self._problem(event, str(error), "put quotes around it if it is text")
                broken = True
        position = self._position(event)
        node = ScalarNode(position, value)
        if broken or lacks_half or position in self.repaired:
            node = BrokenNode(position, None)
        if event.anchor is not None:
            self.anchors[event.anchor] = (node, 1, 0)
        self._place(node, 0)

    def _join_halves(self, event: Any) -> bool:
        """Put together what JSON escapes as two surrogates; false if one has no other half."""
        try:
            event.value = event.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            self._problem(event, "half of a surrogate pair", "write both halves, or the character")
            return False
        return True

    def _wants_key(self) -> bool:
        return bool(
            self.stack
            and isinstance(self.stack[-1].node, MappingNode)
            and self.stack[-1].key_position is None
        )

    def _key(self, event: Any) -> None:
        top = self.stack[-1]
        assert isinstance(top.node, MappingNode)
        top.key_position = self._position(event)
        top.key = event.value
        if event.anchor is not None:
            self._problem(event, "an anchor on a key", "anchor the value")
        if event.value == "<<" and event.style is None:
            self._problem(event, "a `<<` merge key", "use `extends`, or write the keys out")
            _unreadable(top)
        elif not event.value and event.style is None:
            self._problem(event, "a key that is empty")
            _unreadable(top)
        elif top.key_position in self.repaired:
            _unreadable(top)
        elif event.value in top.node.entries:
            first = top.node.keys[event.value]
            self._problem(event, f"duplicate key `{event.value}`, first in line {first.line}")
            top.skip = True

    def _start(self, event: Any, node: ListNode | MappingNode) -> None:
        self._count(event)
        broken = self._has_tag(event)
        index = event.start_mark.index
        if self.stack and self.stack[-1].skip:
            pass  # the discarded value has been reported as a whole
        elif self.text[index - 1 : index + 1] == "{{" and isinstance(node, MappingNode):
            outer = Position(self.file, node.position.line, node.position.column - 1)
            self.problems.append(template_problem(outer))
            self.stack[-1].broken = True
        elif self._wants_key():
            self._problem(event, "a key has to be text")
        if self._wants_key():
            # The collection is a key: it is read to its end and discarded.
            self.stack[-1].key_position = node.position
            self.stack[-1].key = None
            self.stack.append(_Open(node, None, self.nodes, skip=True))
        else:
            self.stack.append(_Open(node, event.anchor, self.nodes, broken=broken))
        if event.anchor is not None:
            self.open_anchors.add(event.anchor)
        if len(self.stack) > MAX_DEPTH:
            self._problem(event, f"nested more than {MAX_DEPTH} deep")
            raise _StopReading

    def _end(self) -> None:
        done = self.stack.pop()
        read: Node = BrokenNode(done.node.position, None) if done.broken else done.node
        if done.anchor is not None:
            self.anchors[done.anchor] = (read, self.nodes - done.before + 1, done.height)
            self.open_anchors.discard(done.anchor)
        top = self.stack[-1] if self.stack else None
        if (
            top is not None
            and isinstance(top.node, MappingNode)
            and top.key is None
            and top.key_position == done.node.position
        ):
            top.key = ""
            _unreadable(top)
            return
        self._place(read, done.height)

    def _alias(self, event: Any) -> None:
        if self._wants_key():
            self._problem(event, "an alias as a key")
            self.stack[-1].key = ""
            self.stack[-1].key_position = self._position(event)
            _unreadable(self.stack[-1])
            return
        name = event.anchor
        if name in self.open_anchors:
            self._problem(event, f"the alias `*{name}` refers to itself")
            raise _StopReading
        if name not in self.anchors:
            self._problem(event, f"the alias `*{name}` is not defined")
            self._place(BrokenNode(self._position(event), None), 0)
            return
        node, size, height = self.anchors[name]
        self.aliased += size
        self.nodes += size
        if self.aliased > MAX_ALIASED:
            self._problem(event, f"aliases that expand to more than {MAX_ALIASED} values")
            raise _StopReading
        if len(self.stack) + height > MAX_DEPTH:
            self._problem(event, f"nested more than {MAX_DEPTH} deep by an alias")
            raise _StopReading
        self._place(node, height)

    def _place(self, node: Node, height: int) -> None:
        """Add a finished node to its parent."""
        if not self.stack:
            self.root = node
            return
        top = self.stack[-1]
        top.height = max(top.height, height + 1)
        if isinstance(top.node, ListNode):
            top.node.items.append(node)
            return
        if not top.skip and top.key is not None and top.key_position is not None:
            top.node.put(top.key, node, top.key_position)
        top.key, top.key_position, top.skip = None, None, False


def _unreadable(top: _Open) -> None:
    """The open mapping has an invalid key: its value is discarded."""
    assert isinstance(top.node, MappingNode)
    assert top.key_position is not None
    top.node.put(UNREADABLE, BrokenNode(top.key_position, None), top.key_position)
    top.skip = True
