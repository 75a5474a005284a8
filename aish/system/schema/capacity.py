"""Counts the values that a closed schema admits: how much an answer can say that has to fit it.

Of the keywords of a schema one is counted, and others can only narrow it, so that a count is an
upper bound. Values whose keys are in another order, or that have `1.0` for `1`, count as one:
`normal_value` makes them so.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from aish.core.json import JsonObject, JsonValue
from aish.system.schema.check import DIALECTS, resolve

MOST_BITS = 64
"""Where counting ends: a schema with more has as many."""
_MOST = 1 << MOST_BITS


class OpenSchemaError(Exception):
    """A part of a schema admits values without bound."""


class Capacity:
    """The number of values that a closed schema admits, and where most of them come from."""

    def __init__(self, schema: JsonObject) -> None:
        """Count them.

        Raises:
            OpenSchemaError: a leaf is neither boolean, null, `const`, `enum` nor an integer with
                both bounds, an object may have other keys, or an array any number of items.
        """
        self._root = schema
        self._counts: dict[int, int | None] = {}
        self.bits = _bits_of(self._count(schema, ""))

    def largest_leaf(self) -> str:
        """The path of the leaf that admits most."""
        schema, place = self._resolved(self._root), ""
        while True:
            properties = schema.get("properties")
            if schema.get("type") == "array":
                schema, place = self._resolved(schema["items"]), f"{place}[]"
            elif schema.get("type") == "object" and properties:
                name = max(properties, key=lambda key: self._count(properties[key], ""))
                schema, place = self._resolved(properties[name]), _below(place, name)
            else:
                return place

    def _resolved(self, schema: Any) -> Any:
        while isinstance(schema, Mapping) and "$ref" in schema:
            # The older dialect ignores what stands beside it.
            schema = resolve(self._root, str(schema["$ref"]))
        return schema if isinstance(schema, Mapping) else {}

    def _count(self, schema: Any, place: str) -> int:
        if schema is False:
            return 0
        if not isinstance(schema, Mapping):
            raise OpenSchemaError(f"{_spell(place)} may be anything")
        if id(schema) not in self._counts:
            self._counts[id(schema)] = None
            self._counts[id(schema)] = min(_MOST, self._count_anew(schema, place))
        count = self._counts[id(schema)]
        if count is None:
            raise OpenSchemaError(f"{_spell(place)} may contain itself")
        return count

    def _count_anew(self, schema: JsonObject, place: str) -> int:
        dialect = str(schema.get("$schema", "")).rstrip("#").partition("://")[2]
        is_root = schema is self._root
        if dialect not in {*DIALECTS, ""} or (not is_root and {"$id", "$schema"} & schema.keys()):
            raise OpenSchemaError(f"the schema of {_spell(place)} has an `$id` or `$schema`")
        if "$ref" in schema:
            target = resolve(self._root, str(schema["$ref"]))
            return self._count(True if target is None else target, place)
        if "const" in schema:
            return 1
        if "enum" in schema:
            return len(_listed(schema["enum"]))
        if "type" in schema:
            kinds = _listed(schema["type"]) or [schema["type"]]
            return sum(self._count_kind(str(kind), schema, place) for kind in kinds)
        branches = _listed(schema.get("anyOf")) or _listed(schema.get("oneOf"))
        if branches:
            return sum(self._count(branch, place) for branch in branches)
        raise OpenSchemaError(f"{_spell(place)} has no `type`, `const` or `enum`")

    def _count_kind(self, kind: str, schema: JsonObject, place: str) -> int:
        match kind:
            case "null":
                return 1
            case "boolean":
                return 2
            case "integer":
                return _count_integers(schema, place)
            case "object":
                return self._count_objects(schema, place)
            case "array":
                return self._count_arrays(schema, place)
        raise OpenSchemaError(f"{_spell(place)} is a {kind} without `const` or `enum`")

    def _count_objects(self, schema: JsonObject, place: str) -> int:
        if schema.get("additionalProperties") is not False or schema.get("patternProperties"):
            raise OpenSchemaError(f"{_spell(place)} may have other keys")
        properties, required = schema.get("properties"), _listed(schema.get("required"))
        count = 1
        for name, one in properties.items() if isinstance(properties, Mapping) else ():
            own = self._count(one, _below(place, name)) + (name not in required)
            count = min(_MOST, count * own)
        return count

    def _count_arrays(self, schema: JsonObject, place: str) -> int:
        most, least = schema.get("maxItems"), schema.get("minItems", 0)
        if not isinstance(most, int) or not isinstance(least, int):
            raise OpenSchemaError(f"{_spell(place)} has no `maxItems`")
        items = schema.get("items", True)
        if "prefixItems" in schema:
            raise OpenSchemaError(f"{_spell(place)} has `prefixItems`")
        each = self._count(items, f"{place}[]")
        if each == 1:
            return max(0, most - least + 1)
        if each and least > MOST_BITS:
            return _MOST
        count = 0
        for length in range(least, most + 1 if each else 1):
            count += each**length
            if count >= _MOST:
                break
        return count


def normal_value(value: JsonValue) -> JsonValue:
    """The value in the one form that equal values have: keys in order, no `1.0` for `1`."""
    if isinstance(value, Mapping):
        return {key: normal_value(value[key]) for key in sorted(value)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [normal_value(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _count_integers(schema: JsonObject, place: str) -> int:
    low = [math.ceil(one) for one in _numbers(schema, "minimum")]
    low += [math.floor(one) + 1 for one in _numbers(schema, "exclusiveMinimum")]
    high = [math.floor(one) for one in _numbers(schema, "maximum")]
    high += [math.ceil(one) - 1 for one in _numbers(schema, "exclusiveMaximum")]
    if not low or not high:
        raise OpenSchemaError(f"{_spell(place)} is an integer without both bounds")
    return max(0, min(high) - max(low) + 1)


def _numbers(schema: JsonObject, keyword: str) -> list[float]:
    value = schema.get(keyword)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    return [value] if isinstance(value, int) or math.isfinite(value) else []


def _bits_of(count: int) -> int:
    return (count - 1).bit_length() if count > 1 else 0


def _listed(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _spell(place: str) -> str:
    return f"`{place}`" if place else "the answer"
