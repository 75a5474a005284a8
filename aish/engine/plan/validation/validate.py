"""What no schema can say (F11): names, circles, globs, templates, schemas. Nothing is contacted.

Each `check_*` module yields complaints about one part; here they get their places and their order.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from aish.config.loader import lookup_position, read_pipeline
from aish.config.model import Limits, Pipeline, PipelineStep, PromptStep, ServerPrompt, Step
from aish.config.yaml_tree import in_file_order
from aish.core.errors import PipelineError, Problem
from aish.engine.plan.lock import LockFileError, lock_of
from aish.engine.plan.validation.issue import Issue, is_spoilt, is_within, step_path, within
from aish.engine.plan.validation.names import name_issues
from aish.engine.plan.validation.schemas import schema_issues
from aish.engine.plan.validation.templates import template_issues
from aish.engine.plan.validation.tools import tool_issues, wildcard_issues


def cross_check(pipeline: Pipeline) -> tuple[Problem, ...]:
    """Everything that is wrong or odd with a pipeline that fits the schema, in file order."""
    issues = (
        *name_issues(pipeline),
        *tool_issues(pipeline),
        *_openings(pipeline),
        *schema_issues(pipeline),
        *template_issues(pipeline),
        *_expectations(pipeline),
        *_annotations(pipeline),
        *_limits(pipeline),
    )
    return _placed(pipeline, issues)


def _openings(pipeline: Pipeline) -> Iterable[Issue]:
    """Most files take nothing from elsewhere, and need not wait for who looks at that."""
    prompts = [step for step in pipeline.steps if isinstance(step, PromptStep)]
    asked = (*pipeline.prompts.values(), *(step.prompt for step in prompts))
    more = any(step.attach or step.continues is not None for step in prompts)
    if not more and not any(isinstance(one, ServerPrompt) for one in asked):
        return ()
    from aish.engine.plan.validation.schemas import opening_issues

    return opening_issues(pipeline)


def _expectations(pipeline: Pipeline) -> Iterable[Issue]:
    """Most files expect nothing, and need not wait for who looks at that."""
    expects = any(step.expect for step in pipeline.steps)
    if not (expects or pipeline.tests or pipeline.cassette):
        return ()
    from aish.engine.plan.validation.expectations import expect_issues

    return expect_issues(pipeline)


def _annotations(pipeline: Pipeline) -> Iterable[Issue]:
    """Most files annotate nothing, and need not wait for who looks at that."""
    if not pipeline.annotations:
        return ()
    from aish.engine.plan.validation.templates import annotation_issues

    return annotation_issues(pipeline)


def _limits(pipeline: Pipeline) -> Iterable[Issue]:
    """Most files bound neither tokens nor money, and need not wait for who looks at that."""
    bounds = (pipeline.limits, *(step.flow.limits for step in pipeline.steps))
    if all(one.tokens is None and one.cost_usd is None for one in bounds):
        return ()
    from aish.engine.plan.validation.tools import limit_issues

    return limit_issues(pipeline)


def limit_check(
    pipeline: Pipeline,
    limits: Limits,
    steps: Sequence[Step] | None = None,
    default: str | None = None,
    judges: Iterable[str] | None = None,
) -> tuple[Problem, ...]:
    """What limits that are not the file's own, or other models, lack in it (B8)."""
    from aish.engine.plan.validation.tools import limit_issues

    return _placed(pipeline, limit_issues(pipeline, limits, steps, default, judges))


def _placed(pipeline: Pipeline, issues: Iterable[Issue]) -> tuple[Problem, ...]:
    """Complaints with their places, in the order of the file."""
    problems = (
        Problem(lookup_position(pipeline, c.path), c.path, c.message, c.hint, c.warning)
        for c in issues
        if not (pipeline.broken and is_spoilt(c, pipeline.broken))
    )
    return in_file_order(problems, str(pipeline.file))


