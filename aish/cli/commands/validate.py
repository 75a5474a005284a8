"""`aish validate FILE…`, also called `check`."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from aish.cli.boundary import say
from aish.cli.options import (
    OWN_FILE,
    Argument,
    Option,
    Report,
    ReportOption,
    SetOption,
    StrictOption,
)
from aish.cli.printer import print_json, print_text
from aish.cli.problems import ProblemPrinter
from aish.config.loader import lookup_position, read_pipeline
from aish.config.model import Pipeline
from aish.config.yaml_tree import in_file_order
from aish.core.errors import ExitCode, Problem
from aish.core.json import JsonValue
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.engine.plan.credentials import key_lines, key_rows, unset_references
from aish.engine.plan.lock import known_tool, lock_of
from aish.engine.plan.validation.validate import (
    argument_check,
    check_file,
    find_held_calls,
    held_check,
    is_wrong,
    lock_check,
    policy_check,
    row_check,
    run_check,
    shadow_check,
    wildcard_check,
)
from aish.policy.decide import tool_name
from aish.system.secrets.literal_keys import without_keys

if TYPE_CHECKING:
    from aish.engine.plan.validation.held_calls import HeldCalls

_OF_POLICY_TESTS = (
    *("policy_tests", "lock", "mcp.servers", "mcp.auto_approve", "mcp.ask", "mcp.deny"),
    *("mcp.stage", "mcp.parallel", "mcp.idempotent"),
)


def command(
    paths: Annotated[
        list[Path] | None, Argument("[FILE...]", f"Pipeline files; default: {OWN_FILE}.")
    ] = None,
    *,
    overrides: SetOption = None,
    strict: StrictOption = False,
    env: Annotated[bool, Option("--env", "A `${VAR}` that is not set is an error.")] = False,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Check pipeline files; no network, and no keys.

    Checks the schema, names, templates, tools and rules. A `${VAR}` that is not set is a warning,
    even with `--strict`.

    Example: aish validate pipelines/*.yaml
    """
    code = ExitCode.OK
    rows: list[JsonValue] = []
    printer = ProblemPrinter(say)
    for path in paths or (OWN_FILE,):
        pipeline, problems = checked_file(
            path, tuple(overrides or ()), os.environ, strict=strict, env=env
        )
        bad = any(not problem.warning for problem in problems)
        if bad:
            code = ExitCode.USAGE
        if output_format is Report.JSON:
            rows.append(_row(path, pipeline, problems, ok=not bad))
        else:
            for problem in problems:
                printer.say(problem, _level(problem))
            if not bad:
                print_text(f"{path}: ok")
                for line in key_lines(() if pipeline is None else pipeline.key_sources()):
                    print_text(f"  {for_line(without_keys(line))}")
            else:
                count = sum(not problem.warning for problem in problems)
                say(f"{path}: {counted(count, 'error')}")
    if output_format is Report.JSON:
        print_json(rows)
    return int(code)


def problems_of(
    path: Path,
    overrides: tuple[str, ...],
    environ: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
    env: bool = False,
) -> tuple[Problem, ...]:
    """Return all problems of a file, in its order; with `strict` warnings are errors.

    With an environment, a `${VAR}` that is not set there is a warning, with `env` an error.
    """
    return checked_file(path, overrides, environ, strict=strict, env=env)[1]


def checked_file(
    path: Path,
    overrides: tuple[str, ...],
    environ: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
    env: bool = False,
) -> tuple[Pipeline | None, tuple[Problem, ...]]:
    """The pipeline of a file, as far as it can be read, and its `problems_of`."""
    pipeline, problems = check_file(path, overrides)
    if pipeline is None:
        return None, problems
    unset = () if environ is None else tuple(_unset(pipeline, environ, set()))
    problems += wildcard_check(pipeline)
    paths = {problem.path for problem in (*problems, *unset)}
    problems += tuple(problem for problem in argument_check(pipeline) if problem.path not in paths)
    problems += tuple(_listen_check(pipeline))
    held: tuple[Problem, ...] = ()
    # Each of these is checked only if the parts it depends on have no errors.
    if not is_wrong(pipeline, ("inputs", "tests"), problems):
        problems += tuple(row_check(pipeline))
    if not is_wrong(pipeline, _OF_POLICY_TESTS, problems):
        problems += tuple(_policy_tests(pipeline))
    if not any(not problem.warning for problem in problems):
        problems += lock_check(pipeline, stale=True)
        found = tuple(_held_calls(pipeline))
        problems += held_check(one for one in found if one.then == "warn") + run_check(pipeline)
        held = held_check(one for one in found if one.then != "warn")
    problems = tuple(replace(one, warning=one.warning and not strict) for one in problems)
    # That a call may be held is what the file asks for, and no fault of it.
    problems += held
    problems += tuple(replace(one, warning=not env) for one in unset)
    # What is installed here is no fault of the file.
    return pipeline, in_file_order((*problems, *shadow_check(pipeline)), str(path))


def _listen_check(pipeline: Pipeline) -> Iterator[Problem]:
    """Warn of a server that does not start by its file alone."""
    path = "serve.auth"
    if pipeline.serve.auth is not None and not pipeline.serve.listen:
        message = "tokens of an issuer come over HTTP, and `serve.listen` names no address"
        hint = "add `listen: http://HOST:PORT/mcp`, or start it with `--http HOST:PORT`"
        yield Problem(lookup_position(pipeline, path), path, message, hint, warning=True)


def _policy_tests(pipeline: Pipeline) -> Iterator[Problem]:
    tests = pipeline.policy_tests
    if not tests:
        return
    lock = lock_of(pipeline)
    names = [tool_name(test.tool) for test in tests]
    known = filter(None, (known_tool(name, pipeline, lock) for name in names))
    yield from policy_check(pipeline, lock, known)


def _held_calls(pipeline: Pipeline) -> "Iterator[HeldCalls]":
    """Calls that may be held in a run of the file, or where it is served, or warned of."""
    yield from find_held_calls(pipeline)
    if pipeline.steps and pipeline.serve.pipelines:
        yield from find_held_calls(replace(pipeline, steps=()))


def _unset(pipeline: Pipeline, environ: Mapping[str, str], files: set[Path]) -> Iterator[Problem]:
    """The `${VAR}` that are not set, in the file and those that it runs or serves."""
    yield from unset_references(pipeline, environ)
    files.add(pipeline.file.resolve())
    for file in pipeline.other_files:
        if file.resolve() not in files:
            inner = read_pipeline(file).pipeline
            if inner is not None:
                yield from _unset(inner, environ, files)


def _level(problem: Problem) -> str:
    return "warning" if problem.warning else "error"


def _row(
    path: Path, pipeline: Pipeline | None, problems: tuple[Problem, ...], *, ok: bool
) -> JsonValue:
    keys = [] if pipeline is None else key_rows(pipeline.key_sources(), without_keys)
    return {
        "file": str(path),
        "ok": ok,
        **({"keys": keys} if keys else {}),
        "problems": [
            {
                "file": problem.position.file,
                "line": problem.position.line,
                "column": problem.position.column,
                "path": problem.path,
                "level": _level(problem),
                "message": problem.message,
                "hint": problem.hint,
            }
            for problem in problems
        ],
    }
