"""Validates values against JSON Schemas in bounded time, whatever the schema (L17, X7).

Simple schemas, whose cost is bounded in advance, are evaluated in this process; others by a worker
process (`client`).
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import first_of, shorten

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
_LONGEST_PATTERN = 200


@frozen
class Pattern:
    """A compiled pattern and its cost bound: about `factor * len(text) ** degree`."""

    compiled: re.Pattern[str]
    degree: int
    factor: int

    def cost(self, text: str) -> int:
        """An upper estimate of the steps of a search, in units of about a microsecond."""
        return 1 + int(len(text) ** self.degree) * self.factor // 50


@lru_cache(maxsize=256)
def bounded_pattern(source: str) -> Pattern | None:
    """The pattern, or `None` if its cost may exceed the square of the text's length.

    Repeats count for themselves, are never nested, and one more is counted where the search may
    start anywhere.
    """
    if len(source) > _LONGEST_PATTERN or any(twin in source for twin in ("--", "&&", "||", "~~")):
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

# Keywords that jsonschema of some draft evaluates and `walk` does not. Keywords of no draft are
# ignored by both.
_BEYOND = frozenset(
    {
        *("additionalItems", "contains", "dependencies", "dependentRequired", "dependentSchemas"),
        *("if", "then", "else", "not", "unevaluatedItems", "unevaluatedProperties", "extends"),
        *("disallow", "divisibleBy", "minContains", "maxContains", "$anchor", "$dynamicAnchor"),
        *("$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary", "$id", "$schema"),
    }
)


class _Beyond(Exception):  # ruff: ignore[error-suffix-on-exception-name] - used for control flow in this module only
    """The schema is not simple."""


def is_bounded(schema: Any) -> bool:
    """Whether a schema is simple."""
    try:
        return _Survey(schema).nodes(schema, 0, root=True) <= _MOST_NODES
    except (_Beyond, RecursionError):
        return False


class _Survey:
    """Counts the nodes of a schema with its references expanded."""

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
        # In the older draft a reference overrides its siblings and `prefixItems` has no meaning.
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
    """Whether the value is shallow enough to be compared cheaply."""
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


Path = tuple[str | int, ...]

_LONGEST = 79
_MOST_CHOICES = 20
_NAME = re.compile(r"[^\W\d][\w-]*\Z")
_BOUNDS: Mapping[str, str] = {
    "minimum": "is less than",
    "maximum": "is more than",
    "exclusiveMinimum": "is not more than",
    "exclusiveMaximum": "is not less than",
    "multipleOf": "is not a multiple of",
}
_SIZES: Mapping[str, tuple[str, str]] = {
    "minLength": ("characters", "at least"),
    "maxLength": ("characters", "at most"),
    "minItems": ("items", "at least"),
    "maxItems": ("items", "at most"),
    "minProperties": ("keys", "at least"),
    "maxProperties": ("keys", "at most"),
}


@frozen
class SchemaProblem:
    """A violation of a schema.

    `path` leads to the invalid value, or to a missing or unknown key. `keyword` is the violated
    schema keyword. `key` is the missing or unknown key; `allowed` are the known keys, types or
    choices.
    """

    path: Path
    message: str
    keyword: str = ""
    key: str | None = None
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{spell_path(self.path)}: {self.message}" if self.path else self.message


TOO_LONG = SchemaProblem((), "schema took too long", "schema")


def spell_path(path: Iterable[str | int]) -> str:
    """A path in text form: `lines[0].text`, `["odd key"].x`."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _NAME.match(step):
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{json.dumps(shorten(step, _LONGEST), ensure_ascii=False)}]")
    return "".join(parts)


def missing(path: Path, key: str) -> SchemaProblem:
    """A required key that is not there."""
    return SchemaProblem((*path, key), "is required", "required", key)


def unknown(path: Path, key: str, allowed: Iterable[str]) -> SchemaProblem:
    """A key that the schema does not have."""
    known = tuple(allowed)
    listed = f"; known here: {_listed(known)}" if known else ""
    return SchemaProblem(
        (*path, key), f"is not a known key{listed}", "additionalProperties", key, known
    )


def ambiguous(path: Path) -> SchemaProblem:
    """A value that matches several branches of `oneOf`."""
    return SchemaProblem(path, "fits more than one form, of which only one is allowed", "oneOf")


