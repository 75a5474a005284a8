"""Validates values against JSON Schemas in bounded time, whatever the schema.

The common keywords are evaluated in this process, in a limited number of steps; any other schema
by jsonschema, in a worker process (`client`). Patterns are those of ECMA-262.
"""

import json
import operator
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern
from aish.core.phrases import and_more, shorten

Path = tuple[str | int, ...]
Schema = JsonObject | bool

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
PYTHON_PATTERN = "aish:python-pattern"
"""Keyword of schemas of ours: a regular expression of Python."""
UNCHECKED = "unchecked"
"""Keyword of a problem that says what could not be checked here."""

_OLD_DIALECT = "json-schema.org/draft-07/schema"
DIALECTS = (_OLD_DIALECT, "json-schema.org/draft/2020-12/schema")

# Keywords that jsonschema of some draft evaluates and `_Walk` does not. Keywords of no draft are
# ignored by both.
BEYOND = frozenset(
    {
        *("additionalItems", "contains", "dependencies", "dependentRequired", "dependentSchemas"),
        *("if", "then", "else", "not", "unevaluatedItems", "unevaluatedProperties", "extends"),
        *("disallow", "divisibleBy", "minContains", "maxContains", "$anchor", "$dynamicAnchor"),
        *("$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary"),
        *("patternProperties", "prefixItems"),
    }
)

LIMITS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("is less than", operator.lt),
    "maximum": ("is more than", operator.gt),
    "exclusiveMinimum": ("is not more than", operator.le),
    "exclusiveMaximum": ("is not less than", operator.ge),
    "multipleOf": ("is not a multiple of", lambda value, factor: not is_multiple(value, factor)),
}
SIZES: Mapping[str, tuple[str, str]] = {
    "minLength": ("characters", "at least"),
    "maxLength": ("characters", "at most"),
    "minItems": ("items", "at least"),
    "maxItems": ("items", "at most"),
    "minProperties": ("keys", "at least"),
    "maxProperties": ("keys", "at most"),
}

_LONGEST = 79
_MOST_CHOICES = 20
_NAME = re.compile(r"[^\W\d][\w-]*\Z")


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


def absence_problem(path: Path, key: str) -> SchemaProblem:
    return SchemaProblem((*path, key), "is required", "required", key)


def unknown(path: Path, key: str, allowed: Iterable[str]) -> SchemaProblem:
    """A key that the schema does not have."""
    known = tuple(allowed)
    listed = f"; known here: {_list_words(known)}" if known else ""
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
        message = f"{show(value)} is not {'one of ' * (len(allowed) != 1)}{_list_words(allowed)}"
    elif keyword in LIMITS:
        message = f"{show(value)} {LIMITS[keyword][0]} {show(wanted)}"
    elif keyword in SIZES:
        unit, bound = SIZES[keyword]
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
    """Rate how far a value is from a branch: type, constants, number of problems."""
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
    """Return a single problem for a value that has none of several types."""
    types = tuple(dict.fromkeys(a for p in problems if p.keyword == "type" for a in p.allowed))
    choices = tuple(dict.fromkeys(a for p in problems if p.keyword != "type" for a in p.allowed))
    if not choices:
        return unmet(problems[0].path, "type", types, value)
    parts = [_list_words(choices)] + [f"of type '{name}'" for name in types]
    message = f"{show(value)} is not {'one of ' * (len(choices) > 1)}{' or '.join(parts)}"
    return replace(problems[0], message=message, keyword="enum", allowed=choices)


def _list_words(words: Sequence[str]) -> str:
    first = ", ".join(shorten(word, _LONGEST) for word in words[:_MOST_CHOICES])
    return first + and_more(len(words) - _MOST_CHOICES)


# Surrogates are left out.
_ESCAPE = r"\\(?:[dDwWsStnrfv]|[^\w\s]|x[0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})"
# The parts of a pattern that mean the same wherever they are: an atom, a repeat, an optional part,
# the start of a group, and a mark.
_TOKEN = lazy_pattern(
    rf"""
      (?P<a> {_ESCAPE} | \. | [^\\\[\](){{}}*+?|^$.] | \[\^?(?:{_ESCAPE}|[^\]\\\[])+\] )
    | (?P<r> [*+] | \{{[0-9]{{1,3}}(?:,[0-9]{{0,3}})?\}} )
    | (?P<o> \? )
    | (?P<g> \((?:\?:)? )
    | (?P<m> [)|^$] )
    """,
    re.VERBOSE,
)
# No group in a group; one with a repeat in it is not optional, and none is repeated.
_FLAT = lazy_pattern(r"(?:a[ro]?|[|^$]|g[a|^$]*\)o?|g(?:a[ro]?|[|^$])*\))*")
_MOST_REPEATS = 2
_MOST_OPTIONAL = 4
_LONGEST_PATTERN = 200
_SPACE = "\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_NO_SPACE = (
    "\0-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
    "\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
)
_IN_CLASS = {r"\s": _SPACE, r"\S": _NO_SPACE}
# `\d` and `\w` are left to `re.ASCII`.
_AS_PYTHON = {
    "$": r"\Z",
    ".": "[^\n\r\u2028\u2029]",
    **{escape: f"[{characters}]" for escape, characters in _IN_CLASS.items()},
}


