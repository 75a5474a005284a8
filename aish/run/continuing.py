"""Steps that go on with the conversation of an earlier one: `continues`."""

from collections.abc import Iterable, Mapping

from aish.agent.conversation import Heard
from aish.agent.turn_recorder import TurnRecorder, request_recorder
from aish.config.steps import PromptStep, Step
from aish.core.errors import StepFailedError
from aish.core.events import Failure
from aish.core.messages import History
from aish.run.records import StepRecord
from aish.run.stage import Stage


def continued(step: Step) -> str | None:
    """The step whose conversation this one goes on with, if it does."""
    return step.continues if isinstance(step, PromptStep) else None


def is_continued(step: Step, steps: Iterable[Step]) -> bool:
    """Whether one of the steps goes on with this one's conversation."""
    return any(isinstance(one, PromptStep) and one.continues == step.id for one in steps)


def nothing_to_continue(step: Step, records: Mapping[str, StepRecord]) -> Failure | None:
    """Why the step cannot go on with a conversation, where it wants to; its needs have ended."""
    wanted = continued(step)
    if wanted is None or records[wanted].status == "ok":
        return None
    if records[wanted].status == "skipped":
        return Failure("need_skipped", f"it continues `{wanted}`, which was skipped")
    return Failure("need_failed", f"it continues `{wanted}`, which failed")


def beginning(step: PromptStep, stage: Stage) -> History:
    """The turns that the step's conversation begins with: its own copy, so also of an attempt.

    Raises:
        StepFailedError: an earlier part of the run did not write them down.
    """
    if step.continues is None:
        return History()
    turns = stage.records[step.continues].history
    if turns is None:
        said = f"the conversation of the step `{step.continues}` was not kept"
        raise StepFailedError(said, hint="run it anew, without `--resume`")
    return History(list(turns))


def teller(step: PromptStep, stage: Stage) -> Heard | None:
    """Who writes the conversation down: all of it where a resumed run may have to continue it.

    What belongs to an item is done again with it.
    """
    runtime, place = stage.resources.runtime, stage.place(step)
    if place.item is not None or not is_continued(step, stage.plan.steps):
        return request_recorder(runtime, place, "answer")
    return TurnRecorder(runtime.emit, runtime.keep, place)
