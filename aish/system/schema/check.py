"""Does a value fit a JSON Schema? Answered without ever being stopped by the schema (L17, X7).

Simple schemas are checked here, in a bounded number of steps. Every other is sent to a worker
process (`client`), which has a second and is then killed. Nothing is ever fetched.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from aish.core.json import JsonObject, JsonValue
from aish.system.schema.subset import is_bounded
from aish.system.schema.walk import TOO_LONG, SchemaProblem, TooManyStepsError, Walk, spell_path

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

# A step takes up to 5 microseconds: the loop stands still for 50 ms at most (L17).
LOOP_STEPS = 10_000
FILE_STEPS = 1_000_000
_simple: dict[int, tuple[Schema, bool]] = {}
_MOST_REMEMBERED = 512


class Worker(Protocol):
    """What `check_any` asks where it may not answer itself: a `client.SchemaWorker`."""

    async def check(self, schema: Schema, value: JsonValue) -> tuple[SchemaProblem, ...]:
        """The problems of a value, in bounded time and without blocking."""
        ...


def is_simple(schema: Schema) -> bool:
    """Whether `check` may be asked; remembered for each schema object."""
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
) -> tuple[SchemaProblem, ...]:
    """All that is wrong with a value, by a simple schema.

    A value so large that the steps are used up has one problem that says so.

    Raises:
        ValueError: the schema is not simple.
    """
    if not is_simple(schema):
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
    """All that is wrong with a value, by any schema; a schema that cannot be used is a problem."""
    if is_simple(schema):
        problems = check(schema, value, steps=LOOP_STEPS)
        if problems != (TOO_LONG,):
            return problems
    return await worker.check(schema, value)


def check_schema(schema: Schema) -> tuple[SchemaProblem, ...]:
    """What is wrong with a schema itself, such as one that a pipeline file holds."""
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
    """References that lead out of the schema: they would have to be fetched."""
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
