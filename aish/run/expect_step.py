"""What a step expects of itself (F4, F12): checked when it has succeeded, else it has failed."""

from collections.abc import Sequence
from dataclasses import replace

from aish.config.expected import Expectation
from aish.config.steps import Step
from aish.core.errors import ExitCode
from aish.core.events import ExpectChecked, Failure, Place
from aish.run.expectations.check import Checked, Grade, check
from aish.run.expectations.subject import step_subject
from aish.run.records import StepRecord
from aish.run.stage import Stage


async def held_to(step: Step, record: StepRecord, stage: Stage) -> StepRecord:
    """The record of a step that succeeded, or the same as failed by what it expects.

    Everything is checked, so that one run shows all that does not hold.

    Raises:
        AishError: a judge could not be asked, or gave no verdict.
    """
    runtime, place = stage.resources.runtime, stage.place(step)
    subject = step_subject(stage.context(), record)
    unmet: list[Checked] = []
    fits, mask, ask = runtime.check_arguments, stage.plan.secrets.mask, grader(stage, place)
    for expectation in step.expect:
        checked = await check(expectation, subject, fits, mask, ask)
        runtime.emit(ExpectChecked(place, checked.kind, checked.ok, checked.message))
        unmet += () if checked.ok else (checked,)
    if not unmet:
        return record
    failure = Failure("expectation", _said(unmet))
    return replace(record, status="failed", failure=failure, exit_code=ExitCode.FAILED)


def grader(stage: Stage, place: Place) -> Grade:
    """Asks the models that judge; most runs have none, and load nothing for them."""

    async def ask(expectation: Expectation, text: str) -> tuple[bool, str]:
        from aish.run.judging import grade

        return await grade(expectation, text, stage, place)

    return ask


def _said(unmet: Sequence[Checked]) -> str:
    """The first of them in one line, and how many more there are."""
    first = unmet[0].message.splitlines()[0].removesuffix(":")
    return first if len(unmet) == 1 else f"{first} (and {len(unmet) - 1} more)"