Pattern = tuple[re.Pattern[str], int, int]
"""A compiled pattern and its cost bound: about `factor * len(text) ** degree`."""


@lru_cache(maxsize=256)
def compile_bounded(source: str, *, is_python: bool = False) -> Pattern | None:
    """The pattern, or `None` if its cost may exceed the square of the text's length.

    Repeats count for themselves, are never nested, and one more is counted where the search may
    start anywhere. `is_python`: the pattern is Python's, and not one of ECMA-262.
    """
    if len(source) > _LONGEST_PATTERN or any(twin in source for twin in ("--", "&&", "||", "~~")):
        return None
    tokens = [(str(match.lastgroup), match[0]) for match in _TOKEN.finditer(source)]
    shape = "".join(text if kind == "m" else kind for kind, text in tokens)
    if "".join(text for _, text in tokens) != source or not _FLAT.fullmatch(shape):
        return None
    exact = [text for kind, text in tokens if kind == "r" and text[0] == "{" and "," not in text]
    degree = (
        shape.count("r") - len(exact) + (shape[:1] != "^" or "|" in re.sub(r"g.*?\)", "", shape))
    )
    if degree > _MOST_REPEATS or shape.count("o") > _MOST_OPTIONAL:
        return None
    translated = "".join(_as_python(text) for _, text in tokens)
    try:
        compiled = re.compile(source) if is_python else re.compile(translated, re.ASCII)
    except re.error:
        return None
    length = len(tokens) + sum(int(text[1:-1]) for text in exact)
    return compiled, degree, 2 ** shape.count("o") * length


def _as_python(token: str) -> str:
    if not token.startswith("["):
        return _AS_PYTHON.get(token, token)
    return re.sub(r"\\.", lambda match: _IN_CLASS.get(match[0], match[0]), token)


def is_of_type(value: Any, wanted: str | Sequence[str]) -> bool:
    """Compare a value with a JSON type; `1.0` is an integer, `true` no number."""
    return any(_KINDS[name](value) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return value.is_integer() if isinstance(value, float) else _is_number(value)


def is_multiple(value: float, factor: float) -> bool:
    """Return true for a multiple of a number, both as decimals as they are written."""
    if isinstance(value, int) and isinstance(factor, int):
        return value % factor == 0
    from decimal import Context, Decimal

    one, two = (Decimal(each if isinstance(each, int) else repr(each)) for each in (value, factor))
    return Context(prec=_MOST_DIGITS, traps=[]).remainder(one, two) == 0


# More than the quotient of the longest number that is read and the smallest one has.
_MOST_DIGITS = 6000
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, (list, tuple)),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": _is_integer,
    "number": _is_number,
}


class _BeyondError(Exception):
    """The schema has a keyword, or a form of one, that the worker has to evaluate."""


def resolve(schema: Any, reference: str) -> Any:
    """The part of a schema that a reference such as `#/$defs/name` leads to, or `None`."""
    if reference[:2] not in {"#", "#/"}:
        return None
    if "%" in reference:
        from urllib.parse import unquote

        reference = unquote(reference)
    part = schema
    for word in reference.split("/")[1:]:
        name = word.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping) and name in part and ("$id" not in part or part is schema):
            part = part[name]
        elif isinstance(part, (list, tuple)) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part


class _TooManyStepsError(Exception):
    """The evaluation needs too many steps to run in this process."""


