"""Does a value fit a JSON Schema? Answered without ever being stopped by the schema (L17, X7).

Simple schemas are checked here, in a bounded number of steps. Every other is sent to one warm
worker process, which has a second and is then killed. Nothing is ever fetched.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import anyio

from aish.system.child import Child, start_child
from aish.system.children import child_environment
from aish.system.reaper import Reaper
from aish.system.schema_problem import SchemaProblem, spell_path
from aish.system.schema_subset import is_bounded
from aish.system.schema_walk import TooManyStepsError, Walk
from aish.vocab.json import JsonObject, JsonValue

Schema = JsonObject | bool

__all__ = [
    "Schema",
    "SchemaProblem",
    "SchemaWorker",
    "check",
    "check_any",
    "check_schema",
    "is_simple",
    "spell_path",
]

# A step is about a microsecond: the loop stands still for 50 ms at most (L17).
LOOP_STEPS = 30_000
FILE_STEPS = 3_000_000
PATIENCE = 1.0
_START_PATIENCE = 20.0
_LONGEST_ANSWER = 1 << 20
_TOO_LONG = SchemaProblem((), "schema took too long", "schema")
_WORKER = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    " from aish.system.schema_worker import main; main()"
)
_simple: dict[int, tuple[Schema, bool]] = {}
_MOST_REMEMBERED = 512


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
        return (_TOO_LONG,)


async def check_any(
    schema: Schema,
    value: JsonValue,
    worker: "SchemaWorker",
) -> tuple[SchemaProblem, ...]:
    """All that is wrong with a value, by any schema; a schema that cannot be used is a problem."""
    if is_simple(schema):
        problems = check(schema, value, steps=LOOP_STEPS)
        if problems != (_TOO_LONG,):
            return problems
    return await worker.check(schema, value)


def check_schema(schema: Schema) -> tuple[SchemaProblem, ...]:
    """What is wrong with a schema itself, such as one that a pipeline file holds."""
    if is_simple(schema):
        return ()
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


class SchemaWorker:
    """The worker process: started when it is first needed, killed when it takes too long."""

    def __init__(self, reaper: Reaper | None = None) -> None:
        self._reaper = reaper
        self._child: Child | None = None
        self._lock = anyio.Lock()

    async def check(
        self,
        schema: Schema,
        value: JsonValue,
    ) -> tuple[SchemaProblem, ...]:
        """The problems of a value, in at most a second of evaluation."""
        try:
            request = json.dumps([schema, value], default=_plain).encode() + b"\n"
        except (RecursionError, ValueError, TypeError):
            return (SchemaProblem((), "cannot be written as JSON", "schema"),)
        async with self._lock:
            return await self._exchange(request)

    async def close(self) -> None:
        """End the process, if there is one."""
        child, self._child = self._child, None
        if child is not None:
            await child.stop(0)

    async def _exchange(self, request: bytes) -> tuple[SchemaProblem, ...]:
        """One request and its answer; whatever goes wrong costs the process."""
        answer: bytes | None = None
        try:
            child = self._child = self._child or await self._start()
            with anyio.move_on_after(PATIENCE):
                await child.write(request)
                answer = await _line(child)
        except OSError:
            return (SchemaProblem((), "the schema checker has ended", "schema"),)
        finally:
            if not answer:
                await self.close()
        if answer is None:
            return (_TOO_LONG,)
        if not answer:
            return (SchemaProblem((), "the schema checker has ended", "schema"),)
        return tuple(
            SchemaProblem(tuple(path), message, keyword, key, tuple(allowed))
            for path, message, keyword, key, allowed in json.loads(answer)
        )

    async def _start(self) -> Child:
        """A worker that has loaded what it needs; the wait for that is not the schema's fault."""
        paths = json.dumps([path for path in sys.path if path])
        self._child = child = await start_child(
            [sys.executable, "-I", "-S", "-c", _WORKER, paths],
            cwd="/",
            env=child_environment({}, {}),
            reaper=self._reaper,
        )
        with anyio.move_on_after(_START_PATIENCE):
            if await _line(child):
                return child
        raise OSError("the schema checker did not start")


async def _line(child: Child) -> bytes:
    """One line of a worker; empty when there is none, or one without end."""
    line = b""
    while not line.endswith(b"\n"):
        piece = await child.read()
        line += piece
        if not piece or len(line) > _LONGEST_ANSWER:
            return b""
    return line


def _plain(value: Any) -> Any:
    """What JSON can write of a mapping that is no dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError
