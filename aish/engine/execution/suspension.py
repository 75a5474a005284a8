"""Items whose requests wait in a batch, and that have no task meanwhile.

What such an item needs to go on is in a file. It is ready again when the answer is there.
"""

import pickle  # ruff: ignore[suspicious-pickle-import] - of what this module has written
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from aish.agent.converse import SuspendedError
from aish.config.model import PromptStep, Step
from aish.core.frozen import replace
from aish.core.messages import Spent
from aish.core.protocols import PendingAnswer
from aish.engine.resume_state import Unfinished
from aish.engine.steps.context import StepContext, Suspended
from aish.system.spool import Spool, Spooled

Task = TypeVar("Task")


def may_suspend(step: Step, context: StepContext) -> bool:
    """Return true if items of the step may give up their tasks.

    Not where a task has more than can be put down: a time that runs, files that are watched, a
    window that moves, a cassette that is recorded. A run that pauses ends instead.
    """
    if not isinstance(step, PromptStep):
        return False
    has_more = step.flow.timeout is not None or step.context.files or step.context.max_tokens
    pauses = context.plan.pipeline.on_wait == "pause" and bool(context.run.resume)
    is_apart = context.run.has_cassette or context.run.carrier is not None
    return not has_more and not pauses and not is_apart


class SuspendedItems(Generic[Task]):
    """The suspended items of one step; `on_ready` is called for each that may go on."""

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready
        self._spool = Spool()
        self._ready: deque[tuple[Spooled, PendingAnswer]] = deque()
        self._waiting: dict[PendingAnswer, Spooled] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ready)

    @property
    def is_ready(self) -> bool:
        """True if one of them may go on."""
        return bool(self._ready)

    def add(self, task: Task, error: SuspendedError) -> None:
        """Put down an item, until its answer is there."""
        pending = error.pending
        state = (task, error.turns, error.earlier, error.made, error.turn, error.began)
        self._waiting[pending] = self._spool.put(pickle.dumps(state))
        pending.on_answer(lambda: self._note_answer(pending))

    def take(self) -> tuple[Task, Suspended]:
        """An item that may go on, and from what."""
        spooled, pending = self._ready.popleft()
        state = pickle.loads(self._spool.take(spooled))  # ruff: ignore[suspicious-pickle-usage] - written by `add`
        task, turns, earlier, made, turn, began = state
        earlier = replace(earlier, pending=pending)
        return task, Suspended(Unfinished(turns, earlier, turn, Spent()), made, began)

    def close(self) -> None:
        """Give up those that are left; a resumed run asks for their answers."""
        for pending in (*self._waiting, *(pending for _, pending in self._ready)):
            pending.drop()
        self._waiting.clear()
        self._ready.clear()
        self._spool.close()

    def _note_answer(self, pending: PendingAnswer) -> None:
        spooled = self._waiting.pop(pending, None)
        if spooled is not None:
            self._ready.append((spooled, pending))
            self._on_ready()
