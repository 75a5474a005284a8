"""JSON Schemas in the subset that `/responses` enforces, and those of tools without oddities.

An answer is checked against the whole schema anyway: what the subset lacks is told in words.
"""

from collections.abc import Mapping
from typing import Any, Final

from aish.core.json import JsonObject
from aish.wire.json_text import dump
from aish.wire.schema_subset import FORMATS, References, without_generated

_KEPT: Final = frozenset(
    {
        "type", "enum", "const", "title", "description", "pattern", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
    }
)  # fmt: skip
_DROPPED: Final = frozenset({"$schema", "$id", "$comment", "$anchor", "examples", "deprecated"})
_READ: Final = frozenset(
    {"properties", "required", "additionalProperties", "items", "anyOf", "oneOf", "$ref",
     "$defs", "definitions", "format"}
)  # fmt: skip
# Without these an answer would have another shape, so that words are no substitute.
_SHAPES: Final = frozenset(
    {"patternProperties", "prefixItems", "allOf", "$dynamicRef", "unevaluatedProperties"}
)
_DEFINITIONS: Final = ("$defs", "definitions")
_NULL: Final = {"type": "null"}
_DEEPEST: Final = 100


class _NotExpressibleError(Exception):
    """The subset has no form for a schema."""


def to_strict(schema: JsonObject) -> dict[str, Any] | None:
    """The schema with closed objects that require all properties; `None` if there is no such form.

    A property that may be missing is one that may be null.
    """
    subset = _Subset(schema)
    try:
        strict = subset.convert(schema, ())
    except (_NotExpressibleError, RecursionError):
        return None
    if own := subset.references.own:
        strict["$defs"] = {**strict.get("$defs", {}), **own}
    return strict if strict.get("type") == "object" else None


class _Subset:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self.references = References(self._find)

    def convert(self, schema: Any, path: tuple[str, ...], *, nullable: bool = False) -> Any:
        """The form of a part; `path` are the references that are being written out."""
        if not isinstance(schema, Mapping) or len(path) > _DEEPEST:
            raise _NotExpressibleError
        make = self._write_out if "$ref" in schema else self._plain
        made = make(schema, path)
        if not nullable or _takes_null(made):
            return made
        return {"anyOf": [made, _NULL]}

    def _plain(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        if not _SHAPES.isdisjoint(schema):
            raise _NotExpressibleError
        made = {name: value for name, value in schema.items() if name in _KEPT}
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            made["type"] = kind or "object"
            made |= self._object(schema, path)
        elif isinstance(kind, list | tuple) and "object" in kind:
            raise _NotExpressibleError
        if kind == "array" or "items" in schema:
            made["items"] = self.convert(schema.get("items"), path)
        for name in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(name), list | tuple):
                made["anyOf"] = [self.convert(option, path) for option in options]
        if not {"type", "anyOf", "enum", "const"} & made.keys():
            raise _NotExpressibleError
        if schema.get("format") in FORMATS:
            made["format"] = schema["format"]
        if schema is self._root:
            made |= self._definitions()
        return _with_words(made, schema)

    def _definitions(self) -> dict[str, Any]:
        return {
            name: {key: self.convert(part, (f"#/{name}/{key}",)) for key, part in parts.items()}
            for name in _DEFINITIONS
            if isinstance(parts := self._root.get(name), Mapping)
        }

    def _object(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        properties, more = schema.get("properties"), schema.get("additionalProperties")
        # An object of any names cannot be closed: its fields would be lost.
        if isinstance(more, Mapping) or (not properties and more is not False):
            raise _NotExpressibleError
        if not isinstance(properties or {}, Mapping):
            raise _NotExpressibleError
        required = schema.get("required")
        listed = required if isinstance(required, list | tuple) else ()
        made = {
            name: self.convert(part, path, nullable=name not in listed)
            for name, part in (properties or {}).items()
        }
        return {"properties": made, "required": list(made), "additionalProperties": False}

    def _write_out(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Keep a lone reference, and write out one with something beside it.

        A recursive one stays, without what stands beside it.
        """
        reference = schema["$ref"]
        if not isinstance(reference, str) or not isinstance(self._find(reference), Mapping):
            raise _NotExpressibleError
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        if not beside or self.references.is_recursive(reference):
            return {"$ref": reference}

        def convert(merged: Any) -> Any:
            return self.convert(merged, (*path, reference))

        return self.references.write_out(reference, beside, convert)

    def _find(self, reference: str) -> Any:
        """The root or the definition there that a reference leads to, if it is one."""
        if reference == "#":
            return self._root
        parts = reference.split("/")
        if len(parts) != len(("#", "$defs", "name")) or parts[1] not in _DEFINITIONS:
            return None
        found: Any = self._root
        for part in parts[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def _takes_null(made: Mapping[str, Any]) -> bool:
    kind = made.get("type")
    if kind == "null" or (isinstance(kind, list | tuple) and "null" in kind):
        return "enum" not in made or None in made["enum"]
    if "anyOf" in made:
        return any(_takes_null(option) for option in made["anyOf"])
    return kind is None and "enum" in made and None in made["enum"]


def _with_words(made: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The form with a description of what it lacks."""
    lacking = {
        name: value
        for name, value in schema.items()
        if name not in _KEPT | _READ | _DROPPED or (name == "format" and value not in FORMATS)
    }
    if lacking:
        words = "; ".join(f"{name}: {dump(value)}" for name, value in lacking.items())
        said = made.get("description")
        made["description"] = f"{said} ({words})" if isinstance(said, str) and said else words
    return made


def to_tool_schema(schema: JsonObject) -> JsonObject:
    """The schema of a tool's arguments, without what generators add and servers refuse."""
    made = without_generated(schema)
    assert isinstance(made, dict), "a schema of an object stays one"
    # Some endpoints refuse a request for a schema of an object without it.
    return {"properties": {}, **made} if made.get("type", "object") == "object" else made
