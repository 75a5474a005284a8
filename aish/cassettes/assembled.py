"""What a stream of server-sent events says once its pieces are put together (C8).

A secret, or a folder's path, that a model spells over several deltas stands in no line of the
body; it stands in the strings that share a path within the events.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Protocol

from aish.cassettes.edits import Edit, edited_response, text_of
from aish.cassettes.interaction import Response
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonValue

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_DATA = re.compile(r"data: ?")
_DEEPEST = 64

_Path = tuple[str | int, ...]


class Finder(Protocol):
    """Finds what is to be replaced: `Secrets`, or the `Places` of a run."""

    def __bool__(self) -> bool:
        """Whether it looks for anything."""
        ...

    def spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Where something stands: start, end, what comes in its place."""
        ...


@frozen
class StreamEvent:
    """The data of an event, and where it stands in the body's text."""

    start: int
    end: int
    value: JsonValue


@frozen
class Part:
    """One string of one event; `number` counts the strings within the event."""

    event: int
    number: int
    text: str


def documents(text: str) -> list[StreamEvent]:
    """What a body is made of: events, or messages a line each, or one document."""
    if "data:" in text and (events := stream_events(text)):
        return events
    if text.lstrip()[:1] not in {"{", "["}:
        return []
    if whole := _event(0, len(text), [text]):
        return whole
    lines = (line for line in _LINE.finditer(text) if line[1][:1] in {"{", "["})
    return [event for line in lines for event in _event(line.start(), line.end(1), [line[1]])]


def stream_events(text: str) -> list[StreamEvent]:
    """The events whose data is JSON."""
    events: list[StreamEvent] = []
    start = end = -1
    data: list[str] = []
    for line in _LINE.finditer(text):
        if begun := _DATA.match(line[1]):
            start = line.start() + begun.end() if start < 0 else start
            end = line.end(1)
            data.append(line[1][begun.end() :])
        elif not line[1] and data:
            events += _event(start, end, data)
            start, data = -1, []
    return events


def spoken(events: Sequence[StreamEvent]) -> Mapping[_Path, list[Part]]:
    """The strings of all events, those with the same path together in their order."""
    spoken: dict[_Path, list[Part]] = {}
    for index, event in enumerate(events):
        for number, (path, text) in enumerate(_strings(event.value, ())):
            spoken.setdefault(path, []).append(Part(index, number, text))
    return spoken


def masks(text: str, finder: Finder) -> list[Edit]:
    """The edits that replace what is found only once the pieces are put together."""
    if not finder:
        return []
    events = documents(text)
    changed: dict[int, dict[int, str]] = {}
    for parts in spoken(events).values():
        for part, new in _masked(parts, finder):
            changed.setdefault(part.event, {})[part.number] = new
    edits = []
    for index, made in sorted(changed.items()):
        strings = [said for _, said in _strings(events[index].value, ())]
        for number, new in made.items():
            strings[number] = new
        value = _with_strings(events[index].value, iter(strings), 0)
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        edits.append(Edit(events[index].start, events[index].end, line))
    return edits


def replaced(response: Response, finder: Finder) -> Response:
    """The response with everything replaced in its body that is found, in pieces or whole."""
    if not finder:
        return response
    whole = edited_response(response, masks(text_of(response.body), finder))
    return edited_response(whole, list(starmap(Edit, finder.spans(text_of(whole.body)))))


def _event(start: int, end: int, data: list[str]) -> list[StreamEvent]:
    try:
        return [StreamEvent(start, end, json.loads("\n".join(data)))]
    except (ValueError, RecursionError):
        return []


def _masked(parts: Sequence[Part], finder: Finder) -> Iterator[tuple[Part, str]]:
    """The parts that something found touches, as they are without it."""
    whole = "".join(part.text for part in parts)
    spans = list(finder.spans(whole))
    start = 0
    for part in parts if spans else ():
        end = start + len(part.text)
        pieces: list[str] = []
        place = start
        for begin, stop, tag in spans:
            if stop <= start or begin >= end:
                continue
            pieces.append(whole[place : max(begin, place)])
            if begin >= start:
                pieces.append(tag)
            place = max(place, min(stop, end))
        if pieces:
            yield part, "".join((*pieces, whole[place:end]))
        start = end


def _strings(value: JsonValue, path: _Path) -> Iterator[tuple[_Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif len(path) > _DEEPEST:
        return
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from _strings(below, (*path, key))
    elif isinstance(value, Sequence):
        for position, below in enumerate(value):
            # Fragments of a tool call say which call they belong to by their `index`.
            index = below.get("index") if isinstance(below, Mapping) else None
            yield from _strings(below, (*path, index if isinstance(index, int) else position))


def _with_strings(value: JsonValue, texts: Iterator[str], depth: int) -> JsonValue:
    """The value with its strings replaced, in the order of `_strings`."""
    if isinstance(value, str):
        return next(texts)
    if depth > _DEEPEST:
        return value
    if isinstance(value, Mapping):
        return {key: _with_strings(below, texts, depth + 1) for key, below in value.items()}
    if isinstance(value, Sequence):
        return [_with_strings(below, texts, depth + 1) for below in value]
    return value
