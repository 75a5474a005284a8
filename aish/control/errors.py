"""Errors of the control API, one exception for each kind of failure."""

from aish.core.errors import AishError, ExitCode
from aish.core.json import JsonObject


class ControlError(AishError):
    """A call of the control API failed: `message` says why, `hint` what to do."""


class ApiError(ControlError):
    """The API refused the request: `status` is the HTTP status, `code` a word for programs."""

    def __init__(self, status: int, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


class UnauthorizedError(ApiError):
    """The token is missing or not valid (401)."""


class ForbiddenError(ApiError):
    """The token lacks the scope, or this process may not connect (403)."""


class NotFoundError(ApiError):
    """There is no such question, value or path (404)."""


class ConflictError(ApiError):
    """The question is already answered, or the value has changed (409)."""


class GoneError(ApiError):
    """The question has expired or was withdrawn, or the events are no longer kept (410)."""


class RejectedError(ApiError):
    """The request is invalid (422)."""


class UnansweredError(ApiError):
    """Nobody answered in time (504)."""


class NotListeningError(ControlError):
    """No run listens at the address: it has not begun, has ended, or opened no socket."""

    code = "not_listening"
    exit_code = ExitCode.UNAVAILABLE
    retryable = True


class ConnectionLostError(ControlError):
    """The connection was lost after the request was sent; it may have been executed."""

    code = "connection_lost"
    exit_code = ExitCode.UNAVAILABLE


class SilentError(ConnectionLostError):
    """Nothing was received within the time limit."""


class UnexpectedAnswerError(ControlError):
    """The answer does not come from this API, but from another server or version."""

    code = "unexpected_answer"


class WaitTimeoutError(ControlError, TimeoutError):
    code = "wait_timeout"


class RunEndedError(ControlError):
    """The run ended before the awaited condition; `event` is its `run.finished`."""

    code = "run_ended"

    def __init__(self, message: str, event: JsonObject) -> None:
        super().__init__(message)
        self.event = event


BY_STATUS: dict[int, type[ApiError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: RejectedError,
    504: UnansweredError,
}
