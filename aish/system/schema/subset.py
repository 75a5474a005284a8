"""Which schemas are simple: those whose evaluation is bounded before it begins (X7).

A simple schema has only the keywords of `walk`, in the shapes they should have, refers
only to its own definitions and never to itself, and is small with its references written out.
Anything else is for the worker process, so that doubt costs time and not safety.

Patterns whose cost can be foretold, so that they may run where they cannot be stopped (X7).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from aish.core.frozen import frozen

_TOKEN = re.compile(
    r"""
      (?P<open>\((?:\?:)?)
    | (?P<close>\))
    | (?P<bar>\|)
    | (?P<anchor>[\^$])
    | (?P<atom>
          \\[dDwWsS]                       # a class
        | \\[^\w\s]                        # an escaped mark
        | \[\^?(?:\\[^\W\d_bB]|\\[^\w\s]|[^\]\\\[])+\]
        | \.
        | [^\\\[\](){}*+?|^$.]             # a letter that means itself
      )
    | (?P<repeat>\*|\+|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})
    | (?P<optional>\?)
    """,
    re.VERBOSE,
)
_MOST_REPEATS = 2
_MOST_OPTIONAL = 4
_LONGEST = 200


@frozen
class Pattern:
    """A compiled pattern and what it may cost: about `factor * len(text) ** degree`."""

    compiled: re.Pattern[str]
    degree: int
    factor: int

    def cost(self, text: str) -> int:
        """An upper estimate of the steps of a search, in units of about a microsecond."""
        return 1 + int(len(text) ** self.degree) * self.factor // 50


@lru_cache(maxsize=256)
def bounded_pattern(source: str) -> Pattern | None:
    """The pattern, or `None` where it may cost more than the square of the text's length.

    Repeats count for themselves, are never nested, and one more is counted where the search may
    start anywhere.
    """
    if len(source) > _LONGEST or any(twin in source for twin in ("--", "&&", "||", "~~")):
        return None
    tokens = _tokens(source)
    if tokens is None:
        return None
    repeats = sum(kind == "repeat" and not _is_exact(text) for kind, text in tokens)
    optional = sum(kind == "optional" for kind, _ in tokens)
    anchored = bool(tokens) and tokens[0][1] == "^" and not _has_top_level_bar(tokens)
    degree = repeats + (not anchored)
    if degree > _MOST_REPEATS or optional > _MOST_OPTIONAL or not _is_flat(tokens):
        return None
    fixed = sum(int(text[1:-1]) for kind, text in tokens if kind == "repeat" and _is_exact(text))
    try:
        compiled = re.compile(source)
    except re.error:
        return None
    return Pattern(compiled, degree, 2**optional * (len(tokens) + fixed))


def _tokens(source: str) -> list[tuple[str, str]] | None:
    tokens: list[tuple[str, str]] = []
    place = 0
    while place < len(source):
        found = _TOKEN.match(source, place)
        if found is None or found.lastgroup is None:
            return None
        tokens.append((found.lastgroup, found[0]))
        place = found.end()
    return tokens


def _is_exact(repeat: str) -> bool:
    return repeat.startswith("{") and "," not in repeat


def _has_top_level_bar(tokens: list[tuple[str, str]]) -> bool:
    depth = 0
    for kind, _ in tokens:
        depth += _DEPTHS.get(kind, 0)
        if kind == "bar" and depth == 0:
            return True
    return False


_DEPTHS: Mapping[str, int] = {"open": 1, "close": -1}


def _is_flat(tokens: list[tuple[str, str]]) -> bool:
    """No group in a group; a group with a repeat in it is not repeated, nor is any but by `?`."""
    inside = repeated = False
    before = ""
    for kind, _ in tokens:
        if kind == "open":
            if inside:
                return False
            inside, repeated = True, False
        elif kind == "close":
            inside = False
        elif kind in {"repeat", "optional"}:
            if before not in {"atom", "close"}:
                return False
            if before == "close" and (kind == "repeat" or repeated):
                return False
            repeated = True
        before = kind
    return True


TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

_MOST_NODES = 5000
_DEEPEST = 40
_DEEPEST_CONSTANT = 4
_EXACT = 2**53
_DIALECTS = (
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
_OLD_DIALECT = _DIALECTS[0]

# Words that jsonschema of some draft acts upon and `walk` does not. What is in no draft
# is ignored by both.
_BEYOND = frozenset(
    {
        *("additionalItems", "contains", "dependencies", "dependentRequired", "dependentSchemas"),
        *("if", "then", "else", "not", "unevaluatedItems", "unevaluatedProperties", "extends"),
        *("disallow", "divisibleBy", "minContains", "maxContains", "$anchor", "$dynamicAnchor"),
        *("$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary", "$id", "$schema"),
    }
)


class _Beyond(Exception):  # ruff: ignore[error-suffix-on-exception-name] - a signal, never seen outside
    """The schema is not simple."""


def is_bounded(schema: Any) -> bool:
    """Whether a schema is simple."""
    try:
        return _Survey(schema).nodes(schema, 0, root=True) <= _MOST_NODES
    except (_Beyond, RecursionError):
        return False


class _Survey:
    """Counts the nodes of a schema with its references written out."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._known: dict[str, int] = {}
        self._open: set[str] = set()
        self._visited = 0
        dialect = schema.get("$schema") if isinstance(schema, Mapping) else None
        self._old = isinstance(dialect, str) and dialect.rstrip("#") == _OLD_DIALECT

    def nodes(self, schema: Any, depth: int, *, root: bool = False) -> int:
        if isinstance(schema, bool):
            return 1
        self._visited += 1
        if not isinstance(schema, Mapping) or depth > _DEEPEST or self._visited > _MOST_NODES:
            raise _Beyond
        if not root and not _BEYOND.isdisjoint(schema):
            raise _Beyond
        if root and not (_BEYOND - {"$id", "$schema"}).isdisjoint(schema):
            raise _Beyond
        self._check_dialect(schema)
        _check_shapes(schema)
        count = 1 + len(schema.get("enum", ())) // 20
        for child in _children(schema):
            count += self.nodes(child, depth + 1)
        if "$ref" in schema:
            count += self._reference(schema["$ref"], depth)
        return count

    def _check_dialect(self, schema: Mapping[str, Any]) -> None:
        dialect = schema.get("$schema", _DIALECTS[1])
        if not isinstance(dialect, str) or dialect.rstrip("#") not in _DIALECTS:
            raise _Beyond
        # In the older draft a reference hides its neighbours and `prefixItems` means nothing.
        if self._old and ("prefixItems" in schema or ("$ref" in schema and len(schema) > 1)):
            raise _Beyond

    def _reference(self, reference: Any, depth: int) -> int:
        if not isinstance(reference, str) or reference in self._open:
            raise _Beyond
        if reference not in self._known:
            target = resolve(self._schema, reference)
            if target is None:
                raise _Beyond
            self._open.add(reference)
            self._known[reference] = self.nodes(target, depth + 1)
            self._open.discard(reference)
        return self._known[reference]


