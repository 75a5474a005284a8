"""The process that evaluates schemas of unbounded cost (L17, X7).

Reads lines of JSON, `[schema, value]`, and answers each with a line of problems. It fetches
nothing, and the kernel ends it with SIGPROF when an evaluation takes a second of CPU time (wall
time would depend on what else the machine does).
"""

import contextlib
import itertools
import json
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from aish.system.schema.check import (
    Path,
    SchemaProblem,
    ambiguous,
    missing,
    nearest,
    show,
    unknown,
    unmet,
)

_MOST_PROBLEMS = 20
_CPU_SECONDS = 1.0
_MEMORY = 1 << 30
_BROKEN = "the schema cannot be used: "


def main() -> None:
    """Answer until the end of input."""
    from jsonschema import Draft202012Validator

    Draft202012Validator({}).is_valid(None)  # load lazy imports now
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    _say([])
    for line in sys.stdin.buffer:
        # The default action ends the process, inside `re` too.
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
    """The problems of a value, by jsonschema, resolving references within the schema only."""
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, (dict, bool)):
        return [SchemaProblem((), _BROKEN + "it is neither an object nor a boolean", "schema")]
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        validator = kind(schema, registry=Registry())
        errors = list(itertools.islice(validator.iter_errors(value), _MOST_PROBLEMS))
    except Unresolvable as error:
        reason = f"it refers to {show(error.ref)}, which is not in it, and nothing is fetched"
        return [SchemaProblem((), _BROKEN + reason, "schema")]
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # ruff: ignore[blind-except] - an invalid schema may raise any exception
        return [SchemaProblem((), _BROKEN + _reason(kind, schema, error), "schema")]
    return list(dict.fromkeys(_flat(errors, ())))


def _reason(kind: Any, schema: Any, error: Exception) -> str:
    """Why a schema is invalid, according to the metaschema."""
    from jsonschema.exceptions import SchemaError

    try:
        kind.check_schema(schema)
    except SchemaError as found:
        place = "/".join(map(str, found.absolute_path))
        return f"{place}: {found.message[:200]}" if place else found.message[:200]
    except Exception:  # ruff: ignore[blind-except] - even validating it by the metaschema fails
        return type(error).__name__
    return f"{type(error).__name__}: {error}"[:200]


def _flat(errors: Iterable[Any], above: Path) -> Iterator[SchemaProblem]:
    for error in errors:
        yield from _problems(error, (*above, *error.relative_path))


def _problems(error: Any, path: Path) -> list[SchemaProblem]:
    """An error of jsonschema in aish's format."""
    word, wanted, value = error.validator, error.validator_value, error.instance
    if word is None or (word == "not" and not wanted):
        return [SchemaProblem(path, "is not allowed", "false")]
    if word == "required" and isinstance(value, dict):
        return [missing(path, key) for key in wanted if key not in value]
    if word == "additionalProperties" and wanted is False:
        return [
            unknown(path, key, error.schema.get("properties", ()))
            for key in _extras(value, error.schema)
        ]
    if word in {"anyOf", "oneOf"} and error.context:
        branches: dict[Any, list[SchemaProblem]] = {}
        for inner in error.context:
            found = _problems(inner, (*path, *inner.relative_path))
            # A branch that is `false` has an error without a path in the schema.
            branch = inner.relative_schema_path[0] if inner.relative_schema_path else id(inner)
            branches.setdefault(branch, []).extend(found)
        return nearest(list(branches.values()), path, value)
    if word == "oneOf":
        return [ambiguous(path)]
    if word in {"minimum", "maximum"} and error.schema.get(f"exclusive{word.title()}") is True:
        word = f"exclusive{word.title()}"  # as draft 4 has it
    return [unmet(path, word, wanted, value, error.message)]


def _extras(value: Any, schema: Any) -> Iterator[str]:
    import re

    patterns = schema.get("patternProperties", ())
    for key in value:
        if key not in schema.get("properties", ()) and not any(re.search(p, key) for p in patterns):
            yield key
