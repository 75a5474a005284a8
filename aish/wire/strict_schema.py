"""Whether endpoints that ask more of a `strict` answer schema than JSON Schema would take it.

They answer 400 to `strict: true` unless every object closes itself and requires all it has;
endpoints that enforce by grammar do so either way.
"""

from collections.abc import Mapping, Sequence

from aish.core.json import JsonValue


def fits_strict(schema: JsonValue) -> bool:
    """Whether all object schemas in `schema` are closed and require every property."""
    if isinstance(schema, Mapping):
        return _is_closed(schema) and all(map(fits_strict, schema.values()))
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return all(map(fits_strict, schema))
    return True


def _is_closed(schema: Mapping[str, JsonValue]) -> bool:
    kind = schema.get("type")
    if kind != "object" and not (isinstance(kind, list | tuple) and "object" in kind):
        return True
    properties, required = schema.get("properties"), schema.get("required")
    names = set(properties) if isinstance(properties, Mapping) else set()
    listed = required if isinstance(required, list | tuple) else ()
    return schema.get("additionalProperties") is False and all(name in listed for name in names)
