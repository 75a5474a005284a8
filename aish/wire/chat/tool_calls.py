"""Assembles fragments of tool calls."""

from collections.abc import Collection
from dataclasses import field
from typing import Any, Final

from aish.core.frozen import frozen, slotted
from aish.wire.calls import as_text, canonical, drop_repetitions, is_whole
from aish.wire.json_text import merge_field

_KNOWN_FIELDS: Final = frozenset({"index", "id", "type", "function"})
# How often the arguments of one slot are parsed to find out whether another call has begun:
# a stream of a million braces must not cost the square of its length.
_MOST_LOOKS: Final = 32


@slotted
class ToolCallSlot:
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
        self.all: list[ToolCallSlot] = []
        self.guessed = False
        """Whether a fragment came without an index."""
        self._known = known_tools
        self._by_index: dict[int, ToolCallSlot] = {}
        self._by_id: dict[str, ToolCallSlot] = {}

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

    def _open(self, fragment: Fragment) -> ToolCallSlot:
        slot = ToolCallSlot()
        self.all.append(slot)
        if fragment.index is not None:
            self._by_index[fragment.index] = slot
        return slot

    def _at_index(self, fragment: Fragment, index: int) -> ToolCallSlot:
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

    def _without_index(self, fragment: Fragment) -> ToolCallSlot:
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

    def _begins_another(self, slot: ToolCallSlot, fragment: Fragment) -> bool:
        """Return true if a name after whole arguments opens a call, whatever its id says."""
        if not fragment.name or not slot.name:
            return False
        if fragment.name == slot.name:
            return False  # the same call, sent again
        if not slot.parts:
            return slot.name in self._known and fragment.name in self._known
        return slot.is_whole()

    def _fill(self, slot: ToolCallSlot, fragment: Fragment) -> None:
        if fragment.id and not slot.id:
            slot.id = fragment.id
            self._by_id.setdefault(fragment.id, slot)
        if fragment.name:
            slot.name = self._name(slot, fragment.name)
        if fragment.arguments:
            slot.parts.append(fragment.arguments)
        for name, value in fragment.extras.items():
            merge_field(slot.extras, name, value)

    def _name(self, slot: ToolCallSlot, piece: str) -> str:
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
