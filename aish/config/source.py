"""YAML text into a tree with positions, by the parser's events and nothing of its constructors.

The YAML library takes dates, tags, recursive aliases and `a: {{ x }}` without a word, so what a
file means is decided here: plain JSON values, and a clear problem for everything else (F10, X10).
Nothing here recurses.
"""

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from aish.config.nodes import UNREADABLE, BrokenNode, ListNode, MappingNode, Node, ScalarNode
from aish.config.scalars import plain_value
from aish.config.syntax import syntax_problem, tab_problem, template_problem, without_template
from aish.core.errors import Position, Problem
from aish.core.frozen import frozen, slotted

MAX_DEPTH = 64
MAX_NODES = 200_000
MAX_ALIASED = 10_000
MAX_REPAIRS = 20


@frozen
class Parsed:
    """What came of a text; `root` is `None` where nothing could be made of it.

    Where single values are wrong, they are `BrokenNode`s in it.
    """

    root: Node | None
    problems: tuple[Problem, ...]


def parse_yaml(text: str, file: str) -> Parsed:
    """The one document of `text`; never raises for what is in it."""
    templates: dict[Position, Problem] = {}
    while True:
        builder = _Builder(text, file, has_tabs="\t" in text, repaired=frozenset(templates))
        try:
            for event in _events(text):
                builder.take(event)
        except _StopReading:
            builder.root = None
        except Exception as error:  # ruff: ignore[blind-except] - the YAML library fails in odd ways on odd text
            problem = syntax_problem(error, text, file)
            repaired = None
            if len(templates) < MAX_REPAIRS and problem.position not in templates:
                repaired = without_template(text, problem)
            if repaired is not None:
                # The commonest mistake of all: the rest of the file can be read without it.
                templates[problem.position], text = problem, repaired
                continue
            builder.fail(problem)
        return builder.parsed(tuple(templates.values()))


def _events(text: str) -> Iterator[Any]:
    from ruamel.yaml import YAML

    events: Iterator[Any] = YAML(typ="safe", pure=True).parse(text)
    return events


class _StopReading(Exception):  # ruff: ignore[error-suffix-on-exception-name] - a signal, never seen outside
    """More of this file would only cost time."""


@slotted
class _Open:
    """A collection that is being filled."""

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
    """Events to nodes."""

    text: str
    file: str
    stack: list[_Open] = field(default_factory=list)
    root: Node | None = None
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, tuple[Node, int, int]] = field(default_factory=dict)
    open_anchors: set[str] = field(default_factory=set)
    spans: list[tuple[int, int]] = field(default_factory=list)
    has_tabs: bool = False
    repaired: frozenset[Position] = frozenset()
    documents: int = 0
    nodes: int = 0
    aliased: int = 0

    def take(self, event: Any) -> None:
        """One event of the parser."""
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
        """The parser gave up; a template without quotes on that line explains why."""
        known = (*self.repaired, *(one.position for one in self.problems))
        if problem.position.line not in {position.line for position in known}:
            self.problems.append(problem)
        self.root = None

    def parsed(self, templates: tuple[Problem, ...]) -> Parsed:
        """What there is in the end; `templates` are problems that were found before."""
        if not (self.problems or templates) and self.has_tabs:
            self._find_tabs()
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
            self._problem(event, f"YAML {version} is asked for, and this is YAML 1.2")
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
        shown = self.text[event.start_mark.index :].split(maxsplit=1)[0][:40]
        self._problem(event, f"the YAML tag in `{shown}`: tags are not allowed", "remove it")
        return True

    def _scalar(self, event: Any) -> None:
        self._count(event)
        broken = self._has_tag(event)
        if self.has_tabs:
            self.spans.append((event.start_mark.index, event.end_mark.index))
        if self._wants_key():
            self._key(event)
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
        if broken or position in self.repaired:
            node = BrokenNode(position, None)
        if event.anchor is not None:
            self.anchors[event.anchor] = (node, 1, 0)
        self._place(node, 0)

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
            self._problem(
                event, f"the key `{event.value}` is here twice, first in line {first.line}"
            )
            top.skip = True

    def _start(self, event: Any, node: ListNode | MappingNode) -> None:
        self._count(event)
        broken = self._has_tag(event)
        index = event.start_mark.index
        if self.stack and self.stack[-1].skip:
            pass  # what is thrown away has been complained of as a whole
        elif self.text[index - 1 : index + 1] == "{{" and isinstance(node, MappingNode):
            outer = Position(self.file, node.position.line, node.position.column - 1)
            self.problems.append(template_problem(outer))
            self.stack[-1].broken = True
        elif self._wants_key():
            self._problem(event, "a key has to be text")
        if self._wants_key():
            # The collection is read to its end in the place of a key, and thrown away.
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
            self._problem(event, "an alias in the place of a key")
            self.stack[-1].key = ""
            self.stack[-1].key_position = self._position(event)
            _unreadable(self.stack[-1])
            return
        name = event.anchor
        if name in self.open_anchors:
            self._problem(event, f"the alias `*{name}` stands inside what it names")
            raise _StopReading
        if name not in self.anchors:
            self._problem(event, f"the alias `*{name}` names nothing")
            self._place(BrokenNode(self._position(event), None), 0)
            return
        node, size, height = self.anchors[name]
        self.aliased += size
        self.nodes += size
        if self.aliased > MAX_ALIASED:
            self._problem(event, f"aliases that come to more than {MAX_ALIASED} values")
            raise _StopReading
        if len(self.stack) + height > MAX_DEPTH:
            self._problem(event, f"nested more than {MAX_DEPTH} deep by an alias")
            raise _StopReading
        self._place(node, height)

    def _place(self, node: Node, height: int) -> None:
        """Put a finished node where it belongs."""
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

    def _find_tabs(self) -> None:
        """The library takes some tabs, such as those that indent flow collections."""
        from bisect import bisect_right

        starts = [start for start, _ in self.spans]
        offset = self.text.find("\t")
        while offset >= 0:
            before = bisect_right(starts, offset) - 1
            line = self.text.rfind("\n", 0, offset) + 1
            inside = before >= 0 and offset < self.spans[before][1]
            blank = not self.text[line:].split("\n", 1)[0].strip()
            if not inside and not blank and "#" not in self.text[line:offset]:
                number = self.text.count("\n", 0, line) + 1
                self.problems.append(tab_problem(Position(self.file, number, offset - line + 1)))
                return
            offset = self.text.find("\t", offset + 1)


def _unreadable(top: _Open) -> None:
    """The open mapping has a key that is none: its value is thrown away."""
    assert isinstance(top.node, MappingNode)
    assert top.key_position is not None
    top.node.put(UNREADABLE, BrokenNode(top.key_position, None), top.key_position)
    top.skip = True
