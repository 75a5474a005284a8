"""Records of a journal as the events they were: the way back of `lines` (design 11).

A long journal has many records of few types: how each field is read is found out once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from aish.core.events import EVENT_TYPES, Place, Stamped
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.sinks.lines import PLACE, keys_of

_KINDS: Mapping[str, type] = {word: kind for kind, word in EVENT_TYPES.items()}

Reader = Callable[[Any, str], Any]
"""Makes what a field holds of a JSON value; raises `ValueError` with the field's name."""


@frozen
class _Slot:
    """A field of a dataclass: its name, its key in JSON, its reader."""

    name: str
    key: str
    read: Reader
    needed: bool


def event_of(record: JsonObject) -> Stamped | None:
    """The event of a record; `None` where a newer aish wrote a type that is not known here.

    Raises:
        ValueError: it does not hold what its type says.
    """
    kind = _KINDS.get(str(record.get("type")))
    if kind is None:
        return None
    place = Place(*[read(record.get(key), key) for key, read in _PLACE])
    event = _made(kind, _event_slots(kind), record, {"place": place})
    seq: int = _SEQ(record.get("seq"), "seq")
    return Stamped(seq, _seconds(_TIME(record.get("time"), "time")), event)


def _made(kind: Any, slots: Sequence[_Slot], given: Mapping[str, Any], values: Any) -> Any:
    """A dataclass of JSON values; keys that it does not know are left out."""
    for slot in slots:
        if slot.key in given:
            values[slot.name] = slot.read(given[slot.key], slot.name)
        elif slot.needed:
            raise ValueError(f"`{slot.name}` is missing")
    return kind(**values)


@cache
def _event_slots(kind: Any) -> tuple[_Slot, ...]:
    keys = dict(keys_of(kind))
    return tuple(slot for slot in _slots(kind, keys) if slot.name != "place")


def _slots(kind: Any, keys: Mapping[str, str]) -> tuple[_Slot, ...]:
    return tuple(_slot(field, keys.get(field.name, field.name)) for field in fields(kind))


def _slot(field: "Field[Any]", key: str) -> _Slot:
    hint: Any = field.type
    needed = field.default is MISSING and field.default_factory is MISSING
    return _Slot(field.name, key, _reader(hint), needed=needed)


@cache
def _reader(hint: Any) -> Reader:
    """What reads a value as what `hint` says."""
    origin = get_origin(hint)
    if hint == JsonValue:
        return _as_it_is
    if origin in {Union, UnionType}:
        return _one_of(get_args(hint))
    if origin is tuple:
        return _list_of(_reader(get_args(hint)[0]))
    if is_dataclass(hint):
        return _object_of(hint)
    return _number if hint is float else _checked(_fits(hint, origin))


def _fits(hint: Any, origin: Any) -> Callable[[Any], bool]:
    """Whether a value is what `hint` says, and nothing has to be made of it."""
    if origin is Literal:
        words = frozenset(get_args(hint))
        return lambda value: isinstance(value, str) and value in words
    if hint == JsonObject:
        return lambda value: isinstance(value, Mapping)
    known = hint in {str, int, bool, NoneType}
    return lambda value: known and type(value) is hint


def _as_it_is(value: Any, name: str) -> Any:
    del name
    return value


def _checked(fits: Callable[[Any], bool]) -> Reader:
    def read(value: Any, name: str) -> Any:
        if not fits(value):
            raise _unfit(name)
        return value

    return read


def _number(value: Any, name: str) -> Any:
    """What JSON has no number for was written as null."""
    if value is None:
        return float("nan")
    if type(value) not in {int, float}:
        raise _unfit(name)
    return value


def _list_of(reader: Reader) -> Reader:
    def read(value: Any, name: str) -> Any:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _unfit(name)
        return tuple([reader(item, name) for item in value])

    return read


def _object_of(kind: Any) -> Reader:
    slots = _slots(kind, {})

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, Mapping):
            raise _unfit(name)
        return _made(kind, slots, value, {})

    return read


def _one_of(hints: Sequence[Any]) -> Reader:
    readers = [_reader(hint) for hint in hints if hint is not NoneType]
    empty = NoneType in hints

    def read(value: Any, name: str) -> Any:
        if value is None and empty:
            return None
        for reader in readers:
            try:
                return reader(value, name)
            except ValueError:
                continue
        raise _unfit(name)

    return read


def _unfit(name: str) -> ValueError:
    return ValueError(f"`{name}` is not what it should be")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


_SEQ, _TIME = _reader(int), _reader(str)
_PLACE = [(slot.key, slot.read) for slot in _slots(Place, {}) if slot.key in PLACE]
