"""Validation beyond the schema: names, circles, globs, templates, schemas. No I/O to servers.

Each of the other modules yields the problems of one part; here they get positions and order.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aish.config.loader import lookup_position, read_pipeline
from aish.config.model import CallStep, Limits, Pipeline, PipelineStep, PromptStep, Step
from aish.config.yaml_tree import in_file_order
from aish.core.errors import PipelineError, Problem, UsageError
from aish.core.phrases import backticked, first_of
from aish.core.tools import Tool
from aish.engine.plan.lock import LockFileError, lock_of
from aish.engine.plan.validation.issue import Issue, is_spoilt, is_within, steps_with_paths, within
from aish.engine.plan.validation.names import name_issues
from aish.engine.plan.validation.older_names import own_pipeline
from aish.engine.plan.validation.schemas import (
    circle_issue,
    inner_issues,
    opening_issues,
    schema_issues,
)
from aish.engine.plan.validation.templates import annotation_issues, template_issues
from aish.engine.plan.validation.tools import (
    argument_issues,
    command_issues,
    limit_issues,
    locked_issues,
    long_name_issues,
    retry_issues,
    run_issues,
    shadow_issues,
    stale_issues,
    tool_issues,
    unmatched_issues,
    wildcard_issues,
)
from aish.policy.decide import Stricter, check_policy_tests
from aish.policy.lock import Lock
from aish.policy.rules import Policy, compile_policy

if TYPE_CHECKING:
    from aish.engine.plan.validation.held_calls import HeldCalls


def cross_check(pipeline: Pipeline) -> tuple[Problem, ...]:
    """All errors and warnings of a pipeline that matches the schema, in file order."""
    issues = (
        *name_issues(pipeline),
        *tool_issues(pipeline),
        *opening_issues(pipeline),
        *_context_files(pipeline),
        *_token_file_issues(pipeline),
        *_flow_names(pipeline),
        *schema_issues(pipeline),
        *template_issues(pipeline),
        *_expectations(pipeline),
        *annotation_issues(pipeline),
        *limit_issues(pipeline),
    )
    return _problems_of(pipeline, issues)


def _context_files(pipeline: Pipeline) -> Iterable[Issue]:
    """Skip the import for most files, which name no files that stay current."""
    prompts = (step for step in pipeline.steps if isinstance(step, PromptStep))
    if not pipeline.context.files and not any(step.context.files for step in prompts):
        return ()
    from aish.engine.plan.validation.context_files import context_file_issues

    return context_file_issues(pipeline)


def _token_file_issues(pipeline: Pipeline) -> Iterable[Issue]:
    """Skip the import for most files, which name no tokens."""
    if not (pipeline.control.tokens or pipeline.serve.clients or pipeline.serve.state):
        return ()
    from aish.engine.plan.validation.exposed_files import exposed_file_issues

    return exposed_file_issues(pipeline)


def _flow_names(pipeline: Pipeline) -> Iterable[Issue]:
    """Skip the import for most files, which say nothing about flows."""
    reads = any(test.read for test in pipeline.policy_tests)
    if not (pipeline.flows.is_used or pipeline.flows.labels or reads):
        return ()
    from aish.engine.plan.validation.flow_names import flow_name_issues

    return flow_name_issues(pipeline)


def _expectations(pipeline: Pipeline) -> Iterable[Issue]:
    """Skip the import for most files, which have no expectations."""
    expects = any(step.expect for step in pipeline.steps)
    if not (expects or pipeline.tests or pipeline.cassette):
        return ()
    from aish.engine.plan.validation.expectations import expect_issues

    return expect_issues(pipeline)


def limit_check(
    pipeline: Pipeline,
    limits: Limits,
    steps: Sequence[Step] | None = None,
    default: str | None = None,
    judges: Iterable[str] | None = None,
) -> tuple[Problem, ...]:
    """Problems of the file with limits or models that come from outside."""
    return _problems_of(pipeline, limit_issues(pipeline, limits, steps, default, judges))


def _problems_of(pipeline: Pipeline, issues: Iterable[Issue]) -> tuple[Problem, ...]:
    """Problems with positions, in file order."""
    problems = (
        Problem(lookup_position(pipeline, c.path), c.path, c.message, c.hint, c.warning)
        for c in issues
        if not (pipeline.broken and is_spoilt(c, pipeline.broken))
    )
    return in_file_order(problems, str(pipeline.file))


def no_step(pipeline: Pipeline) -> tuple[Problem, ...]:
    if pipeline.steps:
        return ()
    hint = "give `steps`, or one of `prompt`, `call` and `run` at the top"
    return (Problem(lookup_position(pipeline, ""), "", "the pipeline has no steps", hint),)


def require_steps(pipeline: Pipeline) -> None:
    """Refuse to run a file without steps.

    Raises:
        PipelineError: the file has no step, which only `aish shell` allows.
    """
    if problems := no_step(pipeline):
        raise PipelineError(problems)


def lock_check(pipeline: Pipeline, *, stale: bool = False) -> tuple[Problem, ...]:
    """Problems found by comparing with the pipeline's lock; with `stale` also warnings."""
    try:
        lock = lock_of(pipeline)
    except LockFileError as error:
        return () if stale else (error.problem,)
    if lock is None:
        return ()

    issues = stale_issues(pipeline, lock) if stale else locked_issues(pipeline, lock)
    return _problems_of(pipeline, issues)


