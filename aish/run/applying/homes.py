"""The pipelines that staged calls are of: the file itself, and its sub-pipelines (F2, P10)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from aish.config.pipeline import Pipeline
from aish.config.steps import PipelineStep
from aish.engine.plan.plan import load_checked
from aish.run.staging.call import StagedCall


def homes_of(pipeline: Pipeline, calls: Iterable[StagedCall]) -> Mapping[str, Pipeline]:
    """The pipeline of each call, by the steps that lead to it; those that are gone are left out.

    Which file that is says the pipeline, and not the file of staged calls. What a pipeline denies
    is denied in its sub-pipelines too.

    Raises:
        PipelineError: all that is wrong with a sub-pipeline.
    """
    homes = {"": pipeline}
    for call in calls:
        path = ""
        for id in call.home.split("/") if call.home else ():
            outer, path = homes.get(path), f"{path}/{id}" if path else id
            if outer is not None and path not in homes and (inner := _inner(outer, id)):
                homes[path] = inner
    return homes


def _inner(outer: Pipeline, id: str) -> Pipeline | None:
    for step in outer.steps:
        if step.id == id and isinstance(step, PipelineStep):
            inner = load_checked(step.file, ())
            rules = replace(inner.rules, deny=inner.rules.deny + outer.rules.deny)
            return replace(inner, rules=rules)
    return None
