"""Checks a value against a simple schema, in at most a given number of steps.

Agrees with jsonschema on which values fit (a test compares them); says less than it where one
problem explains the rest, such as a wrong type.

What is wrong with a value, in words that a model and a person can act on.

Shared by the checker in this process and the one in the worker, so that both speak alike.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aish.core.frozen import frozen
from aish.system.schema.subset import bounded_pattern, resolve

Path = tuple[str | int, ...]

_LONGEST = 80
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
    """One way in which a value does not fit its schema.

    `path` leads to what is wrong, to a missing or unknown key too. `keyword` is the schema's word
    that was not met. `key` is the missing or unknown key; `allowed` are the known keys, the types
    or the choices there would have been.
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
    """A path as it would be written: `lines[0].text`, `["odd key"].x`."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _NAME.match(step):
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{json.dumps(_cut(step), ensure_ascii=False)}]")
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
    """A value that fits several forms of `oneOf`."""
    return SchemaProblem(path, "fits more than one form, of which only one is allowed", "oneOf")


def unmet(path: Path, keyword: str, wanted: Any, value: Any, otherwise: str = "") -> SchemaProblem:
    """A value that does not meet one keyword; `otherwise` is said of a keyword unknown here."""
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
        message = _cut(otherwise, 300)
    return SchemaProblem(path, message, keyword, allowed=allowed)


def nearest(
    branches: Sequence[Sequence[SchemaProblem]], path: Path, value: Any
) -> list[SchemaProblem]:
    """The problems of the branch of `anyOf` or `oneOf` that the value was probably meant for.

    That is the one whose type fits, whose constants fit, and which has the fewest problems. Where
    the value is of no branch's kind, one problem names them all.
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
    """A value in a few characters."""
    if isinstance(value, str):
        return repr(_cut(value))
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Sequence):
        return "an array"
    return _cut(json.dumps(value))


def _distance(problems: Sequence[SchemaProblem], path: Path, value: Any) -> tuple[int, int, int]:
    """How far a value is from a branch: its kind, its constants, all its problems."""
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
    """One problem for a value that is of none of several kinds."""
    types = tuple(dict.fromkeys(a for p in problems if p.keyword == "type" for a in p.allowed))
    choices = tuple(dict.fromkeys(a for p in problems if p.keyword != "type" for a in p.allowed))
    if not choices:
        return unmet(problems[0].path, "type", types, value)
    parts = [_listed(choices)] + [f"of type '{name}'" for name in types]
    message = f"{show(value)} is not {'one of ' * (len(choices) > 1)}{' or '.join(parts)}"
    return replace(problems[0], message=message, keyword="enum", allowed=choices)


def _listed(words: Sequence[str]) -> str:
    shown = ", ".join(_cut(word) for word in words[:_MOST_CHOICES])
    return f"{shown} and {len(words) - _MOST_CHOICES} more" if len(words) > _MOST_CHOICES else shown


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


class TooManyStepsError(Exception):
    """The evaluation is longer than it may be where it cannot be stopped."""


class Walk:
    """One evaluation; a step takes a few microseconds at most."""

    def __init__(self, schema: Any, steps: int) -> None:
        self._root = schema
        self._steps = steps

    def check(self, schema: Any, value: Any, path: Path = ()) -> list[SchemaProblem]:
        """All problems of `value`, which stands at `path`.

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
        if isinstance(value, str):  # the quick way, and right for what equals its own kind only
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
    """Whether two JSON values are the same; `1` is `1.0` and not `true`."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(equal, one, two))
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    return bool(one == two)


def _frozen(value: Any) -> Any:
    """A key that is the same for values that are the same."""
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
