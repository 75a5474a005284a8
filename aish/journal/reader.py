"""Reads a journal, record by record, and validates each.

A torn tail, as left by a killed process or a crash of the machine, is recognized and ignored: half
a record, NUL bytes, or both. Any other damage is refused with its line and position: skipping a
record could repeat work that was already done.

Converts records back to events: the inverse of `lines`.

A long journal has many records of few types: how each field is read is computed once.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache, lru_cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, Literal, Self, TypeVar, Union, get_args, get_origin
from zlib import crc32

from aish.core.events import EVENT_TYPES, VERSION, Counts, Event, Place, Stamped, keys_of
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.journal.writer import LINE_SEAL, LINE_SEAL_LENGTH, JournalError, is_unwritten, open_record
from aish.system.files import open_own

LONGEST = 256 * 1024 * 1024
_BUFFER = 1 << 18
# The beginning of a record: `v`, `seq` and `time` precede its type.
_HEAD = 120
# Escapes are allowed for the sake of speed: a character class of one is searched in a tight loop.
_ITEM_HEAD = re.compile(
    rb'{"v":%d,"seq":([1-9]\d{0,17}),"time":"[^"]{23}Z","type":"([^"]+)",'
    rb'"step":"([^"]*","item":"[^"]*)",' % VERSION
).match


ItemLine = tuple[bytes, bytes, int, int, bytes]
"""A record of an item, undecoded.

