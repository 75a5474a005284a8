"""Checks JSON Schemas themselves, such as those in a pipeline file.

Well-formed schemas of common keywords are recognized without jsonschema, as its import takes longer
than all else of a check.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aish.core.json import JsonObject
from aish.system.schema.check import (
    BEYOND,
    LIMITS,
    SIZES,
    TYPES,
    Schema,
    SchemaProblem,
    check_here,
    compile_bounded,
    resolve,
)


def check_schema(schema: Schema) -> tuple[SchemaProblem, ...]:
    """The problems of a schema itself, such as one in a pipeline file."""
    if check_here(_COMMON, schema) == () and all(
        _is_common(schema, *entry) for entry in _entries(schema)
    ):
        return ()
    if not isinstance(schema, Mapping):
        return (SchemaProblem((), "is neither an object nor a boolean", "type"),)
    from aish.system.schema.worker_process import schema_problems

    try:
        return tuple(schema_problems(schema))
    except RecursionError:
        return (SchemaProblem((), "is nested too deeply", "schema"),)


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    inner = value.values() if isinstance(value, Mapping) else value
    for item in inner if isinstance(inner, Iterable) and not isinstance(inner, str) else ():
        yield from _entries(item)


def _is_common(root: Any, key: str, value: Any) -> bool:
    """Return true if `_Walk` supports a pattern or reference, which `_COMMON` cannot say."""
    if not isinstance(value, str) or key not in {"pattern", "$ref"}:
        return True
    return (compile_bounded(value) if key == "pattern" else resolve(root, value)) is not None


_SELF: JsonObject = {"$ref": "#"}
_SCHEMAS: JsonObject = {"type": "array", "items": _SELF, "minItems": 1}
_NAMED: JsonObject = {"type": "object", "additionalProperties": _SELF}
_TYPE: JsonObject = {"enum": sorted(TYPES)}
_TEXT: JsonObject = {"type": "string"}
_NUMBER: JsonObject = {"type": "number"}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}
# Schemas of common keywords, all of them well-formed.
_COMMON: JsonObject = {
    "type": ["object", "boolean"],
    "properties": {
        **dict.fromkeys(LIMITS, _NUMBER),
        **dict.fromkeys(SIZES, _COUNT),
        **dict.fromkeys((*BEYOND, "$id", "$schema"), False),
        **dict.fromkeys(("pattern", "$ref"), _TEXT),
        **dict.fromkeys(("properties", "$defs", "definitions"), _NAMED),
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), _SCHEMAS),
        **dict.fromkeys(("items", "additionalProperties", "propertyNames"), _SELF),
        "type": {"anyOf": [_TYPE, {"type": "array", "items": _TYPE, "minItems": 1}]},
        "enum": {"type": "array"},
        "required": {"type": "array", "items": _TEXT},
        "multipleOf": {"type": "number", "exclusiveMinimum": 0},
        "uniqueItems": {"type": "boolean"},
    },
}
