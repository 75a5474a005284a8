"""The body of an exchange as JSON, if it is JSON that can be traversed."""

import json
from collections.abc import Iterator, Mapping, Sequence

from aish.cassettes.format.stream_text import stream_events
from aish.core.json import JsonObject, JsonValue

_DEEPEST = 200


def json_or_text(text: str) -> JsonValue:
    """The value of a JSON text, or the text itself if it is not JSON, or nested too deeply."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if _is_shallow(value) else text


def json_object(text: str) -> JsonObject | None:
    """The object in a JSON text, if it is one."""
    value = json_or_text(text) if text.lstrip()[:1] == "{" else None
    return value if isinstance(value, Mapping) else None


def json_messages(text: str) -> Iterator[JsonObject]:
    """The objects in a body: one, a list of them, one per line, or one per event."""
    whole = json_or_text(text)
    if isinstance(whole, Mapping):
        yield whole
    elif isinstance(whole, Sequence) and not isinstance(whole, str):
        yield from (message for message in whole if isinstance(message, Mapping))
    else:
        events = [event.value for event in stream_events(text)] if "data:" in text else []
        lines = (json_object(line) for line in text.splitlines()) if not events else iter(events)
        yield from (item for item in lines if isinstance(item, Mapping) and _is_shallow(item))


def at(value: JsonValue, *path: str | int) -> JsonValue:
    """The value at a path within a value; nothing if a part of it is missing."""
    for step in path:
        if isinstance(step, str) and isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def items(value: JsonValue) -> Sequence[JsonValue]:
    """The items of a list; none for anything else."""
    return value if isinstance(value, list) else ()


def word(value: JsonValue) -> str:
    """Text unchanged, anything else as JSON, nothing for nothing."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _is_shallow(value: JsonValue) -> bool:
    waiting: list[tuple[JsonValue, int]] = [(value, 0)]
    while waiting:
        held, depth = waiting.pop()
        inner: Sequence[JsonValue] = ()
        if isinstance(held, Mapping):
            inner = tuple(held.values())
        elif isinstance(held, list):
            inner = held
        if inner and depth >= _DEEPEST:
            return False
        waiting += [(item, depth + 1) for item in inner if isinstance(item, (Mapping, list))]
    return True
