"""Client of the control API, for programs and tests: `Client`, `AsyncClient` and their answers."""

from aish.control.answers import (
    Answer,
    Approvals,
    EventPage,
    RunEnd,
    RunValue,
    Session,
    SessionEntry,
    State,
    Status,
    StepProgress,
)
from aish.control.async_client import AsyncClient
from aish.control.client import Client, EventStream
from aish.control.errors import (
    ApiError,
    ConflictError,
    ConnectionLostError,
    ControlError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    NotListeningError,
    RejectedError,
    RunEndedError,
    SilentError,
    UnansweredError,
    UnauthorizedError,
    UnexpectedAnswerError,
    WaitTimeoutError,
)
from aish.control.event_stream import AsyncEventStream
from aish.core.events import Exit
from aish.core.messages import Usage
from aish.features.approvals.questions import ApprovalQuestion

__all__ = [
    "Answer",
    "ApiError",
    "ApprovalQuestion",
    "Approvals",
    "AsyncClient",
    "AsyncEventStream",
    "Client",
    "ConflictError",
    "ConnectionLostError",
    "ControlError",
    "EventPage",
    "EventStream",
    "Exit",
    "ForbiddenError",
    "GoneError",
    "NotFoundError",
    "NotListeningError",
    "RejectedError",
    "RunEnd",
    "RunEndedError",
    "RunValue",
    "Session",
    "SessionEntry",
    "SilentError",
    "State",
    "Status",
    "StepProgress",
    "UnansweredError",
    "UnauthorizedError",
    "UnexpectedAnswerError",
    "Usage",
    "WaitTimeoutError",
]