def resolve(schema: Any, reference: str) -> Any:
    """The definition `#/$defs/name` stands for, or `None`."""
    start, _, name = reference.rpartition("/")
    if start not in {"#/$defs", "#/definitions"} or "%" in name or "~" in name:
        return None
    definitions = schema.get(start[2:])
    return definitions.get(name) if isinstance(definitions, Mapping) else None


def _children(schema: Mapping[str, Any]) -> Iterator[Any]:
    for word in ("properties", "patternProperties"):
        yield from schema.get(word, {}).values()
    for word in ("allOf", "anyOf", "oneOf", "prefixItems"):
        yield from schema.get(word, ())
    for word in ("items", "additionalProperties", "propertyNames"):
        if word in schema:
            yield schema[word]


def _check_shapes(schema: Mapping[str, Any]) -> None:
    for word, value in schema.items():
        fits = _SHAPES.get(word)
        if fits is not None and not fits(value):
            raise _Beyond


def _is_type(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return _is_list(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value)


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_pattern_map(value: Any) -> bool:
    return _is_map(value) and all(bounded_pattern(key) for key in value)


def _is_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_constant(value: Any, depth: int = 0) -> bool:
    """Nothing so deep that comparing it could cost much."""
    if isinstance(value, (Mapping, list, tuple)):
        inner = value.values() if isinstance(value, Mapping) else value
        return depth < _DEEPEST_CONSTANT and all(_is_constant(item, depth + 1) for item in inner)
    return True


_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": lambda value: _is_list(value) and _is_constant(value),
    "const": _is_constant,
    "properties": _is_map,
    "patternProperties": _is_pattern_map,
    "$defs": _is_map,
    "definitions": _is_map,
    "required": _is_names,
    "allOf": _is_list,
    "anyOf": _is_list,
    "oneOf": _is_list,
    "prefixItems": _is_list,
    "pattern": lambda value: isinstance(value, str) and bounded_pattern(value) is not None,
    "multipleOf": lambda value: _is_count(value) and 0 < value < _EXACT,
    "uniqueItems": lambda value: isinstance(value, bool),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties"), _is_count),
}
