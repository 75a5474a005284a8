"""Steps that run another pipeline: is it there, and does it get what it takes (F2, F11)."""

from collections.abc import Iterator
from pathlib import Path

from aish.config.inputs import fits
from aish.config.pipeline import Pipeline
from aish.config.steps import PipelineStep
from aish.core.errors import did_you_mean
from aish.run.checks.complaint import Complaint, within
from aish.run.order import reads, texts
from aish.templates.plain import is_template


def circle_complaint(step: PipelineStep, path: str, trail: tuple[Path, ...]) -> Complaint | None:
    """About a file that runs itself, maybe by way of others."""
    file = step.file.resolve()
    if file not in trail:
        return None
    names = [each.name for each in (*trail[trail.index(file) :], file)]
    shown = " → ".join(f"`{name}`" for name in names)
    return Complaint(within(path, "pipeline"), f"pipelines run each other in a circle: {shown}")


def inner_complaints(
    step: PipelineStep, path: str, inner: Pipeline, outer: Pipeline
) -> Iterator[Complaint]:
    """About the inputs of a sub-pipeline, and what of it cannot be reached from outside."""
    given = within(path, "with")
    for name, value in step.inputs.items():
        if name not in inner.inputs:
            message = f"`{step.file.name}` has no input `{name}`"
            yield Complaint(f"{given}.{name}", message, did_you_mean(name, inner.inputs))
        elif not any(is_template(text) for text in texts(value)):
            for found in fits(inner.inputs[name], value):
                yield Complaint(f"{given}.{name}", f"the input `{name}`: {found.message}")
    missing = [
        f"`{name}`"
        for name, schema in inner.inputs.items()
        if name not in step.inputs and "default" not in schema
    ]
    if missing:
        many = "inputs are" if len(missing) > 1 else "input is"
        message = f"the {many} missing: {', '.join(missing)}"
        yield Complaint(within(path, "with" if step.inputs else "pipeline"), message)
    if any(name.split(".")[0] == "stdin" for one in inner.steps for name in reads(one)):
        message = f"`{step.file.name}` reads `stdin`, which a sub-pipeline does not have"
        yield Complaint(within(path, "pipeline"), message, "give it an input")
    lacking = [name for name in inner.env if name not in outer.env]
    if lacking:
        message = f"`{step.file.name}` reads the variable `{lacking[0]}`, which is not under `env`"
        yield Complaint(within(path, "pipeline"), message, f"add `{lacking[0]}` to `env` here too")
