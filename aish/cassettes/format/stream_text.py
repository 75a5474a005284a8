"""The text of a stream of server-sent events, joined from its deltas.

A secret, or a folder's path, that a model sends over several deltas is in no single line of the
body; it is in the strings that share a path within the events.

The last event of a stream that broke off: its content up to then.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from itertools import starmap
from typing import Protocol

from aish.cassettes.format.edits import Edit, apply_to_response, text_of
from aish.cassettes.format.interaction import Response
from aish.cassettes.format.json_tokens import Cut, Located, Scalar, locate, text_edits
from aish.core.frozen import frozen
from aish.core.json import JsonValue

_LARGEST = 1 << 20
# The maximum that a truncated escape can lack.
_LONGEST_ESCAPE = 12


def cut_value(data: str) -> JsonValue:
    """The value of truncated JSON, as if everything open in it had been closed there."""
    for gone in range(_LONGEST_ESCAPE if len(data) <= _LARGEST else 0):
        begun = data[: len(data) - gone]
        try:
            value: JsonValue = json.loads(begun + _missing_end(begun))
        except (ValueError, RecursionError):
            continue
        return value
    return None


def _missing_end(begun: str) -> str:
    """The quote and the brackets that are missing at the end."""
    is_text = False
    missing: list[str] = []
    letters = iter(begun)
    for letter in letters:
        if is_text:
            if letter == "\\":
                next(letters, None)
            is_text = letter != '"'
        elif letter == '"':
            is_text = True
        elif letter in "{[":
            missing.append("}" if letter == "{" else "]")
        elif letter in "}]" and missing:
            missing.pop()
    return '"' * is_text + "".join(reversed(missing))


_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_DATA = re.compile(r"data: ?")
_DEEPEST = 64
_WALKED = (str, dict, list)

_Path = tuple[str | int, ...]


class Finder(Protocol):
    """Finds text to be replaced: `Secrets`, or `PathPlaceholders`."""

    def __bool__(self) -> bool:
        """Return true if it looks for anything."""

    def spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        """The matches: start, end, replacement."""


@frozen
class StreamEvent:
    """The data of an event, and its position in the body's text."""

    start: int
    end: int
    value: JsonValue