def unmet(path: Path, keyword: str, wanted: Any, value: Any, otherwise: str = "") -> SchemaProblem:
    """A value that violates one keyword; `otherwise` is the message for an unknown keyword."""
    allowed: tuple[str, ...] = ()
    if keyword == "type":
        allowed = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        message = f"{show(value)} is not of type {' or '.join(map(repr, allowed))}"
    elif keyword in {"enum", "const"}:
        allowed = tuple(map(show, [wanted] if keyword == "const" else wanted))
        message = f"{show(value)} is not {'one of ' * (len(allowed) != 1)}{_listed(allowed)}"
    elif keyword in _BOUNDS:
        message = f"{show(value)} {_BOUNDS[keyword]} {show(wanted)}"
    elif keyword in _SIZES:
        unit, bound = _SIZES[keyword]
        message = f"has {len(value)} {unit} and may have {bound} {wanted}"
    elif keyword == "pattern":
        message = f"{show(value)} does not match {show(wanted)}"
    elif keyword == "uniqueItems":
        message = "has the same item twice"
    else:
        message = shorten(otherwise, 300)
    return SchemaProblem(path, message, keyword, allowed=allowed)


def nearest(
    branches: Sequence[Sequence[SchemaProblem]], path: Path, value: Any
) -> list[SchemaProblem]:
    """The problems of the branch of `anyOf` or `oneOf` that was probably intended.

    That is the one whose type and constants match, with the fewest problems. If the type matches no
    branch, one problem lists them all.
    """
    if not branches:
        return [SchemaProblem(path, "fits none of the allowed forms", "anyOf")]
    ranked = [(_distance(problems, path, value), problems) for problems in branches]
    best = min(rank for rank, _ in ranked)
    alike = [problems for rank, problems in ranked if rank[0] == best[0]]
    if best[0] == 0 or len(alike) == 1 or any(len(problems) != 1 for problems in alike):
        return list(next(problems for rank, problems in ranked if rank == best))
    return [_none_of([problems[0] for problems in alike], value)]


def show(value: Any) -> str:
    """A value, shortened."""
    if isinstance(value, str):
        return repr(shorten(value, _LONGEST))
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Sequence):
        return "an array"
    return shorten(json.dumps(value), _LONGEST)


def _distance(problems: Sequence[SchemaProblem], path: Path, value: Any) -> tuple[int, int, int]:
    """How far a value is from a branch: type, constants, number of problems."""
    here = [problem for problem in problems if problem.path == path]
    kind = 0
    if any(problem.keyword in {"type", "false"} for problem in here):
        kind = 2
    elif any(problem.keyword in {"enum", "const"} for problem in here):
        choices = [choice for problem in here for choice in problem.allowed]
        kind = 1 if isinstance(value, str) and any(word[0] in "'\"" for word in choices) else 2
    constants = sum(
        problem.keyword in {"enum", "const"} and len(problem.path) == len(path) + 1
        for problem in problems
    )
    return kind, constants, len(problems)


def _none_of(problems: Sequence[SchemaProblem], value: Any) -> SchemaProblem:
    """One problem for a value that has none of several types."""
    types = tuple(dict.fromkeys(a for p in problems if p.keyword == "type" for a in p.allowed))
    choices = tuple(dict.fromkeys(a for p in problems if p.keyword != "type" for a in p.allowed))
    if not choices:
        return unmet(problems[0].path, "type", types, value)
    parts = [_listed(choices)] + [f"of type '{name}'" for name in types]
    message = f"{show(value)} is not {'one of ' * (len(choices) > 1)}{' or '.join(parts)}"
    return replace(problems[0], message=message, keyword="enum", allowed=choices)


def _listed(words: Sequence[str]) -> str:
    return first_of([shorten(word, _LONGEST) for word in words], _MOST_CHOICES)


class TooManyStepsError(Exception):
    """The evaluation needs too many steps to run in this process."""


