"""Events as JSON objects, one a line (design 11): the spelling of journal and event stream."""

import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from aish.core.events import (
    EVENT_TYPES,
    Event,
    Fallback,
    Place,
    ReasoningDelta,
    Stamped,
    TextDelta,
    TurnAdded,
)
from aish.core.json import JsonValue
from aish.core.json_text import json_text, string_text

VERSION = 1
PLACE = ("step", "item", "turn", "call")

# `from` is no name in Python, and `turn` the number of one in a place.
_KEYS: Mapping[type[Event], Mapping[str, str]] = {
    Fallback: {"source": "from", "target": "to"},
    TurnAdded: {"turn": "added"},
}


def to_object(stamped: Stamped) -> dict[str, JsonValue]:
    """A line of the stream as an object: `v`, `seq`, `time`, `type`, the place, the event."""
    event = stamped.event
    kind = type(event)
    line: dict[str, JsonValue] = {
        "v": VERSION,
        "seq": stamped.seq,
        "time": rfc3339(stamped.time),
        "type": EVENT_TYPES[kind],
    }
    place = event.place
    for key in PLACE:
        value = getattr(place, key)
        if value is not None:
            line[key] = value
    for name, key in _FIELDS[kind]:
        line[key] = plain(getattr(event, name))
    return line


def to_line(stamped: Stamped) -> bytes:
    """The same as UTF-8 with a line end."""
    event = stamped.event
    if isinstance(event, (TextDelta, ReasoningDelta)):
        # Written once for each piece of an answer, so it is spelled out.
        head = f'{{"v":{VERSION},"seq":{stamped.seq},"time":"{rfc3339(stamped.time)}"'
        body = f'{_place_text(event.place)}"text":{string_text(event.text)}'
        return f'{head},"type":"{EVENT_TYPES[type(event)]}",{body}}}\n'.encode()
    return f"{json_text(to_object(stamped))}\n".encode()


def plain(value: Any) -> JsonValue:
    """A field of an event as JSON: dataclasses become objects, tuples lists."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    names = _names_of(type(value))
    return {name: plain(getattr(value, name)) for name in names} if names else value


def rfc3339(seconds: float) -> str:
    """A time in UTC, to the millisecond."""
    whole, part = divmod(int(seconds * 1000), 1000)
    return f"{_second(whole)}.{part:03d}Z"


@lru_cache(maxsize=8)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


@lru_cache(maxsize=256)
def _place_text(place: Place) -> str:
    values = {name: getattr(place, name) for name in PLACE}
    present = {key: value for key, value in values.items() if value is not None}
    return f"{json_text(present)[1:-1]}," if present else ""


def keys_of(kind: type[Event]) -> tuple[tuple[str, str], ...]:
    """The fields of an event, its place aside, each with its key in a line."""
    keys = _KEYS.get(kind, {})
    names = (field.name for field in fields(kind) if field.name != "place")
    return tuple((name, keys.get(name, name)) for name in names)


_FIELDS = {kind: keys_of(kind) for kind in EVENT_TYPES}
_NAMES: dict[type, tuple[str, ...]] = {}


def _names_of(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass, of nothing else."""
    names = _NAMES.get(kind)
    if names is None:
        names = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
        _NAMES[kind] = names
    return names
