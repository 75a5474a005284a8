"""A sub-pipeline as one step of another: its own steps, its own servers, one budget."""

from dataclasses import replace

from aish.config.inputs import fits
from aish.config.model import PipelineStep
from aish.core.errors import BudgetError, ExitCode, StepFailedError
from aish.core.events import Failure, StepStatus
from aish.core.json import JsonValue
from aish.core.sources import union
from aish.engine.execution.graph import leave_out_the_rest, run_graph
from aish.engine.execution.step import CUT_OFF
from aish.engine.final import PRECEDENCE
from aish.engine.plan.order import steps_read
from aish.engine.records import StepRecord, total_cost, total_usage
from aish.engine.steps.context import StepContext
from aish.engine.steps.sources import base_sources, sources_of_tree
from aish.system.schema.check import spell_path
from aish.templates.render import render_tree

_STATUSES: dict[ExitCode, StepStatus] = {
    ExitCode.DENIED: "denied",
    ExitCode.BUDGET: "budget",
    ExitCode.PAUSED: "paused",
}


async def run_inner(step: PipelineStep, context: StepContext) -> StepRecord:
    """Run the file of `step` with its inputs; its outputs are the step's.

    Raises:
        StepFailedError: an input does not fit, or an output cannot be rendered.
        BudgetError: its own time limit is exceeded.
        CutOffError: the run was stopped meanwhile.
    """
    inner = _context(step, context)
    limit = inner.plan.pipeline.limits.time
    with context.activity.within(limit) as scope:
        await run_graph(inner)
    if scope.cancelled_caught:
        raise BudgetError(
            f"the time limit of {limit:g} s is exceeded",
            where=step.file.name,
            hint=f"raise `limits.time` in `{step.file.name}`",
        )
    ended = all(_has_ended(inner.records.get(planned.id)) for planned in inner.plan.steps)
    leave_out_the_rest(inner.plan, inner.records, inner.course, inner.emit, inner.place)
    inner.course.check_whole(ended=ended)
    if inner.plan.pipeline.annotations:
        from aish.engine.execution.annotations import annotations_of

        place = context.place(step)
        mask = inner.plan.secrets.mask
        annotations = annotations_of(
            inner.plan.pipeline, inner.template_values(), inner.records, place, mask
        )
        for event in annotations:
            inner.emit(event)
    return _record(step, inner)


def _has_ended(record: StepRecord | None) -> bool:
    return record is not None and (record.failure is None or record.failure.code != CUT_OFF)


def _context(step: PipelineStep, context: StepContext) -> StepContext:
    plan, resources = context.plan.inner[step.id], context.resources.inner[step.id]
    place = context.place(step)
    return replace(
        context,
        plan=plan,
        options=replace(context.options, inputs=_inputs(step, context), stdin=None),
        resources=resources,
        records={},
        course=context.course.child(apart=context.item is not None),
        resume_state=context.inner_state(step),
        needed=frozenset({f"{place.step}/{id}" for id in steps_read(plan.pipeline)}),
        prefix=f"{place.step}/",
        within=place.item,
        item=None,
        turn=0,
        given={name: sources_of_tree(value, context) for name, value in step.inputs.items()},
        base=base_sources(step, context),
    )


def _inputs(step: PipelineStep, context: StepContext) -> dict[str, JsonValue]:
    schemas = context.plan.inner[step.id].pipeline.inputs
    values_given = render_tree(step.inputs, context.template_values())
    assert isinstance(values_given, dict)
    defaults = {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
    values = {**defaults, **values_given}
    for name, value in values.items():
        for problem in fits(schemas[name], value):
            at = f" at `{spell_path(problem.path)}`" if problem.path else ""
            said = f"the input `{name}` of `{step.file.name}` does not fit{at}: {problem.message}"
            raise StepFailedError(said)
    return values


def _record(step: PipelineStep, inner: StepContext) -> StepRecord:
    records = tuple(inner.records.values())
    codes = {record.exit_code for record in records}
    code = next(code for code in PRECEDENCE if code in codes)
    bad = next((record for record in records if record.exit_code is code), None)
    last = inner.records[inner.plan.steps[-1].id]
    record = StepRecord(
        id=step.id,
        kind="pipeline",
        status="ok",
        text=last.text,
        output=last.output,
        calls=tuple(call for one in records for call in one.calls),
        usage=total_usage(records),
        cost_usd=total_cost(records),
        sources=union(one.sources for one in records),
        output_sources=last.output_sources,
    )
    if code is not ExitCode.OK and bad is not None:
        why = bad.failure or Failure(bad.status, bad.status)
        failure = Failure(why.code, f"step `{inner.prefix}{bad.id}`: {why.message}", why.hint)
        status = _STATUSES.get(code, "failed")
        return replace(
            record,
            status=status,
            text=None,
            output=None,
            failure=failure,
            exit_code=code,
            retryable=bad.retryable,
        )
    outputs = inner.plan.pipeline.outputs
    if outputs is None:
        return record
    output = render_tree(outputs, inner.template_values())
    of_output = union((inner.base, sources_of_tree(outputs, inner)))
    return replace(record, text=None, output=output, output_sources=of_output)