Its type, its place as it is written (step, `","item":"`, key), its number, where the line continues
after these, and the line itself. With escapes in its place, these may be wrong; see
`is_simple_place`. A tuple, as a long journal has millions of them.
"""


def is_simple_place(place: bytes) -> bool:
    """Return true if a place is written without escapes, and is no part of another item."""
    return b"\\" not in place and b"/" not in place.partition(b'"')[0]


def time_of(line: ItemLine) -> str:
    """The time of a record, as it is written."""
    end = line[4].index(b'","type":"')
    return line[4][end - 24 : end].decode()


@frozen
class Torn:
    """The rest of a file after its last whole record: its beginning and its length."""

    line: int
    offset: int
    size: int


def torn_tail(torn: Torn) -> str:
    """The message about a tail that is cut off before appending."""
    size = f"{torn.size:,} bytes" if torn.size != 1 else "1 byte"
    return (
        f"the journal ends in {size} that are not a whole record, as after a crash; they are "
        "kept in"
        " `events.jsonl.torn`"
    )


class JournalReading:
    """The records of an open journal, in constant memory.

    `torn` is known after all records were read. Closes the given file.
    """

    def __init__(self, file: BinaryIO, name: str, longest: int = LONGEST) -> None:
        self._longest = longest
        self.torn: Torn | None = None
        self._file = file
        self._name = name
        self._line = 0
        self._offset = 0
        self._seq = 0
        self._skipped: bytes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[JsonObject]:
        """Each record without its checksum.

        Raises:
            JournalError: a record is damaged, or a newer aish wrote it.
        """
        return self._records(None)

    def lines(self) -> Iterator[ItemLine | JsonObject]:
        """Each record, those of items undecoded; their order and checksum is verified.

        Raises:
            JournalError: a record is damaged, or a newer aish wrote it.
        """
        for body in self._bodies():
            head = _ITEM_HEAD(body)
            if head is None:
                yield self._record(body)
                continue
            number, kind, place = head.groups()
            seq = int(number)
            if seq <= self._seq:
                raise self._out_of_order(seq)
            self._seq = seq
            yield kind, place, seq, head.end(), body

    def decode(self, body: bytes) -> JsonObject:
        """The record in the line of an item.

        Raises:
            JournalError: it is no record.
        """
        try:
            return _whole(body.decode())  # type: ignore[no-any-return]  # it begins like an object
        except (ValueError, RecursionError) as error:
            raise self._error("is no record", "it was not written by aish") from error

    def of_types(self, types: Iterable[type[Event]]) -> Iterator[JsonObject]:
        """Only the records of these types: of all others the checksum is verified, and no more.

        Raises:
            JournalError: a record is damaged, or a newer aish wrote it.
        """
        return self._records([f'"type":"{EVENT_TYPES[kind]}"'.encode() for kind in types])

    @property
    def last_seq(self) -> int:
        """The number of the last record, after all were read; 0 if there is none.

        Raises:
            JournalError: a newer aish wrote it, or it is a copy.
        """
        last, self._skipped = self._skipped, None
        if last is not None:
            self._record(last)
        return self._seq

    def _records(self, wanted: Sequence[bytes] | None) -> Iterator[JsonObject]:
        for body in self._bodies():
            if wanted is None or any(kind in body[:_HEAD] for kind in wanted):
                self._skipped = None
                yield self._record(body)
            else:
                self._skipped = body

    def _bodies(self) -> Iterator[bytes]:
        """Each whole line without its checksum, which is verified."""
        while line := self._file.readline(self._longest):
            self._line += 1
            # This is `open_record` without a call, for the sake of long journals.
            body = line[:-LINE_SEAL_LENGTH] + b"}"
            if not line.endswith(LINE_SEAL % crc32(body)):
                if not line.endswith(b"\n"):
                    self._end(line)
                    return
                if not is_unwritten(line) or not self._rest_is_empty(line):
                    raise self._damage(line[:-1])
                return
            yield body
            self._offset += len(line)

    @property
    def where(self) -> str:
        """File and line of the record that was read last."""
        return f"{self._name}:{self._line}"

    def _record(self, body: bytes) -> JsonObject:
        record: Any = self.decode(body)
        version, seq = record.get("v"), record.get("seq")
        if version != VERSION:
            raise self._newer(version)
        if type(seq) is not int or seq <= self._seq:
            raise self._out_of_order(seq)
        self._seq = seq
        return record  # type: ignore[no-any-return]  # a mapping: it ended in `}` and had a key

    def _out_of_order(self, seq: object) -> JournalError:
        return self._error(f"has the number {seq} after {self._seq}", _COPY)

    def _end(self, line: bytes) -> None:
        if len(line) == self._longest:
            raise self._error(f"is longer than {self._longest} bytes", _COPY)
        self.torn = Torn(self._line, self._offset, len(line))

    def _rest_is_empty(self, line: bytes) -> bool:
        """True if only NUL bytes follow an incomplete line."""
        size = len(line)
        while block := self._file.read(_BUFFER):
            if block.strip(b"\0\n"):
                return False
            size += len(block)
        self.torn = Torn(self._line, self._offset, size)
        return True

    def _damage(self, line: bytes) -> JournalError:
        if b"\0" in line:
            said = "has NUL bytes in it, and records after them"
            return self._error(said, _COPY)
        if line.endswith(b"\r") and open_record(line[:-1]) is not None:
            back = "turn them back, for example with `dos2unix`"
            return self._error("ends in CRLF: the line ends were converted", back)
        try:
            version = json.loads(line)["v"]
        except (ValueError, RecursionError, KeyError, TypeError):
            version = VERSION
        if type(version) is int and version > VERSION:
            return self._newer(version)
        if b',"crc":"' not in line:
            return self._error("has no checksum: it is not a record of a journal", _COPY)
        return self._error("is damaged: its checksum does not match", _COPY)

    def _newer(self, version: object) -> JournalError:
        said = f"was written by another version of aish: `v` is {str(version)[:20]}, not {VERSION}"
        return self._error(said, "use that version, or a newer one")

    def _error(self, what: str, hint: str) -> JournalError:
        said = f"this line (at byte {self._offset}) {what}"
        return JournalError(said, where=self.where, hint=hint)


def _whole(text: str) -> Any:
    # Like `json.loads`, which also looks for white space around the value twice: saves a tenth of
    # the time.
    try:
        value, end = _SCAN(text, 0)
    except StopIteration as error:
        raise ValueError(text[:1]) from error
    if end != len(text):
        raise ValueError(text[end:])
    return value


_SCAN: Callable[[str, int], tuple[Any, int]] = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]  # `raw_decode` calls it
_MISSING = object()
_COPY = "nothing was skipped or changed; restore a copy of the file, or start a new run"


def read_journal(path: Path) -> JournalReading:
    """The records of a journal; use it in a `with`.

    Raises:
        UsageError: the path is not a regular file owned by the user.
        OSError: it cannot be opened.
    """
    return JournalReading(os.fdopen(open_own(path), "rb", buffering=_BUFFER), str(path))


_KINDS: Mapping[str, type] = {word: kind for kind, word in EVENT_TYPES.items()}

Kind = TypeVar("Kind")
Reader = Callable[[Any, str], Any]
"""Makes what a field holds of a JSON value; raises `ValueError` with the field's name."""


_FieldSlot = tuple[str, str, frozenset[type], Reader, Callable[[], Any] | None]
"""A field of a dataclass: its key in JSON, its name, the types whose values it holds as they are,
the reader of others, and what makes its default."""


def event_of(record: JsonObject) -> Stamped | None:
    """The event of a record; `None` if its type is unknown because a newer aish wrote it.

    Raises:
        ValueError: it does not match its type.
    """
    kind = _KINDS.get(str(record.get("type")))
    if kind is None:
        return None
    place = Place(*_values(_PLACE, record))
    slots, at = _event_slots(kind)
    fields_of_event = _values(slots, record)
    fields_of_event.insert(at, place)
    event = kind(*fields_of_event)
    seq: int = _SEQ(record.get("seq"), "seq")
    return Stamped(seq, _moment(_TIME(record.get("time"), "time")), event)


def _moment(time: str) -> float:
    """The seconds of a time since the epoch; of one as aish writes it by its second."""
    milliseconds = time[20:23]
    if time[19:20] == "." and time[23:] == "Z" and milliseconds.isdecimal():
        return (_second(time[:19]) * 1000 + int(milliseconds)) / 1000
    return datetime.fromisoformat(time).timestamp()


@lru_cache(maxsize=8)
def _second(time: str) -> int:
    """Cached because many records are of the same second."""
    return round(datetime.fromisoformat(f"{time}Z").timestamp())


