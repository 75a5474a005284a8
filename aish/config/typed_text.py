"""A text of the command line or of a table as the value that a JSON Schema wants (F9)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from aish.config.documents import parse_json
from aish.config.yaml_tree import parse_yaml, to_data
from aish.core.json import JsonValue
from aish.system.schema.check import check

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
    found = _Allowed(schema if root is None else root)
    types = found.types(schema)
    if text in found.texts or not types - _TEXT or (types == _ALL and not untyped):
        return text
    try:
        value = parse_json(text) if "string" in types else _parsed_value(text)
    except ValueError:
        return text
    return text if "string" in types and not types.intersection(_types_of(value)) else value


def takes_text(schema: Any) -> bool:
    """Whether the schema's types and choices allow a text as the value."""
    found = _Allowed(schema)
    types = found.types(schema)
    return "" in found.texts if found.chooses else "string" in types


def argument_schema(schema: Any, name: str) -> Any:
    """What a schema of objects says of one of their keys, as a schema with the same root."""
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
        yield from _of_key(_target(root, reference), name, root, known, depth + 1)
    for word in ("allOf", "anyOf", "oneOf"):
        for branch in _listed(schema, word):
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
        names = [named] if isinstance(named, str) else _listed(schema, "type")
        found = frozenset(names) & _ALL or _ALL
        found |= {"integer"} if "number" in found else set()
        choices = [schema["const"]] if "const" in schema else _listed(schema, "enum")
        if choices:
            self.chooses = True
            self.texts.update(one for one in choices if isinstance(one, str))
            found &= {name for one in choices for name in _types_of(one)}
        if isinstance(reference := schema.get("$ref"), str):
            found &= self._referred(reference, depth)
        for branch in _listed(schema, "allOf"):
            found &= self.types(branch, depth + 1)
        for word in ("anyOf", "oneOf"):
            if branches := _listed(schema, word):
                found &= frozenset().union(*(self.types(one, depth + 1) for one in branches))
        return found

    def _referred(self, reference: str, depth: int) -> frozenset[str]:
        # A schema that refers to itself allows by that nothing more.
        if reference not in self._known:
            self._known[reference] = frozenset()
            self._known[reference] = self.types(_target(self._root, reference), depth + 1)
        return self._known[reference]


def _target(root: Any, reference: str) -> Any:
    """What a reference within the schema stands for; any other allows everything."""
    if not reference.startswith("#"):
        return True
    for word in unquote(reference[1:]).split("/")[1:]:
        name = word.replace("~1", "/").replace("~0", "~")
        if isinstance(root, Mapping) and name in root:
            root = root[name]
        elif isinstance(root, Sequence) and name.isdecimal() and int(name) < len(root):
            root = root[int(name)]
        else:
            return True
    return root


def _listed(schema: Mapping[str, Any], word: str) -> Sequence[Any]:
    found = schema.get(word)
    return found if isinstance(found, Sequence) and not isinstance(found, str) else ()


def _types_of(value: JsonValue) -> list[str]:
    return [name for name in _TYPES if not check({"type": name}, value)]


def _parsed_value(text: str) -> JsonValue:
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
