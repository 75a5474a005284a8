"""Repairs an input schema in which an empty object was printed as `[]` (Lua, PHP). Pure.

Only places where a schema or a map of schemas has to stand are touched; whatever is right comes
back as the same object, unchanged (L2).
"""

from collections.abc import Mapping
from typing import Any

MAPS = frozenset(
    {
        "properties",
        "patternProperties",
        "$defs",
        "definitions",
        "dependentSchemas",
    }
)
SCHEMAS = frozenset(
    {
        "additionalProperties",
        "propertyNames",
        "unevaluatedProperties",
        "unevaluatedItems",
        "contains",
        "contentSchema",
        "not",
        "if",
        "then",
        "else",
    }
)
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAX_DEPTH = 64
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def mended(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with `[]` replaced by `{}` where only an object makes sense."""
    return _schema(schema, 0) if schema else NO_PARAMETERS


def _schema(value: Any, depth: int) -> Any:
    if isinstance(value, list) and not value:
        return {}
    if not isinstance(value, dict) or depth > MAX_DEPTH:
        return value
    new = {key: _keyword(key, item, depth + 1) for key, item in value.items()}
    return value if all(new[key] is value[key] for key in new) else new


def _keyword(key: str, value: Any, depth: int) -> Any:
    if key in MAPS:
        return _each(value, depth)
    if key in SCHEMAS or (key == "items" and isinstance(value, dict)):
        return _schema(value, depth)
    if key in LISTS and isinstance(value, list):
        new = [_schema(item, depth) for item in value]
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return value


def _each(value: Any, depth: int) -> Any:
    if isinstance(value, list) and not value:
        return {}
    if not isinstance(value, dict):
        return value
    new = {key: _schema(item, depth) for key, item in value.items()}
    return value if all(new[key] is value[key] for key in new) else new
