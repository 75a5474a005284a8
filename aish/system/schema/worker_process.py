"""Evaluation of any schema by jsonschema, and the process in which untrusted ones are evaluated.

The process reads lines of JSON, `[schema, value]`, and answers each with a line of problems. It
fetches nothing, and the kernel ends it with SIGPROF when an evaluation takes a second of CPU time
(wall time would depend on what else the machine does).
"""

import contextlib
import json
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache, partial
from itertools import islice, starmap
from typing import Any

from aish.system.schema.check import (
    PYTHON_PATTERN,
    UNCHECKED,
    Path,
    SchemaProblem,
    absence_problem,
    ambiguous,
    is_multiple,
    nearest,
    show,
    unknown,
    unmet,
)

_MOST_PROBLEMS = 20
_CPU_SECONDS = 1.0
_MEMORY = 1 << 30
_BROKEN = "the schema cannot be used: "
_MOST_GROUPS = 200
_DATA = frozenset({"const", "enum", "default", "examples"})
_MAPS = frozenset(
    {"properties", "$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties"}
)
_ANY_KEY = "(?#unchecked)"
# Keywords that fit where something in them does not, or the other way round.
_LOGICAL = (
    *(
        "anyOf",
        "oneOf",
        "not",
        "disallow",
        "if",
        "contains",
        "unevaluatedItems",
        "unevaluatedProperties",
    ),
)
_ESCAPE = re.compile(r"\\(u\{|.)", re.DOTALL)
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
# Escapes that mean the same without Unicode mode, or are only read there.
_COMMON_ESCAPES = frozenset("bBcdDfknrsStuvwWx0123456789")
_REFERENCES = ("$ref", "$dynamicRef")
_unchecked: ContextVar[list[str]] = ContextVar("unchecked patterns")


def main() -> None:
    """Answer until the end of input."""
    evaluate({"pattern": r"\p{L}"}, "")  # load lazy imports now
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    _say([])
    for line in sys.stdin.buffer:
        # The default action ends the process, inside a regular expression too.
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
        _say(_answer(line))
        signal.setitimer(signal.ITIMER_PROF, 0)


def _say(problems: list[SchemaProblem]) -> None:
    rows = [[p.path, p.message, p.keyword, p.key, p.allowed] for p in problems]
    sys.stdout.write(json.dumps(rows) + "\n")
    sys.stdout.flush()


def _answer(line: bytes) -> list[SchemaProblem]:
    try:
        schema, value = json.loads(line)
        return evaluate(schema, value)
    except RecursionError:
        return [SchemaProblem((), "the schema or the value is nested without end", "schema")]
    except MemoryError:
        return [SchemaProblem((), "the schema needs too much memory", "schema")]


