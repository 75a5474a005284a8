"""A text of the command line or of a table as the value that a JSON Schema wants."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aish.config.documents import parse_json
from aish.config.yaml_tree import parse_yaml, to_data
from aish.core.json import JsonValue
from aish.system.schema.check import check, resolve

_OPTION = "-i"
_TYPES = ("null", "boolean", "integer", "number", "array", "object", "string")
_ALL = frozenset(_TYPES)
_TEXT = frozenset({"string"})
_DEEPEST = 64


def as_typed(text: str, schema: Any, root: Any = None, *, untyped: bool = False) -> JsonValue:
    """A text converted to a type that the schema allows: a number, a list, or the text.

    Where a text is allowed too, only JSON is anything else. `root` has the definitions that the
    schema refers to. A schema that names no type gets the text, or with `untyped` JSON as well.
    """
    rules = _Allowed(schema if root is None else root)
    types = rules.types(schema)
    if text in rules.texts or not types - _TEXT or (types == _ALL and not untyped):
        return text
    try:
        value = parse_json(text) if "string" in types else _parse_value(text)
    except ValueError:
        return text
    return text if "string" in types and not types.intersection(_types_of(value)) else value


def takes_text(schema: Any) -> bool:
    """Return true if the schema's types and choices allow a text as the value."""
    rules = _Allowed(schema)
    types = rules.types(schema)
    return "" in rules.texts if rules.chooses else "string" in types


def argument_schema(schema: Any, name: str) -> Any:
    """The schema of a key, taken from a schema of objects and with the same root."""
    parts = list(_of_key(schema, name, schema, set()))
    return {"anyOf": parts} if parts else True


def _of_key(schema: Any, name: str, root: Any, known: set[str], depth: int = 0) -> Iterator[Any]:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if isinstance(properties, Mapping) and name in properties:
        yield properties[name]
    elif isinstance(others, Mapping):
        yield others
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in known:
        known.add(reference)
        yield from _of_key(resolve(root, reference), name, root, known, depth + 1)
    for word in ("allOf", "anyOf", "oneOf"):
        for branch in _items_of(schema, word):
            yield from _of_key(branch, name, root, known, depth + 1)


class _Allowed:
    """The types that a schema allows; meanwhile gathers the `texts` among its choices."""

    def __init__(self, root: Any) -> None:
        self.texts: set[str] = set()
        self.chooses = False
        self._root = root
        self._known: dict[str, frozenset[str]] = {}

    def types(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """The names of the types; with `number` always `integer` too."""
        if not isinstance(schema, Mapping):
            return frozenset() if schema is False else _ALL
        if depth > _DEEPEST:
            return _ALL
        named = schema.get("type")
        names = [named] if isinstance(named, str) else _items_of(schema, "type")
        types = frozenset(names) & _ALL or _ALL
        types |= {"integer"} if "number" in types else set()
        choices = [schema["const"]] if "const" in schema else _items_of(schema, "enum")
        if choices:
            self.chooses = True
            self.texts.update(choice for choice in choices if isinstance(choice, str))
            types &= {name for choice in choices for name in _types_of(choice)}
        if isinstance(reference := schema.get("$ref"), str):
            types &= self._types_at(reference, depth)
        for branch in _items_of(schema, "allOf"):
            types &= self.types(branch, depth + 1)
        for word in ("anyOf", "oneOf"):
            if branches := _items_of(schema, word):
                types &= frozenset().union(*(self.types(one, depth + 1) for one in branches))
        return types

    def _types_at(self, reference: str, depth: int) -> frozenset[str]:
        # A schema that refers to itself allows by that nothing more.
        if reference not in self._known:
            self._known[reference] = frozenset()
            self._known[reference] = self.types(resolve(self._root, reference), depth + 1)
        return self._known[reference]


def _items_of(schema: Mapping[str, Any], word: str) -> Sequence[Any]:
    items = schema.get(word)
    return items if isinstance(items, Sequence) and not isinstance(items, str) else ()


def _types_of(value: JsonValue) -> list[str]:
    return [name for name in _TYPES if not check({"type": name}, value)]


def _parse_value(text: str) -> JsonValue:
    # JSON is tried first: a large list in YAML takes minutes.
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return parse_json(text)
        except json.JSONDecodeError:
            pass
    parsed = parse_yaml(text, _OPTION)
    if parsed.problems or parsed.root is None:
        raise ValueError(text)
    return to_data(parsed.root)
