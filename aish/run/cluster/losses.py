"""What becomes of an item whose worker was lost (B3, B7)."""

from aish.config.steps import Step
from aish.core.errors import ExitCode
from aish.core.events import Failure, Retry
from aish.core.text import counted
from aish.engine.execution.step import failed
from aish.engine.records import StepRecord
from aish.engine.steps.context import StepContext
from aish.run.cluster.errand import Errand

MOST = 3
"""An item that was on so many workers that were lost is not given to another one."""

_LOST = "its worker was lost"


def after_loss(
    errand: Errand, step: Step, stage: StepContext, *, retry_unknown: bool
) -> StepRecord | None:
    """The end of an item that may not be begun again; nothing if it may."""
    if errand.made and not retry_unknown:
        named = ", ".join(f"`{tool}`" for tool in dict.fromkeys(errand.made))
        made = counted(len(errand.made), "call")
        why = f"{_LOST} after {made} of {named} had been sent: they are not made again unasked"
        hint = (
            "look what became of them; `--resume --retry-failed --retry-unknown` runs the item "
            "again, and rules under `mcp.parallel` or `mcp.idempotent` let a tool be called again"
        )
        return _failed(Failure("call_unknown", why, hint), step, stage)
    if errand.lost >= MOST:
        why = f"{counted(errand.lost, 'worker')} were lost while they ran it"
        return _failed(Failure("worker_lost", why, "see whether it needs more memory"), step, stage)
    return None


def told_again(errand: Errand, step: Step, stage: StepContext) -> None:
    """Tell that an item begins anew, on another worker."""
    place = stage.place(step)
    what = f"item {place.item}"
    errand.made.clear()
    stage.resources.runtime.emit(Retry(place, what, errand.lost + 1, 0.0, _LOST))


def _failed(failure: Failure, step: Step, stage: StepContext) -> StepRecord:
    return failed(step, stage, failure, ExitCode.FAILED, retryable=False)
