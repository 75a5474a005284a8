"""Records of a journal as the events they were: the way back of `lines` (design 11)."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from aish.sinks.lines import PLACE, keys_of
from aish.vocab.event_parts import Place
from aish.vocab.event_types import EVENT_TYPES
from aish.vocab.events import Stamped
from aish.vocab.json import JsonObject, JsonValue

_KINDS: Mapping[str, type] = {word: kind for kind, word in EVENT_TYPES.items()}


def event_of(record: JsonObject) -> Stamped | None:
    """The event of a record; `None` where a newer aish wrote a type that is not known here.

    Raises:
        ValueError: it does not hold what its type says.
    """
    kind = _KINDS.get(str(record.get("type")))
    if kind is None:
        return None
    place = Place(**{key: _built(hint, record.get(key), key) for key, hint in _PLACE_HINTS.items()})
    names = dict(keys_of(kind))
    given = {name: record[key] for name, key in names.items() if key in record}
    event = _made(kind, given, place=place)
    seq: int = _built(int, record.get("seq"), "seq")
    return Stamped(seq, _seconds(_built(str, record.get("time"), "time")), event)


def _made(kind: Any, given: Mapping[str, Any], **more: Any) -> Any:
    """A dataclass of JSON values; keys that it does not know are left out."""
    values = dict(more)
    for field in _fields(kind):
        if field.name in more:
            continue
        if field.name in given:
            values[field.name] = _built(field.type, given[field.name], field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"`{field.name}` is missing")
    return kind(**values)


def _built(hint: Any, value: Any, name: str) -> Any:
    """`value` as what `hint` says."""
    origin = get_origin(hint)
    if hint != JsonValue and origin in {Union, UnionType}:
        return _one_of(get_args(hint), value, name)
    if origin is tuple and _is_list(value):
        return tuple(_built(get_args(hint)[0], item, name) for item in value)
    if is_dataclass(hint) and isinstance(value, Mapping):
        return _made(hint, value)
    if not _fits(hint, origin, value):
        raise ValueError(f"`{name}` is not what it should be")
    # What JSON has no number for was written as null.
    return _number(value) if hint is float else value


def _number(value: float | None) -> float:
    return float("nan" if value is None else value)


def _one_of(hints: Sequence[Any], value: Any, name: str) -> Any:
    if value is None and NoneType in hints:
        return None
    for hint in hints:
        try:
            return _built(hint, value, name)
        except ValueError:
            continue
    raise ValueError(f"`{name}` is not what it should be")


def _fits(hint: Any, origin: Any, value: Any) -> bool:
    if hint == JsonValue:
        return True
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if hint is float:
        return value is None or type(value) in {int, float}
    if hint == JsonObject:
        return isinstance(value, Mapping)
    return hint in {str, int, bool, NoneType} and type(value) is hint


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


@cache
def _fields(kind: Any) -> tuple["Field[Any]", ...]:
    return fields(kind)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


_PLACE_HINTS = {field.name: field.type for field in fields(Place) if field.name in PLACE}