@frozen
class Strand:
    """The strings of all events that share a path, in their order.

    `places` has for each the number of its event, and its number among that event's strings.
    """

    texts: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The joined text."""
        return "".join(self.texts)


def documents(text: str) -> Iterator[StreamEvent]:
    """The parts of a body: events, or one message per line, or one document."""
    has_events = False
    for event in _events(text, even_cut=True) if "data:" in text else ():
        has_events = True
        yield event
    if has_events or text.lstrip()[:1] not in {"{", "["}:
        return
    if whole := _event(0, len(text), [text]):
        yield from whole
        return
    for line in _LINE.finditer(text):
        if line[1][:1] in {"{", "["}:
            yield from _event(line.start(), line.end(1), [line[1]])


def stream_events(text: str) -> list[StreamEvent]:
    """The events whose data is JSON."""
    return list(_events(text))


def _events(text: str, *, even_cut: bool = False) -> Iterator[StreamEvent]:
    """`even_cut` includes the beginning of the last event, if the body broke off in it."""
    start = end = -1
    data: list[str] = []
    for line in _LINE.finditer(text):
        if begun := _DATA.match(line[1]):
            start = line.start() + begun.end() if start < 0 else start
            end = line.end(1)
            data.append(line[1][begun.end() :])
        elif not line[1] and data:
            event = _event(start, end, data)
            if not event and even_cut and line.end() == len(text):
                event = [StreamEvent(start, end, cut_value("\n".join(data)))]
            yield from event
            start, data = -1, []


@lru_cache(maxsize=1)
def strings_by_path(text: str) -> Mapping[_Path, Strand]:
    """The strings of a body, those with the same path joined.

    Cached for the last body, since several callers need them.
    """
    root = _Node()
    for index, event in enumerate(documents(text)):
        _gather(event.value, root, (index, 0), 0)
    return dict(root.strands(()))


def masks(text: str, finder: Finder) -> list[Edit]:
    """The edits that replace what is found only in the joined text."""
    if not finder:
        return []
    changed: dict[int, dict[int, list[Cut]]] = {}
    for strand in strings_by_path(text).values():
        for (number, place), cuts in _cuts(strand, finder):
            changed.setdefault(number, {})[place] = cuts
    edits: list[Edit] = []
    for index, event in enumerate(documents(text) if changed else ()):
        if moves := changed.get(index):
            strings = list(_strings(locate(text, event.start, event.end), 0))
            for place, cuts in moves.items():
                edits += text_edits(text, strings[place], cuts)
    # Of duplicate keys in an object, the last one replaces the first.
    return sorted(edits, key=lambda edit: edit.start)


def replace_matches(response: Response, finder: Finder) -> Response:
    """The response with all matches in its body replaced, whether split or whole."""
    if not finder:
        return response
    whole = apply_to_response(response, masks(text_of(response.body), finder))
    return apply_to_response(whole, list(starmap(Edit, finder.spans(text_of(whole.body)))))


def _event(start: int, end: int, data: list[str]) -> list[StreamEvent]:
    try:
        return [StreamEvent(start, end, json.loads("\n".join(data)))]
    except (ValueError, RecursionError):
        return []


def _cuts(strand: Strand, finder: Finder) -> Iterator[tuple[tuple[int, int], list[Cut]]]:
    """The strings that a match touches, and what is removed from each.

    The replacement is put into the string in which the match began.
    """
    spans = deque(finder.spans(strand.text))
    end = 0
    for text, where in zip(strand.texts, strand.places, strict=True) if spans else ():
        start, end = end, end + len(text)
        while spans and spans[0][1] <= start:
            spans.popleft()
        cuts: list[Cut] = []
        for begin, stop, tag in spans:
            if begin >= end:
                break
            new = tag if begin >= start else ""
            cuts.append((max(begin, start) - start, min(stop, end) - start, new))
        if cuts:
            yield where, cuts


class _Node:
    """The value at a path, and those below it."""

    __slots__ = ("below", "strand")

    def __init__(self) -> None:
        self.below: dict[str | int, _Node] = {}
        self.strand = Strand()

    def at(self, step: str | int) -> "_Node":
        node = self.below.get(step)
        if node is None:
            node = self.below[step] = _Node()
        return node

    def strands(self, path: _Path) -> Iterator[tuple[_Path, Strand]]:
        if self.strand.texts:
            yield path, self.strand
        for step, node in self.below.items():
            yield from node.strands((*path, step))


def _gather(value: JsonValue, node: _Node, place: tuple[int, int], depth: int) -> tuple[int, int]:
    """Add the strings of an event to their strands; returns the next position."""
    if isinstance(value, str):
        node.strand.texts.append(value)
        node.strand.places.append(place)
        return place[0], place[1] + 1
    if depth > _DEEPEST:
        return place
    if isinstance(value, dict):
        for key, below in value.items():
            if isinstance(below, _WALKED):
                place = _gather(below, node.at(key), place, depth + 1)
    elif isinstance(value, list):
        for position, below in enumerate(value):
            if isinstance(below, _WALKED):
                # Fragments of a tool call name their call by `index`.
                index = below.get("index") if isinstance(below, dict) else None
                step = index if isinstance(index, int) else position
                place = _gather(below, node.at(step), place, depth + 1)
    return place


def _strings(value: Located, depth: int) -> Iterator[Scalar]:
    """The positions of the strings found by `_gather`, in its order."""
    if isinstance(value, Scalar):
        if value.is_text:
            yield value
    elif value is not None and depth <= _DEEPEST:
        for below in value.values() if isinstance(value, dict) else value:
            yield from _strings(below, depth + 1)
