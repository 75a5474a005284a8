"""Assembles fragments of tool calls and unknown fields."""

import json
import re
from collections.abc import Collection, Container
from dataclasses import field
from typing import Any, Final

from aish.core.events import Place
from aish.core.frozen import frozen, slotted
from aish.core.patterns import lazy_pattern
from aish.wire.json_text import dump, parse_object, raw_decode

NO_ARGUMENTS: Final = "{}"

# Where a text of arguments may begin again; most have no such place and need no parsing.
_BEGINS_ANEW: Final = lazy_pattern(r'\}\s*\{|^\s*".*"\s*"', re.DOTALL)
_SPACE: Final = lazy_pattern(r"\s*")


def is_whole(text: str) -> bool:
    """Return true for a complete JSON object, or a JSON string that holds one."""
    return parse_object(text) is not None or _inner(text) is not None


def legal_arguments(text: str) -> str:
    """The text if it is a JSON object, or the most similar JSON object.

    Some servers answer 500 to a history with anything else.
    """
    if parse_object(text) is not None:
        return text
    return _inner(text) or NO_ARGUMENTS


def as_text(value: object) -> str:
    """Arguments as text: a string as it is, anything else serialised once."""
    return value if isinstance(value, str) else dump(value)


def drop_repetitions(text: str) -> str:
    """The text once, if it repeats the same complete arguments.

    Gateways replay the last message after its pieces. Anything that is not the same as
    JSON is left as it is, and no longer one value: such a call is never made.
    """
    if _BEGINS_ANEW.search(text) is None:
        return text
    once, meaning, at = "", "", _after(text, 0)
    while at < len(text):
        # What is `once` again ends by itself, as an object or a string does.
        if once and text[at : at + len(once)] == once:
            at = _after(text, at + len(once))
            continue
        try:
            value, end = raw_decode(text, at)
        except (ValueError, RecursionError):
            return text
        if not once:
            once, meaning = text[at:end], _normal_json(value)
            if not is_whole(once):
                return text
        elif _normal_json(value) != meaning:
            return text
        at = _after(text, end)
    return once


def canonical(text: str) -> str:
    """The text so that equal JSON is equal text; invalid JSON is unchanged."""
    try:
        return _normal_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _after(text: str, at: int) -> int:
    """The end of the white space that begins at `at`."""
    space = _SPACE.match(text, at)
    assert space is not None, "it may be none"
    return space.end()


def _normal_json(value: Any) -> str:
    # Not `==` of the values, which takes `true` for 1.
    return json.dumps(value, sort_keys=True)


def _inner(text: str) -> str | None:
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return inner if isinstance(inner, str) and parse_object(inner) is not None else None


def merge_field(fields: dict[str, Any], name: str, value: Any) -> None:
    """Add a chunk's value of a field to the value of earlier chunks.

    Objects merge, lists and texts are appended (a text that only repeats adds nothing), other
    values are replaced. Empty values are ignored.
    """
    if value is None or value in ("", [], {}):
        return
    known = fields.get(name)
    if isinstance(known, dict) and isinstance(value, dict):
        for inner, part in value.items():
            merge_field(known, inner, part)
    elif isinstance(known, list) and isinstance(value, list):
        known.extend(value)
    elif isinstance(known, str) and isinstance(value, str):
        fields[name] = known if known == value else known + value
    else:
        fields[name] = value


_KNOWN_FIELDS: Final = frozenset({"index", "id", "type", "function"})
# How often the arguments of one slot are parsed to find out whether another call has begun:
# a stream of a million braces must not cost the square of its length.
_MOST_LOOKS: Final = 32


@slotted
class Slot:
    """Call that is being assembled."""

    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)
    extras: dict[str, Any] = field(default_factory=dict)
    looks: int = 0

    @property
    def arguments(self) -> str:
        if len(self.parts) > 1:
            self.parts[:] = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def is_whole(self) -> bool:
        """Return true if the arguments so far are a complete object; a limited number of looks."""
        if not self.parts or not self.parts[-1].rstrip().endswith("}") or self.looks >= _MOST_LOOKS:
            return False
        self.looks += 1
        return is_whole(self.arguments)

    def key(self) -> tuple[str, str]:
        """Name and arguments, normalised so that equal JSON is equal text."""
        return self.name, canonical(drop_repetitions(self.arguments))


@frozen
class Fragment:
    """Element of `tool_calls`; empty text means that a field is missing."""

    index: int | None
    id: str
    name: str
    arguments: str
    extras: dict[str, Any]


