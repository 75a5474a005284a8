"""Schemas in the subset that the vendor takes, for answers and for the input of tools."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aish.core.json import JsonObject, JsonValue
from aish.wire.json_text import dump
from aish.wire.schema_subset import FORMATS, References, without_generated

_KEPT: Final = frozenset(
    {"type", "enum", "const", "required", "description", "title", "default", "$ref"}
)
_SKIPPED: Final = frozenset({"$schema", "$id", "$comment", "examples", "additionalProperties"})
_REFUSED: Final = frozenset(
    {"patternProperties", "if", "then", "else", "not", "dependentSchemas", "prefixItems"}
)
_MAPS: Final = frozenset({"properties", "$defs", "definitions"})
_NAMES: Final[Mapping[str, str]] = {"definitions": "$defs", "oneOf": "anyOf"}
_FORMATS: Final = FORMATS | {"uri"}
_CHOICES: Final = ("anyOf", "oneOf", "allOf")


class _OpenError(Exception):
    """A map of any keys, which cannot be closed without losing it."""


def answer_format(schema: JsonObject) -> JsonObject | None:
    """The schema of an answer with all objects closed, what cannot be said moved into words.

    Nothing for a schema that would lose a field by that.
    """
    defs = schema.get("$defs", schema.get("definitions"))
    parts = defs if isinstance(defs, Mapping) else {}
    # The vendor has them under one name.
    references = References(lambda reference: parts.get(reference.rpartition("/")[2]))
    try:
        made = _answer_schema(schema, parts, references, ())
    except (_OpenError, RecursionError):
        return None
    if not references.own:
        return made
    listed = made.get("$defs")
    return {**made, "$defs": {**(listed if isinstance(listed, Mapping) else {}), **references.own}}


def _answer_schema(
    schema: JsonValue, defs: JsonObject, references: References, inside: tuple[str, ...]
) -> JsonObject:
    """The form of a part; `inside` are the definitions that it is a part of."""
    if not isinstance(schema, Mapping) or not _REFUSED.isdisjoint(schema):
        raise _OpenError  # `true` allows anything
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.rpartition("/")[2]
        target = defs.get(name)
        if not reference.startswith("#/") or not isinstance(target, Mapping):
            raise _OpenError
        beside = {key: value for key, value in schema.items() if key not in {"$ref", *_MAPS}}
        # The vendor would not read them. A recursive one is written out once.
        if beside and not (inside and references.is_recursive(reference)):
            within = (*inside, name)
            return references.write_out(
                reference, beside, lambda part: _answer_schema(part, defs, references, within)
            )
        told_ref = {"$ref": f"#/$defs/{name}"}
        schema = {**{key: schema[key] for key in _MAPS if key in schema}, **told_ref}
    told: dict[str, Any] = {}
    unsaid: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _MAPS or name in _CHOICES or name == "items":
            told[_NAMES.get(name, name)] = _inner_schemas(name, value, defs, references, inside)
        elif _is_sayable(name, value):
            told[name] = value
        elif name not in _SKIPPED:
            unsaid[name] = value
    if _is_object(schema):
        _check_closed(schema)
        told["additionalProperties"] = False
    return _with_words(told, unsaid)


def _inner_schemas(
    name: str,
    value: JsonValue,
    defs: JsonObject,
    references: References,
    inside: tuple[str, ...],
) -> JsonValue:
    if name in _MAPS and isinstance(value, Mapping):
        within = {key: inside if name == "properties" else (*inside, key) for key in value}
        return {
            key: _answer_schema(inner, defs, references, within[key])
            for key, inner in value.items()
        }
    if name in _CHOICES and isinstance(value, Sequence) and not isinstance(value, str):
        return [_answer_schema(inner, defs, references, inside) for inner in value]
    return _answer_schema(value, defs, references, inside)


def _is_sayable(name: str, value: JsonValue) -> bool:
    if name == "format":
        return value in _FORMATS
    return value in {0, 1} if name == "minItems" else name in _KEPT


def _check_closed(schema: JsonObject) -> None:
    """Refuse an object that may have other keys than it names."""
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping) or (more is not False and "properties" not in schema):
        raise _OpenError


def _is_object(schema: JsonObject) -> bool:
    kind = schema.get("type")
    return kind == "object" or (isinstance(kind, list | tuple) and "object" in kind)


def tool_schema(description: str, schema: JsonObject) -> tuple[str, JsonObject]:
    """A tool's description and schema: without what the vendor refuses at the top.

    The schema of the tool itself is what arguments are checked by.
    """
    plain = without_generated(schema)
    assert isinstance(plain, dict), "a schema of an object stays one"
    choices = {name: plain.pop(name) for name in _CHOICES if name in plain}
    told = {"properties": {}, **plain, "type": "object"}
    return (f"{description}\n\n{dump(choices)}" if choices else description), told


def _with_words(told: dict[str, Any], unsaid: Mapping[str, Any]) -> JsonObject:
    if not unsaid:
        return told
    words = dump(unsaid)
    description = told.get("description")
    return {**told, "description": f"{description}\n\n{words}" if description else words}
