"""JSON Schemas in the subset that `/responses` enforces, and those of tools without oddities.

An answer is checked against the whole schema anyway: what the subset lacks is told in words.
"""

from collections.abc import Mapping
from typing import Any, Final

from aish.core.json import JsonObject
from aish.wire.json_text import dump

_KEPT: Final = frozenset(
    {
        "type", "enum", "const", "title", "description", "pattern", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
    }
)  # fmt: skip
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
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
    try:
        strict = _Subset(schema).convert(schema, ())
    except (_NotExpressibleError, RecursionError):
        return None
    return strict if strict.get("type") == "object" else None


class _Subset:
    def __init__(self, root: JsonObject) -> None:
        self._root = root

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
        if schema.get("format") in _FORMATS:
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
        target = self._target(reference)
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        if not beside or reference in path or self._comes_back(target, reference):
            return {"$ref": reference}
        made = self.convert({**target, **beside}, (*path, reference))
        return dict(made)

    def _target(self, reference: Any) -> Mapping[str, Any]:
        found: Any = self._root
        if reference != "#":
            parts = reference.split("/") if isinstance(reference, str) else []
            if len(parts) != len(("#", "$defs", "name")) or parts[1] not in _DEFINITIONS:
                raise _NotExpressibleError
            for part in parts[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise _NotExpressibleError
        return found

    def _comes_back(self, target: Any, reference: str) -> bool:
        """Return true if what a reference leads to leads to it again."""
        seen, waiting = {reference}, [target]
        while waiting:
            part = waiting.pop()
            if isinstance(part, Mapping):
                inner = part.get("$ref")
                if inner in {reference, "#"}:
                    return True
                if isinstance(inner, str) and inner not in seen:
                    seen.add(inner)
                    waiting.append(self._target(inner))
                waiting.extend(part.values())
            elif isinstance(part, list | tuple):
                waiting.extend(part)
        return False


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
        if name not in _KEPT | _READ | _DROPPED or (name == "format" and value not in _FORMATS)
    }
    if lacking:
        words = "; ".join(f"{name}: {dump(value)}" for name, value in lacking.items())
        said = made.get("description")
        made["description"] = f"{said} ({words})" if isinstance(said, str) and said else words
    return made


# Above this, numbers in JSON are not exact any more, and servers refuse some of them.
_HUGE: Final = 2**53
_BOUNDS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "maxLength", "maxItems"}
)


def to_tool_schema(schema: JsonObject) -> dict[str, Any]:
    """The schema of a tool's arguments, without what generators add and servers refuse."""
    made: dict[str, Any] = _without_huge(schema)
    made.pop("$schema", None)
    # Some endpoints refuse a request for a schema of an object without it.
    return {"properties": {}, **made} if made.get("type", "object") == "object" else made


def _without_huge(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {
            name: _without_huge(value)
            for name, value in part.items()
            if not (name in _BOUNDS and _is_huge(value))
        }
    return [_without_huge(inner) for inner in part] if isinstance(part, list | tuple) else part


def _is_huge(value: Any) -> bool:
    return isinstance(value, int | float) and not -_HUGE < value < _HUGE