def check_file(
    path: Path, overrides: Sequence[str] = (), *, locked: bool = True, above: tuple[Path, ...] = ()
) -> tuple[Pipeline | None, tuple[Problem, ...]]:
    """A file with all problems, of loading and of `cross_check`.

    Locked tools are checked too, unless `locked=False`. The pipeline is `None` if too little of it
    could be read for further checks. Its sub-pipelines are checked too, and those that it serves;
    `above` are the files that run this one, or serve it.
    """
    reading = read_pipeline(path, overrides=overrides)
    if reading.pipeline is None:
        return None, reading.problems
    pipeline, issues = own_pipeline(reading.pipeline)
    problems = (*reading.problems, *_problems_of(pipeline, issues), *cross_check(pipeline))
    if any(isinstance(step, PipelineStep) for step in pipeline.steps):
        problems += _inner(pipeline, locked=locked, above=above)
    if pipeline.serve.pipelines and not above:
        problems += _pipeline_tool_problems(pipeline, locked=locked)
    if locked and not is_wrong(pipeline, ("mcp.servers", "lock"), problems):
        problems += lock_check(pipeline)
    return pipeline, in_file_order(problems, str(path))


def is_wrong(pipeline: Pipeline, parts: Iterable[str], problems: Iterable[Problem]) -> bool:
    """Return true if one of these parts of a file has an error."""
    wrong = (*pipeline.broken, *(problem.path for problem in problems if not problem.warning))
    return any(is_within(path, part) or is_within(part, path) for path in wrong for part in parts)


def wildcard_check(pipeline: Pipeline) -> tuple[Problem, ...]:
    """Globs that match nothing; rules that approve less or more than it seems.

    And steps with `retry` that make calls which must not be repeated, and long names.
    """
    issues = (*unmatched_issues(pipeline), *wildcard_issues(pipeline), *command_issues(pipeline))
    lock = None
    with suppress(LockFileError):
        lock = lock_of(pipeline)
    return _problems_of(pipeline, (*issues, *_retries(pipeline), *long_name_issues(pipeline, lock)))


def _retries(pipeline: Pipeline) -> Iterable[Issue]:
    """Skip the check for most files, which retry no steps."""
    if all(step.flow.retry.attempts == 1 for step in pipeline.steps):
        return ()
    if (policy := _policy(pipeline)) is None:
        return ()
    return retry_issues(pipeline, policy, _inner_pipeline)


def _inner_pipeline(step: PipelineStep) -> tuple[Pipeline, Policy] | None:
    """The file that a step runs, and its rules; its problems are reported elsewhere."""
    pipeline = read_pipeline(step.file).pipeline
    if pipeline is None:
        return None
    own, _ = own_pipeline(pipeline)
    policy = _policy(own)
    return None if policy is None else (own, policy)


def _policy(pipeline: Pipeline) -> Policy | None:
    """The rules of a file, unless one of them is wrong, which is reported with its position."""
    try:
        return compile_policy(pipeline.rules)
    except UsageError:
        return None


def run_check(pipeline: Pipeline) -> tuple[Problem, ...]:
    return _problems_of(pipeline, run_issues(pipeline, compile_policy(pipeline.rules)))


def shadow_check(pipeline: Pipeline) -> tuple[Problem, ...]:
    """Warnings where a pack of a distribution has the name of a built-in one."""
    return _problems_of(pipeline, shadow_issues(pipeline))


def argument_check(pipeline: Pipeline) -> tuple[Problem, ...]:
    """Arguments that tools of packs do not take; their modules are imported for it."""
    return _problems_of(pipeline, argument_issues(pipeline))


def find_held_calls(
    pipeline: Pipeline,
    policy: Policy | None = None,
    *,
    locked: bool = True,
    on_workers: bool = False,
) -> "tuple[HeldCalls, ...]":
    """The calls that may be held in a run of the file, or of which a warning is given.

    `locked`: its lock is enforced. `on_workers`: items run on a cluster.
    """
    is_alone = not any(isinstance(step, PipelineStep) for step in pipeline.steps)
    is_alone = is_alone and not pipeline.serve.pipelines
    if is_alone and not (pipeline.servers or pipeline.flows.is_used):
        return ()
    from aish.engine.plan.validation.held_calls import held_calls

    rules = compile_policy(pipeline.rules) if policy is None else policy
    find_lock = lock_of if locked else lambda _: None
    return held_calls(pipeline, rules, _inner_pipeline, find_lock, on_workers=on_workers)


