"""`aish validate FILE…`, also called `check`."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import (
    OWN_FILE,
    Argument,
    Option,
    Report,
    ReportOption,
    SetOption,
    StrictOption,
    VerboseOption,
)
from aish.cli.printer import print_json, print_text
from aish.cli.problems import ProblemPrinter
from aish.config.loader import lookup_position, read_pipeline
from aish.config.model import Pipeline, PipelineStep
from aish.config.yaml_tree import in_file_order
from aish.core.errors import ExitCode, Problem
from aish.core.json import JsonValue
from aish.core.phrases import counted
from aish.engine.plan.credentials import unset_references
from aish.engine.plan.lock import known_tool, lock_of
from aish.engine.plan.validation.validate import (
    argument_check,
    check_file,
    exfiltration_check,
    is_wrong,
    lock_check,
    row_check,
    run_check,
    wildcard_check,
)
from aish.policy.decide import check_policy_tests, tool_name
from aish.policy.rules import compile_policy

_OF_POLICY_TESTS = (
    *("policy_tests", "lock", "mcp.servers", "mcp.auto_approve", "mcp.ask", "mcp.deny"),
    *("mcp.stage", "mcp.parallel", "mcp.idempotent"),
)


def command(
    paths: Annotated[
        list[Path] | None,
        Argument(metavar="[FILE...]", help=f"Pipeline files; default: {OWN_FILE}."),
    ] = None,
    *,
    overrides: SetOption = None,
    strict: StrictOption = False,
    env: Annotated[bool, Option("--env", help="A `${VAR}` that is not set is an error.")] = False,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Check pipeline files; no network, and no keys.

    Against the schema, and the rules no schema can say. A `${VAR}` that is not set is a warning,
    with `--strict` too.

    Example: aish validate pipelines/*.yaml
    """
    del verbose
    code = ExitCode.OK
    rows: list[JsonValue] = []
    printer = ProblemPrinter(say)
    for path in paths or (OWN_FILE,):
        problems = problems_of(path, tuple(overrides or ()), os.environ, strict=strict, env=env)
        bad = any(not problem.warning for problem in problems)
        if bad:
            code = ExitCode.USAGE
        if format_ is Report.JSON:
            rows.append(_row(path, problems, ok=not bad))
        else:
            _print(path, problems, printer, ok=not bad)
    if format_ is Report.JSON:
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
    """All problems of a file, in its order; with `strict` warnings are errors.

    With an environment, a `${VAR}` that is not set there is a warning, with `env` an error.
    """
    pipeline, found = check_file(path, overrides)
    if pipeline is None:
        return found
    unset = () if environ is None else tuple(_unset(pipeline, environ, set()))
    found += wildcard_check(pipeline)
    told = {problem.path for problem in (*found, *unset)}
    found += tuple(one for one in argument_check(pipeline) if one.path not in told)
    # Each of these is checked only if the parts it depends on have no errors.
    if not is_wrong(pipeline, ("inputs", "tests"), found):
        found += tuple(row_check(pipeline))
    if not is_wrong(pipeline, _OF_POLICY_TESTS, found):
        found += tuple(_policy_tests(pipeline))
    if not any(not problem.warning for problem in found):
        found += lock_check(pipeline, stale=True)
        found += _exfiltration(pipeline, set()) + run_check(pipeline)
    found = tuple(replace(one, warning=one.warning and not strict) for one in found)
    return in_file_order((*found, *(replace(one, warning=not env) for one in unset)), str(path))


def _policy_tests(pipeline: Pipeline) -> Iterator[Problem]:
    """The policy tests that fail."""
    tests = pipeline.policy_tests
    if not tests:
        return
    lock = lock_of(pipeline)
    names = [tool_name(test.tool) for test in tests]
    known = filter(None, (known_tool(name, pipeline, lock) for name in names))
    for row in check_policy_tests(tests, compile_policy(pipeline.rules), known):
        yield Problem(lookup_position(pipeline, row.path), row.path, row.message, row.hint)


def _exfiltration(pipeline: Pipeline, seen: set[Path]) -> tuple[Problem, ...]:
    """Rules by which data may leak, in the file and those that it runs or serves (K20)."""
    found = exfiltration_check(pipeline)
    seen.add(pipeline.file.resolve())
    for file in _others(pipeline):
        if file.resolve() not in seen:
            inner, _ = check_file(file)
            if inner is not None:
                found += _exfiltration(inner, seen)
    return found


def _unset(pipeline: Pipeline, environ: Mapping[str, str], seen: set[Path]) -> Iterator[Problem]:
    """The `${VAR}` that are not set, in the file and those that it runs or serves."""
    yield from unset_references(pipeline, environ)
    seen.add(pipeline.file.resolve())
    for file in _others(pipeline):
        if file.resolve() not in seen:
            inner = read_pipeline(file).pipeline
            if inner is not None:
                yield from _unset(inner, environ, seen)


def _others(pipeline: Pipeline) -> Iterator[Path]:
    """The other files that this one runs, or serves."""
    yield from (step.file for step in pipeline.steps if isinstance(step, PipelineStep))
    yield from (entry.file for entry in pipeline.serve.pipelines)


def _level(problem: Problem) -> str:
    return "warning" if problem.warning else "error"


def _row(path: Path, problems: tuple[Problem, ...], *, ok: bool) -> JsonValue:
    return {
        "file": str(path),
        "ok": ok,
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


def _print(path: Path, problems: tuple[Problem, ...], printer: ProblemPrinter, *, ok: bool) -> None:
    for problem in problems:
        printer.say(problem, _level(problem))
    if ok:
        print_text(f"{path}: ok")
    else:
        count = sum(not problem.warning for problem in problems)
        say(f"{path}: {counted(count, 'error')}")
