"""What the control API answers, as values.

Keys that this version does not know are left out: an API of the same `v` only gets more of them.
"""

from typing import Literal

from aish.core.events import Exit
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.messages import Usage
from aish.features.approvals.questions import ApprovalQuestion

State = Literal["running", "waiting", "paused", "finished"]
Answer = Literal["approve", "deny", "always"]


@frozen
class StepProgress:
    """How far a step is; `total` is `None` while the number of its items is not known."""

    id: str
    status: str
    done: int
    total: int | None


@frozen
class Status:
    """The whole run in short; `pending` has the ids of open questions.

    `exit` is `None` until the run has ended, `tokens` and `cost_usd` where they are unknown.
    """

    run: str
    pipeline: str
    state: State
    exit: Exit | None
    seconds: float
    tokens: Usage | None
    cost_usd: float | None
    steps: tuple[StepProgress, ...]
    pending: tuple[str, ...]


@frozen
class Approvals:
    """The questions of a run: open ones, and the latest that have ended."""

    pending: tuple[ApprovalQuestion, ...]
    decided: tuple[ApprovalQuestion, ...]


@frozen
class EventPage:
    """Events of a run, in order; `next` is the number that asks for what follows them."""

    events: tuple[JsonObject, ...]
    next: int


@frozen
class RunEnd:
    """How a run has ended; `event` is its `run.finished`, with outputs and figures."""

    status: str
    exit: Exit
    event: JsonObject


@frozen
class CommandTaken:
    """A command that the run carries out."""

    command: str


@frozen
class Reply:
    """An HTTP answer, whole."""

    status: int
    body: bytes
