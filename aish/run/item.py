"""One item of a step: its beginning, its end, here or on a worker (F5, B7)."""

from contextlib import suppress

from aish.config.steps import Step
from aish.core.errors import AishError
from aish.core.events import Failure, ItemFinished, ItemStarted, Place
from aish.core.frozen import frozen
from aish.items.items import Item
from aish.run.course import CutOffError, until_cancelled
from aish.run.final import failure_of
from aish.run.order import names_item
from aish.run.records import StepRecord
from aish.run.stage import Entrance, Stage
from aish.run.unit import KINDS, failed, run_unit
from aish.system.computation import ComputationStoppedError
from aish.templates.render import evaluate


@frozen
class Task:
    """An item to be run; one with a `problem` has no key of its own, and fails with it."""

    item: Item
    key: str
    digest: str
    problem: Failure | None = None

    def started(self, place: Place) -> ItemStarted:
        """The event of its beginning."""
        return ItemStarted(place, self.key, self.item.index, self.digest, self.item.value)

    def finished(self, place: Place, record: StepRecord) -> ItemFinished:
        """The event of its end."""
        return ItemFinished(
            place=place,
            key=self.key,
            index=self.item.index,
            status=record.status,
            text=record.text,
            output=record.output,
            usage=record.usage,
            cost_usd=record.cost_usd,
            seconds=record.seconds,
            error=record.failure,
        )


async def run_item(step: Step, stage: Stage, entrance: Entrance) -> StepRecord | None:
    """The end of the item of `stage`; nothing if it has none, because the run was stopped."""
    try:
        left_out = _left_out(step, stage)
    except ComputationStoppedError:
        await until_cancelled()
    if stage.carrier is not None and left_out is None:
        return await stage.carrier.carry(step, stage, entrance)
    entrance.begin()
    with stage.course.item_unit(), suppress(CutOffError):
        return left_out or await run_unit(step, stage)
    return None


def _left_out(step: Step, stage: Stage) -> StepRecord | None:
    """The end of an item that the step's `when` leaves out."""
    when = step.flow.when
    try:
        if when is None or not names_item(step) or evaluate(when, stage.context()):
            return None
    except AishError as error:
        return failed(step, stage, failure_of(error), error.exit_code)
    why = Failure("when", f"`when` is not so: {when}")
    return StepRecord(step.id, KINDS[type(step)], "skipped", failure=why)
