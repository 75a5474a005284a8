"""The common part of the schema subsets of vendors: references, formats and bounds.

A reference with something beside it is not read as a whole there, and has to be written out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aish.core.json import JsonValue
from aish.wire.json_text import dump

FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
# Above this, numbers in JSON are not exact any more, and servers refuse some of them.
_HUGE: Final = 2**53 - 1
_BOUNDS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "maxLength", "maxItems"}
)
_INLINE: Final = 256
_NAME: Final = "part_{}"


class References:
    """The references of a schema; `find` gives what one leads to.

    `own` are definitions that are made of large parts: written out at each place, parts within
    parts would double the schema with every level.
    """

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find
        self._recursive: dict[str, bool] = {}
        self._sizes: dict[str, int] = {}
        self._names: dict[tuple[str, str], str] = {}
        self.own: dict[str, Any] = {}

    def is_recursive(self, reference: str) -> bool:
        """Return true if what a reference leads to leads to it again."""
        if reference not in self._recursive:
            self._recursive[reference] = self._comes_back(reference)
        return self._recursive[reference]

    def write_out(
        self, reference: str, beside: Mapping[str, Any], convert: Callable[[Any], Any]
    ) -> dict[str, Any]:
        """The form of what a reference leads to and what is beside it, or a reference to it."""
        merged = {**self._find(reference), **beside}
        if self._size(reference) <= _INLINE:
            return dict(convert(merged))
        key = reference, dump(beside)
        if key not in self._names:
            number = len(self._names) + 1
            while self._find(f"#/$defs/{_NAME.format(number)}") is not None:
                number += 1
            self._names[key] = name = _NAME.format(number)
            self.own[name] = None
            self.own[name] = convert(merged)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _comes_back(self, reference: str) -> bool:
        seen, waiting = {reference}, [self._find(reference)]
        while waiting:
            part = waiting.pop()
            if isinstance(part, Mapping):
                inner = part.get("$ref")
                if isinstance(inner, str) and inner in {reference, "#"}:
                    return True
                if isinstance(inner, str) and inner not in seen:
                    seen.add(inner)
                    waiting.append(self._find(inner))
                waiting.extend(part.values())
            elif isinstance(part, list | tuple):
                waiting.extend(part)
        return False

    def _size(self, reference: str) -> int:
        """The number of values that a reference stands for, with what is written out in them."""
        if reference not in self._sizes:
            self._sizes[reference] = self._count(self._find(reference))
        return self._sizes[reference]

    def _count(self, part: Any) -> int:
        if isinstance(part, Mapping):
            inner = part.get("$ref")
            is_written = isinstance(inner, str) and len(part) > 1 and not self.is_recursive(inner)
            more = self._size(inner) if isinstance(inner, str) and is_written else 0
            return 1 + more + sum(map(self._count, part.values()))
        return 1 + (sum(map(self._count, part)) if isinstance(part, list | tuple) else 0)


def without_generated(value: JsonValue) -> JsonValue:
    """The schema without `$schema`, and without bounds that stand for the largest integer."""
    if isinstance(value, Mapping):
        return {
            name: without_generated(inner)
            for name, inner in value.items()
            if not (name == "$schema" and isinstance(inner, str))
            and not (name in _BOUNDS and _is_huge(inner))
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [without_generated(inner) for inner in value]
    return value


def _is_huge(value: JsonValue) -> bool:
    return isinstance(value, int | float) and abs(value) >= _HUGE