def held_check(found: "Iterable[HeldCalls]") -> tuple[Problem, ...]:
    """A warning for calls of a step that may be held, or send without approval."""
    problems: list[Problem] = []
    paths: dict[tuple[Path, str], str] = {}
    for held in found:
        file = held.pipeline.file
        if (file, held.step) not in paths:
            for path, step in steps_with_paths(held.pipeline):
                key = {PromptStep: "prompt", CallStep: "call"}.get(type(step), "run")
                # A session has no step.
                paths[file, step.id] = within(path, key) if step.id else "mcp.auto_approve"
        tools = first_of([f"`{tool}`" for tool in held.tools], 3)
        message = f"{tools} may be held by `{held.rule}` ({held.then}): {held.why}"
        hint = (
            "give the step fewer `tools`, or put a step with `output.release` before it; a person "
        )
        hint += "may approve the call"
        if held.then == "warn":
            message = f"exfiltration: {tools} may send data out without approval: {held.why}"
            rules = backticked(held.approved_by) or "a rule of `mcp.auto_approve`"
            hint = f"narrow {rules} or put it under `ask`; or give the step fewer `tools`"
        issue = Issue(paths[file, held.step], message, hint, warning=True)
        problems += _problems_of(held.pipeline, (issue,))
    return tuple(problems)


def find_stricter(
    pipeline: Pipeline, lock: Lock | None, sources: Iterable[str] = ()
) -> Stricter | None:
    """The judge of calls by the sources of their text, if the file may hold calls.

    Raises:
        UsageError: the file has none of the `sources`.
    """
    from aish.engine.plan.flow_files import flow_file
    from aish.engine.plan.validation.flow_names import check_source
    from aish.policy.flow import FlowPolicy

    for issue in (issue for name in sources for issue in check_source(name, "", pipeline)):
        raise UsageError(issue.message, hint=issue.hint)
    return FlowPolicy(flow_file(pipeline, lock)).stricter if pipeline.flows.is_used else None


def policy_check(
    pipeline: Pipeline, lock: Lock | None, known: Iterable[Tool]
) -> tuple[Problem, ...]:
    """The failed rows of `policy_tests`."""
    tests = pipeline.policy_tests
    stricter = find_stricter(pipeline, lock) if any(test.read for test in tests) else None
    failed = check_policy_tests(tests, compile_policy(pipeline.rules), known, stricter)
    return tuple(
        Problem(lookup_position(pipeline, row.path), row.path, row.message, row.hint)
        for row in failed
    )


def row_check(pipeline: Pipeline) -> list[Problem]:
    if all(case.rows is None for case in pipeline.tests):
        return []
    from aish.engine.plan.validation.expectations import row_issues

    return list(_problems_of(pipeline, row_issues(pipeline)))


def _pipeline_tool_problems(pipeline: Pipeline, *, locked: bool) -> tuple[Problem, ...]:
    """Problems of the pipelines that are offered as tools."""
    from aish.engine.plan.validation.served_pipelines import served_issues

    # Steps of it that run this file are no circle: nothing of this one runs them.
    apart = (Path(),)
    problems: list[Problem] = []
    for issue in served_issues(pipeline, lambda file: check_file(file, locked=locked, above=apart)):
        problems += _problems_of(pipeline, (issue,)) if isinstance(issue, Issue) else (issue,)
    return tuple(problems)


def _inner(pipeline: Pipeline, *, locked: bool, above: tuple[Path, ...]) -> tuple[Problem, ...]:
    """Problems of sub-pipelines and their inputs."""
    trail = (*above, pipeline.file.resolve())
    found: list[Problem] = []
    for path, step in steps_with_paths(pipeline):
        if not isinstance(step, PipelineStep):
            continue
        circle = circle_issue(step, path, trail)
        if circle is not None:
            found += _problems_of(pipeline, (circle,))
            continue
        if within(path, "pipeline") in pipeline.broken:
            continue
        inner, problems = check_file(step.file, locked=locked, above=trail)
        if inner is None and not step.file.exists():
            missing = Issue(within(path, "pipeline"), f"no such file: `{step.file.name}`")
            found += _problems_of(pipeline, (missing,))
            continue
        found += problems
        if inner is not None:
            found += () if inner.broken else no_step(inner)
        if inner is not None and not inner.broken:
            found += _problems_of(pipeline, inner_issues(step, path, inner, pipeline))
    return tuple(found)