class Walk:
    """One evaluation; a step takes a few microseconds at most."""

    def __init__(self, schema: Any, steps: int) -> None:
        self._root = schema
        self._steps = steps

    def check(self, schema: Any, value: Any, path: Path = ()) -> list[SchemaProblem]:
        """All problems of `value`, which is at `path`.

        Raises:
            TooManyStepsError: the steps are used up.
        """
        self._spend(1)
        if isinstance(schema, bool):
            return [] if schema else [SchemaProblem(path, "is not allowed", "false")]
        problems: list[SchemaProblem] = []
        if "$ref" in schema:
            problems += self.check(resolve(self._root, schema["$ref"]), value, path)
        if "type" in schema and not is_of_type(value, schema["type"]):
            return [*problems, unmet(path, "type", schema["type"], value)]
        problems += self._of_any_kind(schema, value, path)
        if isinstance(value, str):
            problems += self._string(schema, value, path)
        elif isinstance(value, Mapping):
            problems += self._object(schema, value, path)
        elif isinstance(value, (list, tuple)):
            problems += self._array(schema, value, path)
        elif _is_number(value):
            problems += _number(schema, value, path)
        return problems

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TooManyStepsError

    def _matches(self, source: str, text: str) -> bool:
        pattern = bounded_pattern(source)
        assert pattern is not None, "a simple schema has bounded patterns only"
        self._spend(pattern.cost(text))
        return pattern.compiled.search(text) is not None

    def _is_among(self, choices: Sequence[Any], value: Any) -> bool:
        if isinstance(value, str):  # the fast path; correct only for values of equal type
            self._spend(len(choices) // 50)
            return value in choices
        self._spend(len(choices))
        return any(equal(choice, value) for choice in choices)

    def _of_any_kind(self, schema: Any, value: Any, path: Path) -> Iterator[SchemaProblem]:
        if "enum" in schema and not self._is_among(schema["enum"], value):
            yield unmet(path, "enum", schema["enum"], value)
        if "const" in schema and not equal(schema["const"], value):
            yield unmet(path, "const", schema["const"], value)
        for branch in schema.get("allOf", ()):
            yield from self.check(branch, value, path)
        if "anyOf" in schema:
            yield from self._any_of(schema["anyOf"], value, path)
        if "oneOf" in schema:
            yield from self._one_of(schema["oneOf"], value, path)

    def _any_of(self, branches: Sequence[Any], value: Any, path: Path) -> list[SchemaProblem]:
        failed: list[list[SchemaProblem]] = []
        for branch in branches:
            problems = self.check(branch, value, path)
            if not problems:
                return []
            failed.append(problems)
        return nearest(failed, path, value)

    def _one_of(self, branches: Sequence[Any], value: Any, path: Path) -> list[SchemaProblem]:
        results = [self.check(branch, value, path) for branch in branches]
        fitting = sum(not problems for problems in results)
        if fitting == 1:
            return []
        return [ambiguous(path)] if fitting else nearest(results, path, value)

    def _string(self, schema: Any, value: str, path: Path) -> Iterator[SchemaProblem]:
        yield from _sizes(schema, value, path, "minLength", "maxLength")
        if "pattern" in schema and not self._matches(schema["pattern"], value):
            yield unmet(path, "pattern", schema["pattern"], value)

    def _array(self, schema: Any, value: Sequence[Any], path: Path) -> Iterator[SchemaProblem]:
        yield from _sizes(schema, value, path, "minItems", "maxItems")
        first = schema.get("prefixItems", ())
        for index, (inner, item) in enumerate(zip(first, value, strict=False)):
            yield from self.check(inner, item, (*path, index))
        rest = schema.get("items", True)
        if rest is False and len(value) > len(first):
            yield unmet(path, "maxItems", len(first), value)
        elif rest is not True:
            for index in range(len(first), len(value)):
                yield from self.check(rest, value[index], (*path, index))
        if schema.get("uniqueItems"):
            self._spend(len(value))
            if len({_frozen(item) for item in value}) < len(value):
                yield unmet(path, "uniqueItems", True, value)

    def _object(self, schema: Any, value: Mapping[str, Any], path: Path) -> Iterator[SchemaProblem]:
        yield from _sizes(schema, value, path, "minProperties", "maxProperties")
        for key in schema.get("required", ()):
            if key not in value:
                yield missing(path, key)
        properties = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        others = schema.get("additionalProperties", True)
        names = schema.get("propertyNames", True)
        for key, item in value.items():
            self._spend(1)
            place = (*path, key)
            if names is not True:
                yield from self.check(names, key, place)
            matching = [inner for source, inner in patterns.items() if self._matches(source, key)]
            if key in properties:
                matching.append(properties[key])
            for inner in matching:
                yield from self.check(inner, item, place)
            if not matching and others is False:
                yield unknown(path, key, properties)
            elif not matching and others is not True:
                yield from self.check(others, item, place)


def is_of_type(value: Any, wanted: str | Sequence[str]) -> bool:
    """Whether a value is of one of the JSON types; `1.0` is an integer, `true` no number."""
    return any(_KINDS[name](value) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _is_integer(value: Any) -> bool:
    return value.is_integer() if isinstance(value, float) else _is_number(value)


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, (list, tuple)),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": _is_integer,
    "number": _is_number,
}
_FAILS: Mapping[str, Callable[[Any, Any], Any]] = {
    "minimum": operator.lt,
    "maximum": operator.gt,
    "exclusiveMinimum": operator.le,
    "exclusiveMaximum": operator.ge,
    "multipleOf": operator.mod,
}


