"""Sub-pipelines of a plan: their files loaded, and planned like any other (F2)."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from aish.config.pipeline import Pipeline
from aish.config.steps import Limits, PipelineStep, Step
from aish.core.errors import PipelineError
from aish.run.options import RunOptions
from aish.run.plan_checks import check_file, limit_check

Made = TypeVar("Made")


def inner_plans(
    steps: Iterable[Step],
    outer: Pipeline,
    limits: Limits,
    options: RunOptions,
    make: Callable[[Pipeline, RunOptions], Made],
) -> dict[str, Made]:
    """What `make` plans of each sub-pipeline, by the id of the step that runs it.

    What the outer file denies or stages is so in it too (P10), and the limits of the whole run
    want to know of its models what they want to know of the others (B8).

    Raises:
        PipelineError: all that is wrong with one.
    """
    own = replace(
        options,
        inputs={},
        stdin=None,
        model=None,
        shard=None,
        timeout=None,
        max_cost_usd=None,
        max_turns=None,
    )
    plans: dict[str, Made] = {}
    for step in steps:
        if isinstance(step, PipelineStep):
            inner, found = check_file(step.file, locked=options.lock != "none")
            if inner is not None:
                found += limit_check(inner, limits)
            wrong = tuple(problem for problem in found if not problem.warning)
            if inner is None or wrong:
                raise PipelineError(wrong)
            rules = replace(
                inner.rules,
                deny=inner.rules.deny + outer.rules.deny,
                stage=inner.rules.stage + outer.rules.stage,
            )
            plans[step.id] = make(replace(inner, rules=rules), own)
    return plans
