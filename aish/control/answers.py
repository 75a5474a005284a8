"""Answers of the control API, as values.

Unknown keys are ignored: later versions with the same `v` only add keys.
"""

from typing import Literal

from aish.core.events import Exit
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Usage
from aish.features.approvals.questions import ApprovalQuestion

State = Literal["running", "waiting", "paused", "finished"]
Answer = Literal["approve", "deny", "always"]


@frozen
class StepProgress:
    """Progress of a step; `total` is `None` while the number of its items is not known."""

    id: str
    status: str
    done: int
    total: int | None


@frozen
class Status:
    """Summary of a run; `pending` has the ids of open questions.

    `exit` is `None` until the run has ended, `tokens` and `cost_usd` if they are unknown.
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
    """Questions of a run: the open ones, and the latest closed ones."""

    pending: tuple[ApprovalQuestion, ...]
    decided: tuple[ApprovalQuestion, ...]


@frozen
class EventPage:
    """Events of a run, in order; `next` is the number to request the following ones with."""

    events: tuple[JsonObject, ...]
    next: int


@frozen
class RunEnd:
    """End of a run; `event` is its `run.finished`, with outputs and figures."""

    status: str
    exit: Exit
    event: JsonObject


@frozen
class RunValue:
    """A value that can be changed in a live run; `path` is for example `limits.turns`."""

    path: str
    value: JsonValue
    type: str


@frozen
class SessionEntry:
    """A part of a conversation; `calls` are the tool calls in an answer."""

    role: str
    text: str
    time: str | None
    calls: tuple[JsonObject, ...] = ()
    step: str | None = None
    item: str | None = None
    tool: str | None = None


@frozen
class Session:
    """The conversations of a run in chronological order; `left_out` counts older entries."""

    entries: tuple[SessionEntry, ...]
    left_out: int = 0