class ToolCallSlots:
    """The calls of one turn, in the order they were opened."""

    __slots__ = ("_by_id", "_by_index", "_known", "all", "guessed")

    def __init__(self, known_tools: Collection[str] = ()) -> None:
        self.all: list[Slot] = []
        self.guessed = False
        """Whether a fragment came without an index."""
        self._known = known_tools
        self._by_index: dict[int, Slot] = {}
        self._by_id: dict[str, Slot] = {}

    def add(self, item: dict[str, Any]) -> None:
        if self._goes_on(item):
            return
        fragment = _read(item)
        if fragment.index is None:
            self.guessed = True
            slot = self._without_index(fragment)
        else:
            slot = self._at_index(fragment, fragment.index)
        self._fill(slot, fragment)

    def add_whole(self, item: dict[str, Any]) -> None:
        """Add a call from an answer that is not streamed: each element is one call."""
        fragment = _read(item)
        self._fill(self._open(fragment), fragment)

    def settle(self) -> None:
        """The end of the answer: arguments that were sent again count once."""
        for slot in self.all:
            if len(slot.parts) > 1:
                slot.parts[:] = [drop_repetitions(slot.arguments)]

    def join(self, others: "ToolCallSlots") -> None:
        self.all.extend(others.all)

    def repeat(self, others: "ToolCallSlots") -> bool:
        """Compare calls as JSON, whatever their ids."""
        return [slot.key() for slot in self.all] == [slot.key() for slot in others.all]

    def _goes_on(self, item: dict[str, Any]) -> bool:
        """Add a fragment with more arguments for a known index: the usual case."""
        function = item.get("function")
        if len(item) > len(("index", "function")) or not isinstance(function, dict):
            return False
        arguments, index = function.get("arguments"), item.get("index")
        if len(function) > 1 or type(arguments) is not str or type(index) is not int:
            return False
        slot = self._by_index.get(index)
        if slot is None:
            return False
        if arguments:
            slot.parts.append(arguments)
        return True

    def _open(self, fragment: Fragment) -> Slot:
        slot = Slot()
        self.all.append(slot)
        if fragment.index is not None:
            self._by_index[fragment.index] = slot
        return slot

    def _at_index(self, fragment: Fragment, index: int) -> Slot:
        """The slot of that index, unless the fragment begins another call there."""
        slot = self._by_index.get(index)
        if slot is None:
            return self._open(fragment)
        if fragment.id and slot.id and fragment.id != slot.id:
            if earlier := self._by_id.get(fragment.id):
                return earlier
            if fragment.name or slot.is_whole():
                return self._open(fragment)
            return slot  # a new id with each fragment of one call
        return self._open(fragment) if self._begins_another(slot, fragment) else slot

    def _without_index(self, fragment: Fragment) -> Slot:
        """The slot with this id, or a new one if there is a name, or the last one."""
        if fragment.id and (known := self._by_id.get(fragment.id)):
            return self._open(fragment) if self._begins_another(known, fragment) else known
        last = self.all[-1] if self.all else None
        if last is None:
            return self._open(fragment)
        if fragment.id and last.id and not fragment.name:
            return self._open(fragment) if last.is_whole() else last
        if fragment.id and last.id:
            return self._open(fragment)
        if fragment.name and last.name:
            goes_on = fragment.name == last.name and last.parts and not last.is_whole()
            return last if goes_on else self._open(fragment)
        return last

    def _begins_another(self, slot: Slot, fragment: Fragment) -> bool:
        """Return true if a name after whole arguments opens a call, whatever its id says."""
        if not fragment.name or not slot.name:
            return False
        if fragment.name == slot.name:
            return False  # the same call, sent again
        if not slot.parts:
            return slot.name in self._known and fragment.name in self._known
        return slot.is_whole()

    def _fill(self, slot: Slot, fragment: Fragment) -> None:
        if fragment.id and not slot.id:
            slot.id = fragment.id
            self._by_id.setdefault(fragment.id, slot)
        if fragment.name:
            slot.name = self._name(slot, fragment.name)
        if fragment.arguments:
            slot.parts.append(fragment.arguments)
        for name, value in fragment.extras.items():
            merge_field(slot.extras, name, value)

    def _name(self, slot: Slot, piece: str) -> str:
        """The name after another piece of it."""
        joined = slot.name + piece
        if not slot.name or joined in self._known:
            return joined
        if slot.parts or piece == slot.name or slot.name in self._known:
            return slot.name
        return piece if piece in self._known else joined


def _read(item: dict[str, Any]) -> Fragment:
    function = item.get("function")
    if not isinstance(function, dict):
        function = {}
    arguments = function.get("arguments")
    extras = {key: value for key, value in item.items() if key not in _KNOWN_FIELDS}
    inner = {key: value for key, value in function.items() if key not in {"name", "arguments"}}
    if inner:
        extras["function"] = inner
    return Fragment(
        index=_index(item.get("index")),
        id=_text(item.get("id")),
        name=_text(function.get("name")),
        arguments="" if arguments is None else as_text(arguments),
        extras=extras,
    )


def _index(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:9])
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        return int(value)
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


LENGTH: Final = 9
"""Nine letters and digits: the strictest endpoint takes exactly that."""


def make_call_id(place: Place, index: int, taken: Container[str]) -> str:
    """An id for the call at `index` of a turn that is not `taken`."""
    source = (place.step or "", place.item or "", str(place.turn), str(index))
    return _first_free("\0".join(source), taken)


def short_id(original: str, taken: Container[str]) -> str:
    """An id of nine letters and digits in place of another: itself, where it is one already."""
    fits = len(original) == LENGTH and original.isascii() and original.isalnum()
    return original if fits and original not in taken else _first_free(original, taken)


def unique_id(original: str, taken: Container[str]) -> str:
    """The id itself, or with a number if an earlier turn has used it."""
    number, candidate = 1, original
    while candidate in taken:
        number += 1
        candidate = f"{original}_{number}"
    return candidate


def _first_free(source: str, taken: Container[str]) -> str:
    attempt, candidate = 0, _digest(source)
    while candidate in taken:
        attempt += 1
        candidate = _digest(f"{source}\0{attempt}")
    return candidate


def _digest(source: str) -> str:
    import hashlib  # most turns need no generated id

    return hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:LENGTH]