class _Walk:
    """Evaluation of a schema; a step takes a few microseconds at most."""

    def __init__(self, schema: Any, steps: int) -> None:
        self._root = schema
        self._steps = steps
        self._admitted: set[int] = set()
        self._is_old = False

    def check(self, schema: Any, value: Any, path: Path = ()) -> list[SchemaProblem]:
        """All problems of `value`, which is at `path`.

        Raises:
            _BeyondError: the worker has to evaluate the schema.
            _TooManyStepsError: the steps are used up.
        """
        self._spend(1)
        if isinstance(schema, bool):
            return [] if schema else [SchemaProblem(path, "is not allowed", "false")]
        if id(schema) not in self._admitted:
            self._admit(schema)
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
            raise _TooManyStepsError

    def _admit(self, schema: Any) -> None:
        if not isinstance(schema, Mapping) or not BEYOND.isdisjoint(schema):
            raise _BeyondError
        if not isinstance(schema.get("properties", {}), Mapping):
            raise _BeyondError
        if not isinstance(schema.get("enum", ()), (list, tuple)):
            raise _BeyondError
        if schema is not self._root:
            if "$id" in schema or "$schema" in schema:
                raise _BeyondError
        elif "$schema" in schema:
            dialect = schema["$schema"].rstrip("#").partition("://")[2]
            if dialect not in DIALECTS:
                raise _BeyondError
            self._is_old = dialect == _OLD_DIALECT
        # In the older draft a reference overrides its siblings.
        if self._is_old and "$ref" in schema and len(schema) > 1:
            raise _BeyondError
        self._admitted.add(id(schema))

    def _matches(self, source: str, text: str, *, is_python: bool = False) -> bool:
        pattern = compile_bounded(source, is_python=is_python)
        if pattern is None:
            raise _BeyondError
        compiled, degree, factor = pattern
        # An upper estimate, in units of about a microsecond.
        self._spend(1 + len(text) ** degree * factor // 50)
        return compiled.search(text) is not None

    def _is_among(self, choices: Sequence[Any], value: Any) -> bool:
        self._spend(len(choices) // 5)
        if isinstance(value, str):
            return value in choices
        return any(self._is_equal(choice, value) for choice in choices)

    def _is_equal(self, first: Any, two: Any) -> bool:
        """`1` equals `1.0` and not `true`."""
        self._spend(1)
        if isinstance(first, bool) or isinstance(two, bool):
            return first is two
        if isinstance(first, (list, tuple)) and isinstance(two, (list, tuple)):
            return len(first) == len(two) and all(map(self._is_equal, first, two))
        if isinstance(first, Mapping) and isinstance(two, Mapping):
            return first.keys() == two.keys() and all(
                self._is_equal(first[key], two[key]) for key in first
            )
        return bool(first == two)

    def _hashable(self, value: Any) -> Any:
        """A key that is equal for equal values."""
        self._spend(1)
        if isinstance(value, bool):
            return ("boolean", value)
        if isinstance(value, Mapping):
            return ("object", frozenset((key, self._hashable(item)) for key, item in value.items()))
        if isinstance(value, (list, tuple)):
            return ("array", tuple(map(self._hashable, value)))
        return value

    def _of_any_kind(self, schema: Any, value: Any, path: Path) -> Iterator[SchemaProblem]:
        if "enum" in schema and not self._is_among(schema["enum"], value):
            yield unmet(path, "enum", schema["enum"], value)
        if "const" in schema and not self._is_equal(schema["const"], value):
            yield unmet(path, "const", schema["const"], value)
        for branch in schema.get("allOf", ()):
            yield from self.check(branch, value, path)
        yield from self._branches(schema, "anyOf", value, path)
        yield from self._branches(schema, "oneOf", value, path)

    def _branches(self, schema: Any, word: str, value: Any, path: Path) -> Sequence[SchemaProblem]:
        failed: list[list[SchemaProblem]] = []
        fitting = 0
        for branch in schema.get(word, ()):
            if problems := self.check(branch, value, path):
                failed.append(problems)
            elif word == "anyOf":
                return ()
            else:
                fitting += 1
        if fitting or word not in schema:
            return [ambiguous(path)] if fitting > 1 else ()
        return nearest(failed, path, value)

    def _string(self, schema: Any, value: str, path: Path) -> Iterator[SchemaProblem]:
        yield from _sizes(schema, value, path, "minLength", "maxLength")
        if "pattern" in schema and not self._matches(schema["pattern"], value):
            yield unmet(path, "pattern", schema["pattern"], value)
        pattern = schema.get(PYTHON_PATTERN)
        if pattern is not None and not self._matches(pattern, value, is_python=True):
            yield unmet(path, "pattern", pattern, value)

    def _array(self, schema: Any, value: Sequence[Any], path: Path) -> Iterator[SchemaProblem]:
        yield from _sizes(schema, value, path, "minItems", "maxItems")
        items = schema.get("items", True)
        if items is False and value:
            yield unmet(path, "maxItems", 0, value)
        elif items is not True:
            for index, item in enumerate(value):
                yield from self.check(items, item, (*path, index))
        if schema.get("uniqueItems") and len(set(map(self._hashable, value))) < len(value):
            yield unmet(path, "uniqueItems", True, value)

    def _object(self, schema: Any, value: Mapping[str, Any], path: Path) -> Iterator[SchemaProblem]:
        yield from _sizes(schema, value, path, "minProperties", "maxProperties")
        required = schema.get("required", ())
        self._spend(len(required) // 5)
        for key in required:
            if key not in value:
                yield absence_problem(path, key)
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        names = schema.get("propertyNames", True)
        for key, item in value.items():
            self._spend(1)
            place = (*path, key)
            if names is not True:
                yield from self.check(names, key, place)
            if key in properties:
                yield from self.check(properties[key], item, place)
            elif others is False:
                self._spend(len(properties) // 5)
                yield unknown(path, key, properties)
            elif others is not True:
                yield from self.check(others, item, place)


def _sizes(schema: Any, value: Any, path: Path, least: str, most: str) -> Iterator[SchemaProblem]:
    if least in schema and len(value) < schema[least]:
        yield unmet(path, least, schema[least], value)
    if most in schema and len(value) > schema[most]:
        yield unmet(path, most, schema[most], value)


def _number(schema: Any, value: float, path: Path) -> Iterator[SchemaProblem]:
    for word, (_, fails) in LIMITS.items():
        if word not in schema:
            continue
        if isinstance(schema[word], bool):  # as draft 4 has it
            raise _BeyondError
        if fails(value, schema[word]):
            yield unmet(path, word, schema[word], value)


@frozen
class PlainPart:
    """Required keys of an object, and types of some of its values: these are compared quickly.

    What it does not admit may fit the schema all the same.
    """

    required: frozenset[str]
    types: Mapping[str, type]

    def admits(self, value: JsonObject) -> bool:
        types = self.types
        for key, one in value.items():
            if types.get(key) is not type(one):
                return False
        return self.required <= value.keys()


_PLAIN_TYPES: Mapping[JsonValue, type] = {"string": str, "integer": int, "boolean": bool}
_PLAIN_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_PLAIN_VALUE = frozenset({"type", "description", "default"})


def plain_part(schema: JsonObject) -> PlainPart:
    """The part of a schema that needs no evaluation for each value."""
    types: dict[str, type] = {}
    if schema.keys() <= _PLAIN_OBJECT and schema.get("type") == "object":
        properties = schema.get("properties")
        for key, one in properties.items() if isinstance(properties, Mapping) else ():
            if not isinstance(one, Mapping) or not one.keys() <= _PLAIN_VALUE:
                continue
            if isinstance(word := one.get("type"), str) and word in _PLAIN_TYPES:
                types[key] = _PLAIN_TYPES[word]
    required = schema.get("required")
    names = required if isinstance(required, list | tuple) else ()
    # Without a plain property no value is admitted, an empty one neither.
    return PlainPart(frozenset(map(str, names)) if types else frozenset({""}), types)


# A step takes up to 5 microseconds: the event loop is blocked for 50 ms at most.
LOOP_STEPS = 10_000
FILE_STEPS = 1_000_000
_MALFORMED = (TypeError, ValueError, KeyError, AttributeError, ArithmeticError)
"""What a keyword whose value has a wrong form may raise."""


CheckElsewhere = Callable[[Schema, JsonValue], Awaitable[tuple[SchemaProblem, ...]]]
"""Check a value in bounded time and without blocking: the method of a `client.SchemaWorker`."""


def check_here(
    schema: Schema, value: JsonValue, *, steps: int = FILE_STEPS
) -> tuple[SchemaProblem, ...] | None:
    """All problems of a value; `None` if only the worker can evaluate the schema.

    A value too large for the step limit has one problem that says so.
    """
    try:
        return tuple(dict.fromkeys(_Walk(schema, steps).check(schema, value)))
    except (_TooManyStepsError, RecursionError):
        return (TOO_LONG,)
    except (_BeyondError, *_MALFORMED):
        return None


def check(schema: Schema, value: JsonValue) -> tuple[SchemaProblem, ...]:
    """All problems of a value with a schema of ours, of common keywords only.

    Raises:
        ValueError: the schema has others.
    """
    problems = check_here(schema, value)
    if problems is None:
        raise ValueError("this schema is for `check_any`")
    return problems


async def check_any(
    schema: Schema, value: JsonValue, check_elsewhere: CheckElsewhere
) -> tuple[SchemaProblem, ...]:
    """All problems of a value with any schema; an unusable schema is a problem."""
    problems = check_here(schema, value, steps=LOOP_STEPS)
    if problems is None or problems == (TOO_LONG,):
        return await check_elsewhere(schema, value)
    return problems