def equal(one: Any, two: Any) -> bool:
    """Whether two JSON values are equal; `1` equals `1.0` and not `true`."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(equal, one, two))
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    return bool(one == two)


def _frozen(value: Any) -> Any:
    """A hashable key that is equal for equal values."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, Mapping):
        return ("object", frozenset((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return ("array", tuple(map(_frozen, value)))
    return value


def _sizes(schema: Any, value: Any, path: Path, least: str, most: str) -> Iterator[SchemaProblem]:
    if least in schema and len(value) < schema[least]:
        yield unmet(path, least, schema[least], value)
    if most in schema and len(value) > schema[most]:
        yield unmet(path, most, schema[most], value)


def _number(schema: Any, value: float, path: Path) -> Iterator[SchemaProblem]:
    for word, fails in _FAILS.items():
        if word in schema and fails(value, schema[word]):
            yield unmet(path, word, schema[word], value)


Schema = JsonObject | bool

__all__ = [
    "Schema",
    "SchemaProblem",
    "check",
    "check_any",
    "check_schema",
    "is_simple",
    "spell_path",
]

# A step takes up to 5 microseconds: the event loop is blocked for 50 ms at most (L17).
LOOP_STEPS = 10_000
FILE_STEPS = 1_000_000
_simple: dict[int, tuple[Schema, bool]] = {}
_MOST_REMEMBERED = 512


class Worker(Protocol):
    """Interface for schemas that are not evaluated in this process: a `client.SchemaWorker`."""

    async def check(self, schema: Schema, value: JsonValue) -> tuple[SchemaProblem, ...]:
        """The problems of a value, in bounded time and without blocking."""
        ...


def is_simple(schema: Schema) -> bool:
    """Whether `check` supports the schema; cached for each schema object."""
    known = _simple.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_simple) >= _MOST_REMEMBERED:
            _simple.clear()
        known = _simple[id(schema)] = (schema, is_bounded(schema))
    return known[1]


def check(
    schema: Schema,
    value: JsonValue,
    *,
    steps: int = FILE_STEPS,
    is_ours: bool = False,
) -> tuple[SchemaProblem, ...]:
    """All problems of a value with a simple schema.

    A value too large for the step limit has one problem that says so. `is_ours`: schemas that ship
    with aish are known to be simple, and testing that would take longer than checking a file.

    Raises:
        ValueError: the schema is not simple.
    """
    if not is_ours and not is_simple(schema):
        raise ValueError("this schema is for `check_any`")
    try:
        return tuple(dict.fromkeys(Walk(schema, steps).check(schema, value)))
    except (TooManyStepsError, RecursionError):
        return (TOO_LONG,)


async def check_any(
    schema: Schema,
    value: JsonValue,
    worker: Worker,
) -> tuple[SchemaProblem, ...]:
    """All problems of a value with any schema; an unusable schema is a problem."""
    if is_simple(schema):
        problems = check(schema, value, steps=LOOP_STEPS)
        if problems != (TOO_LONG,):
            return problems
    return await worker.check(schema, value)


def check_schema(schema: Schema) -> tuple[SchemaProblem, ...]:
    """The problems of a schema itself, such as one in a pipeline file."""
    if is_simple(schema):
        return ()
    if not isinstance(schema, Mapping):
        return (SchemaProblem((), "is neither an object nor a boolean", "type"),)
    from jsonschema.validators import Draft202012Validator, validator_for

    try:
        kind = validator_for(schema, default=Draft202012Validator)
        found = kind(kind.META_SCHEMA, format_checker=kind.FORMAT_CHECKER).iter_errors(schema)
        problems = [
            SchemaProblem(tuple(error.absolute_path), error.message[:300], str(error.validator))
            for error in found
        ]
        return tuple(problems or _fetched(schema, ()))
    except RecursionError:
        return (SchemaProblem((), "is nested too deeply", "schema"),)


def _fetched(schema: Any, path: tuple[str | int, ...]) -> list[SchemaProblem]:
    """References that point outside the schema: they would have to be fetched."""
    problems: list[SchemaProblem] = []
    if isinstance(schema, Mapping):
        reference = schema.get("$ref")
        if isinstance(reference, str) and "://" in reference:
            message = "refers to another document, and nothing is fetched"
            problems.append(SchemaProblem((*path, "$ref"), message, "$ref"))
        for key, inner in schema.items():
            problems += _fetched(inner, (*path, key))
    elif isinstance(schema, (list, tuple)):
        for index, inner in enumerate(schema):
            problems += _fetched(inner, (*path, index))
    return problems