def no_step(pipeline: Pipeline) -> tuple[Problem, ...]:
    """What is wrong with a file that is to be run and has nothing to run."""
    if pipeline.steps:
        return ()
    hint = "give `steps`, or one of `prompt`, `call` and `run` at the top"
    return (Problem(lookup_position(pipeline, ""), "", "the pipeline has no steps", hint),)


def require_steps(pipeline: Pipeline) -> None:
    """Refuse to run nothing.

    Raises:
        PipelineError: the file has no step, as one for `aish shell` may.
    """
    if problems := no_step(pipeline):
        raise PipelineError(problems)


def lock_check(pipeline: Pipeline, *, stale: bool = False) -> tuple[Problem, ...]:
    """What the pipeline's lock tells of the file (P8); with `stale` what is merely odd."""
    try:
        lock = lock_of(pipeline)
    except LockFileError as error:
        return () if stale else (error.problem,)
    if lock is None:
        return ()
    from aish.engine.plan.validation.tools import locked_issues, stale_issues

    found = stale_issues(pipeline, lock) if stale else locked_issues(pipeline, lock)
    return _placed(pipeline, found)


def check_file(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    locked: bool = True,
    above: tuple[Path, ...] = (),
) -> tuple[Pipeline | None, tuple[Problem, ...]]:
    """A file with everything that is wrong with it: what loading finds and what `cross_check` does.

    What its lock knows of tools counts too, but for `locked=False`. The pipeline is `None` where
    too little of it could be read to check more. Its sub-pipelines are checked too; `above` are the
    files that this one is run by.
    """
    reading = read_pipeline(path, overrides=overrides)
    if reading.pipeline is None:
        return None, reading.problems
    found = (*reading.problems, *cross_check(reading.pipeline))
    if any(isinstance(step, PipelineStep) for step in reading.pipeline.steps):
        found += _inner(reading.pipeline, locked=locked, above=above)
    if locked and not is_wrong(reading.pipeline, ("mcp.servers", "lock"), found):
        found += lock_check(reading.pipeline)
    return reading.pipeline, in_file_order(found, str(path))


def is_wrong(pipeline: Pipeline, parts: Iterable[str], problems: Iterable[Problem]) -> bool:
    """Whether one of these parts of a file has an error."""
    wrong = (*pipeline.broken, *(problem.path for problem in problems if not problem.warning))
    return any(is_within(path, part) or is_within(part, path) for path in wrong for part in parts)


def wildcard_check(pipeline: Pipeline) -> tuple[Problem, ...]:
    """Globs of rules that do not approve what they look as if they did (P5)."""
    return _placed(pipeline, wildcard_issues(pipeline))


def row_check(pipeline: Pipeline) -> list[Problem]:
    """What is wrong with the rows that the tests of a file are made of, which are read for that."""
    if all(case.rows is None for case in pipeline.tests):
        return []
    from aish.engine.plan.validation.expectations import row_issues

    return list(_placed(pipeline, row_issues(pipeline)))


def _inner(pipeline: Pipeline, *, locked: bool, above: tuple[Path, ...]) -> tuple[Problem, ...]:
    """What is wrong with sub-pipelines, and with what they are given (F2)."""
    from aish.engine.plan.validation.schemas import circle_issue, inner_issues

    trail = (*above, pipeline.file.resolve())
    found: list[Problem] = []
    for index, step in enumerate(pipeline.steps):
        if not isinstance(step, PipelineStep):
            continue
        path = step_path(index, listed="steps" in pipeline.data)
        circle = circle_issue(step, path, trail)
        if circle is not None:
            found += _placed(pipeline, (circle,))
            continue
        if within(path, "pipeline") in pipeline.broken:
            continue
        inner, problems = check_file(step.file, locked=locked, above=trail)
        if inner is None and not step.file.exists():
            missing = Issue(within(path, "pipeline"), f"no such file: `{step.file.name}`")
            found += _placed(pipeline, (missing,))
            continue
        found += problems
        if inner is not None:
            found += () if inner.broken else no_step(inner)
        if inner is not None and not inner.broken:
            found += _placed(pipeline, inner_issues(step, path, inner, pipeline))
    return tuple(found)