def evaluate(schema: Any, value: Any) -> list[SchemaProblem]:
    """The problems of a value, by jsonschema, resolving references within the schema only.

    A pattern that is not one of ECMA-262 is a problem of its own, after those of the value.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, (dict, bool)):
        return [SchemaProblem((), _BROKEN + "it is neither an object nor a boolean", "schema")]
    kind = _dialect(json.dumps(schema))
    unchecked: list[str] = []
    token = _unchecked.set(unchecked)
    try:
        prepared = _prepare_schema(schema, kind, frozenset(_keys(value)))
        validator = _extend_validator(kind)(prepared, registry=Registry())
        errors = list(islice(validator.iter_errors(value), _MOST_PROBLEMS))
    except Unresolvable as error:
        reason = f"it refers to {show(error.ref)}, which is not in it, and nothing is fetched"
        return [SchemaProblem((), _BROKEN + reason, "schema")]
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # ruff: ignore[blind-except] - an invalid schema may raise any exception
        return [SchemaProblem((), _BROKEN + _reason(schema, error), "schema")]
    finally:
        _unchecked.reset(token)
    left = (f"the pattern {show(source)} cannot be checked here" for source in unchecked)
    problems = (*_flat(errors, ()), *(SchemaProblem((), text, UNCHECKED) for text in left))
    return list(dict.fromkeys(problems))


@lru_cache(maxsize=64)
def _dialect(text: str) -> Any:
    """The validator class for a schema: of its label, else of the newest draft it is valid in."""
    from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator
    from jsonschema.validators import validator_for

    schema = json.loads(text)
    label = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(label, str):
        address = label.partition("://")[2]
        none: Any = None
        for form in (label, f"http://{address}", f"https://{address}"):
            if kind := validator_for({"$schema": form}, default=none):
                return kind
    kinds = (Draft202012Validator, Draft7Validator, Draft4Validator)
    valid = (kind for kind in kinds if kind(kind.META_SCHEMA).is_valid(schema))
    return next(valid, Draft202012Validator)


@lru_cache(maxsize=8)
def _extend_validator(kind: Any) -> Any:
    from jsonschema.validators import extend

    words = kind.VALIDATORS
    keywords: dict[str, Keyword] = {
        word: partial(_logical, words[word]) for word in _LOGICAL if word in words
    }
    keywords["patternProperties"] = partial(_pattern_properties, words["patternProperties"])
    keywords["pattern"] = _test_keyword("string", lambda text, source: _fits(source, text))
    keywords["multipleOf"] = _test_keyword("number", is_multiple)
    keywords[PYTHON_PATTERN] = _test_keyword("string", lambda text, source: re.search(source, text))
    extend_class: Any = extend  # which has no types
    return extend_class(kind, keywords)


def _prepare_schema(schema: Any, kind: Any, keys: frozenset[str], *, is_map: bool = False) -> Any:
    """The schema as jsonschema reads it right, without labels of its own dialect.

    Patterns for keys, which jsonschema gives to Python's `re`, list the `keys` that they match.
    """
    if isinstance(schema, list):
        return [_prepare_schema(item, kind, keys) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _DATA and not is_map:
            result[word] = value
        elif word != "$schema" or is_map or _dialect(json.dumps({word: value})) is not kind:
            inner = _prepare_schema(value, kind, keys, is_map=word in _MAPS and not is_map)
            if word == "patternProperties" and not is_map and isinstance(inner, dict):
                inner = dict(starmap(partial(_for_keys, keys), enumerate(inner.items())))
            result[word] = inner
    return result


def _for_keys(keys: frozenset[str], number: int, entry: tuple[str, Any]) -> tuple[str, Any]:
    """An entry of `patternProperties`; one that cannot be checked allows everything."""
    source, schema = entry
    if _regex(source) is None:
        return f"{_ANY_KEY}(?#{number})", {"$comment": source}
    matching = {key for key in keys if _fits(source, key)}
    few = min(matching, keys - matching, key=len)
    names = "|".join(map(re.escape, few)) or "(?!)"
    pattern = rf"(?:{names})\Z" if few is matching else rf"(?!(?:{names})\Z)"
    return f"^{pattern}(?#{number})", schema


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _keys(item)


@lru_cache(maxsize=256)
def _regex(source: str) -> Any:
    """The pattern of ECMA-262, in Unicode mode if it is one there; `None` if it is none at all."""
    from regress import Regex, RegressError

    if source.count("(") > _MOST_GROUPS:
        return None
    forms = [(_ESCAPE.sub(_escape_mark, source), "u")]
    letters = {match[1] for match in _ESCAPE.finditer(source) if match[1].isalnum()}
    if letters <= _COMMON_ESCAPES and r"\u{" not in source:
        forms.append((source, ""))
    for form, flags in forms:
        with contextlib.suppress(RegressError, UnicodeEncodeError):
            return Regex(form, flags)
    return None


def _escape_mark(match: re.Match[str]) -> str:
    """An escaped mark as Unicode mode, which knows those of its syntax only, has it."""
    mark = match[1]
    is_known = len(mark) > 1 or mark in _SYNTAX or (mark.isascii() and mark.isalnum())
    return match[0] if is_known else f"\\u{{{ord(mark):x}}}"


def _fits(source: str, text: str) -> bool:
    """Match a text against a pattern; one that cannot be checked is noted, and fits."""
    if (regex := _regex(source)) is None:
        _unchecked.get().append(source)
        return True
    # Half a surrogate pair is no text to the engine.
    return (
        regex.find(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")) is not None
    )


Keyword = Callable[[Any, Any, Any, Any], Iterable[Any] | None]


def _logical(
    original: Keyword, validator: Any, argument: Any, instance: Any, schema: Any
) -> Iterator[Any]:
    """The errors of a keyword, unless they may be due to a pattern that cannot be checked."""
    unchecked = _unchecked.get()
    before = len(unchecked)
    errors = list(original(validator, argument, instance, schema) or ())
    if len(unchecked) == before:
        yield from errors


def _pattern_properties(
    original: Keyword, validator: Any, patterns: Any, instance: Any, schema: Any
) -> Iterator[Any]:
    if validator.is_type(instance, "object") and instance:
        sources = (inner for key, inner in patterns.items() if key.startswith(_ANY_KEY))
        _unchecked.get().extend(source["$comment"] for source in sources)
    yield from original(validator, patterns, instance, schema) or ()


def _test_keyword(kind: str, test: Callable[[Any, Any], Any]) -> Keyword:
    from jsonschema import ValidationError

    def keyword(validator: Any, argument: Any, instance: Any, _: Any) -> Iterator[Exception]:
        if validator.is_type(instance, kind) and not test(instance, argument):
            yield ValidationError("does not fit")

    return keyword


def schema_problems(schema: Any) -> list[SchemaProblem]:
    """The problems of a schema itself: by its metaschema, then references to nothing in it."""
    from jsonschema import FormatChecker

    kind = _dialect(json.dumps(schema))
    checker = FormatChecker(())
    checker.checks("regex")(lambda text: not isinstance(text, str) or _regex(text) is not None)
    return [
        SchemaProblem(
            tuple(error.absolute_path),
            f"{show(error.instance)} is not a pattern of ECMA-262"
            if error.validator == "format"
            else error.message[:300],
            str(error.validator),
        )
        for error in kind(kind.META_SCHEMA, format_checker=checker).iter_errors(schema)
    ] or list(_unresolvable_references(schema, kind))


def _unresolvable_references(schema: Any, kind: Any) -> Iterator[SchemaProblem]:
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    root = specification_with(kind.ID_OF(kind.META_SCHEMA)).create_resource(schema)
    waiting = [(root, REGISTRY.resolver_with_root(root))]
    while waiting:
        resource, resolver = waiting.pop()
        for word in _REFERENCES if isinstance(resource.contents, dict) else ():
            try:
                if isinstance(reference := resource.contents.get(word), str):
                    resolver.lookup(reference)
            except Unresolvable:
                place = _place(schema, resource.contents) or ()
                message = "refers to nothing in the schema, and nothing is fetched"
                yield SchemaProblem((*place, word), message, word)
        waiting += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def _place(value: Any, target: Any, path: Path = ()) -> Path | None:
    """The path to a part of a value, found by identity."""
    if value is target:
        return path
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    inner = ((key, item) for key, item in entries if isinstance(item, (dict, list)))
    places = (_place(item, target, (*path, key)) for key, item in inner)
    return next((place for place in places if place is not None), None)


def _reason(schema: Any, error: Exception) -> str:
    """Why a schema is invalid, according to the metaschema."""
    with contextlib.suppress(Exception):
        for problem in schema_problems(schema):
            place = "/".join(map(str, problem.path))
            return f"{place}: {problem.message[:200]}" if place else problem.message[:200]
    return f"{type(error).__name__}: {error}"[:200]


def _flat(errors: Iterable[Any], above: Path) -> Iterator[SchemaProblem]:
    for error in errors:
        yield from _problems(error, (*above, *error.relative_path))


def _problems(error: Any, path: Path) -> list[SchemaProblem]:
    """An error of jsonschema in aish's format."""
    word, argument, value = error.validator, error.validator_value, error.instance
    word = "pattern" if word == PYTHON_PATTERN else word
    if word is None or (word == "not" and not argument):
        return [SchemaProblem(path, "is not allowed", "false")]
    if word == "required" and isinstance(value, dict):
        return [absence_problem(path, key) for key in argument if key not in value]
    if word == "additionalProperties" and argument is False:
        return [
            unknown(path, key, error.schema.get("properties", ()))
            for key in _extras(value, error.schema)
        ]
    if word in {"anyOf", "oneOf"} and error.context:
        branches: dict[Any, list[SchemaProblem]] = {}
        for inner in error.context:
            problems = _problems(inner, (*path, *inner.relative_path))
            # A branch that is `false` has an error without a path in the schema.
            branch = inner.relative_schema_path[0] if inner.relative_schema_path else id(inner)
            branches.setdefault(branch, []).extend(problems)
        return nearest(list(branches.values()), path, value)
    if word == "oneOf":
        return [ambiguous(path)]
    if word in {"minimum", "maximum"} and error.schema.get(f"exclusive{word.title()}") is True:
        word = f"exclusive{word.title()}"  # as draft 4 has it
    return [unmet(path, word, argument, value, error.message)]


def _extras(value: Any, schema: Any) -> Iterator[str]:
    patterns = schema.get("patternProperties", ())
    for key in value:
        if key not in schema.get("properties", ()) and not any(re.search(p, key) for p in patterns):
            yield key