def parse_event(record: JsonObject, where: str | None = None) -> Stamped | None:
    """Like `event_of`, of a record that may be damaged; `where` is its file and line, if known.

    Raises:
        JournalError: it does not match its type.
    """
    try:
        return event_of(record)
    except ValueError as error:
        said = f"a record of type {record.get('type')!r} is not a valid event: {error}"
        raise JournalError(said, where=where or f"record {record.get('seq')}") from error


def value_of(kind: type[Kind], value: JsonValue) -> Kind:
    """A dataclass from a JSON object, its fields converted by their types.

    Raises:
        ValueError: the value does not match it.
    """
    hint: Any = kind
    made: Kind = _reader(hint)(value, kind.__name__)
    return made


def _values(slots: Sequence[_FieldSlot], given: Mapping[str, Any]) -> list[Any]:
    """The fields of a dataclass, in their order, from JSON values; unknown keys are ignored."""
    values: list[Any] = []
    for key, name, types, read, make_default in slots:
        value = given.get(key, _MISSING)
        # Most values are what they should be: nothing is called for them.
        if value.__class__ in types:
            values.append(value)
        elif value is not _MISSING:
            values.append(read(value, name))
        elif make_default is not None:
            values.append(make_default())
        else:
            raise ValueError(f"`{name}` is missing")
    return values


@cache
def _event_slots(kind: Any) -> tuple[tuple[_FieldSlot, ...], int]:
    """The fields of an event without its place, and where that belongs among them."""
    slots = _slots(kind, dict(keys_of(kind)))
    names = [name for _, name, *_ in slots]
    return tuple(slot for slot in slots if slot[1] != "place"), names.index("place")


def _slots(kind: Any, keys: Mapping[str, str]) -> tuple[_FieldSlot, ...]:
    slots: list[_FieldSlot] = []
    for one in fields(kind):
        hint: Any = one.type
        make_default: Callable[[], Any] | None = None
        if one.default_factory is not MISSING:
            make_default = one.default_factory
        elif one.default is not MISSING:
            make_default = partial(_as_it_is, one.default, "")
        key = keys.get(one.name, one.name)
        slots.append((key, one.name, _types(hint), _reader(hint), make_default))
    return tuple(slots)


def _types(hint: Any) -> frozenset[type]:
    """The types of JSON values that a field of the type `hint` holds as they are."""
    if hint == JsonValue:
        return frozenset({str, int, float, bool, NoneType, dict, list})
    if hint == JsonObject:
        return frozenset({dict})
    if hint is float:
        return frozenset({int, float})
    if get_origin(hint) in {Union, UnionType}:
        return frozenset().union(*map(_types, get_args(hint)))
    return frozenset({hint}) if hint in {str, int, bool, NoneType} else frozenset()


@cache
def _reader(hint: Any) -> Reader:
    """A function that converts a value to the type `hint`."""
    origin = get_origin(hint)
    if hint == JsonValue:
        return _as_it_is
    if hint == Counts:
        return _counts
    if origin in {Union, UnionType}:
        return _one_of(get_args(hint))
    if origin in {tuple, Mapping} and hint != JsonObject:
        first, *more = get_args(hint)
        return _list_of(_reader(first)) if origin is tuple else _mapping_of(_reader(*more))
    if is_dataclass(hint):
        return _object_of(hint)
    return _number if hint is float else _type_reader(_fits(hint, origin))


def _fits(hint: Any, origin: Any) -> Callable[[Any], bool]:
    """A test whether a value has the type `hint` already, and needs no conversion."""
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


def _type_reader(fits: Callable[[Any], bool]) -> Reader:
    def read(value: Any, name: str) -> Any:
        if not fits(value):
            raise _unfit(name)
        return value

    return read


def _number(value: Any, name: str) -> Any:
    """Numbers that JSON cannot represent were written as null."""
    if value is None:
        return float("nan")
    if type(value) not in {int, float}:
        raise _unfit(name)
    return value


def _counts(value: Any, name: str) -> Any:
    """Numbers by name; older journals have a list with each name as often as it counts."""
    if isinstance(value, Sequence):
        return Counter(_list_of(_reader(str))(value, name))
    if not (isinstance(value, Mapping) and all(type(count) is int for count in value.values())):
        raise _unfit(name)
    return value


def _list_of(reader: Reader) -> Reader:
    def read(value: Any, name: str) -> Any:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _unfit(name)
        return tuple([reader(item, name) for item in value])

    return read


def _mapping_of(reader: Reader) -> Reader:
    def read(value: Any, name: str) -> Any:
        if not isinstance(value, Mapping):
            raise _unfit(name)
        return {key: reader(item, name) for key, item in value.items()}

    return read


def _object_of(kind: Any) -> Reader:
    slots = _slots(kind, {})

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, Mapping):
            raise _unfit(name)
        return kind(*_values(slots, value))

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
    return ValueError(f"`{name}` has the wrong form")


_SEQ, _TIME = _reader(int), _reader(str)
_PLACE = _slots(Place, {})
