"""The final state alone decides the exit code."""

from collections.abc import Sequence
from typing import Literal

from aish.core.errors import AishError, ExitCode
from aish.core.events import Exit, Failure, StepStatus
from aish.core.frozen import frozen
from aish.engine.records import StepRecord

# If several apply, the first of these is used.
PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
    ExitCode.INTERNAL,
    ExitCode.USAGE,
    ExitCode.CASSETTE,
    ExitCode.LOCK,
    ExitCode.DENIED,
    ExitCode.BUDGET,
    ExitCode.UNAVAILABLE,
    ExitCode.PAUSED,
    ExitCode.FAILED,
    ExitCode.OK,
)
NAMES = {
    ExitCode.OK: "ok",
    ExitCode.FAILED: "failed",
    ExitCode.USAGE: "usage",
    ExitCode.DENIED: "denied",
    ExitCode.BUDGET: "budget",
    ExitCode.UNAVAILABLE: "unavailable",
    ExitCode.CASSETTE: "cassette",
    ExitCode.LOCK: "lock",
    ExitCode.PAUSED: "paused",
    ExitCode.INTERNAL: "internal",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.TERMINATED: "interrupted",
}
# Failures that a retry could fix.
RETRYABLE = frozenset({ExitCode.UNAVAILABLE, ExitCode.INTERRUPTED, ExitCode.TERMINATED})

RunStatus = StepStatus | Literal["interrupted"]

_STATUS: dict[ExitCode, RunStatus] = {
    ExitCode.OK: "ok",
    ExitCode.DENIED: "denied",
    ExitCode.BUDGET: "budget",
    ExitCode.PAUSED: "paused",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.TERMINATED: "interrupted",
}


@frozen
class FinalState:
    """Everything relevant for the exit code: the steps, and what ended the run around them.

    `others` are results of a cassette at the end, and swallowed errors.
    """

    records: Sequence[StepRecord]
    error: AishError | None = None
    signal: ExitCode | None = None
    others: tuple[AishError, ...] = ()


@frozen
class _UnitFailure:
    text: str
    hint: str | None = None
    retryable: bool = True


def decide_exit(state: FinalState) -> Exit:
    """The exit that `state` calls for, with the reason a person reads."""
    reasons: dict[ExitCode, _UnitFailure] = {}
    if state.signal is not None:
        reasons[state.signal] = _UnitFailure("interrupted")
    for error in (*((state.error,) if state.error is not None else ()), *state.others):
        reasons.setdefault(
            error.exit_code, _UnitFailure(str(error), error.hint, retryable=error.retryable)
        )
    for record in state.records:
        if record.exit_code is not ExitCode.OK:
            reasons.setdefault(record.exit_code, _step_reason(record))
    code = next((code for code in PRECEDENCE if code in reasons), ExitCode.OK)
    reason = reasons.get(code, _UnitFailure(""))
    return Exit(
        code=int(code),
        name=NAMES[code],
        retryable=code in RETRYABLE and reason.retryable,
        reason=reason.text,
        hint=reason.hint,
    )


def weightiest(ends: Sequence[Exit]) -> Exit:
    """The one with the highest priority; the first of several."""
    return min(ends, key=lambda end: PRECEDENCE.index(ExitCode(end.code)))


def status_of(code: int) -> RunStatus:
    return _STATUS.get(ExitCode(code), "failed")


def failure_of(error: AishError) -> Failure:
    """An error as events carry it."""
    message = str(error)
    if error.exit_code is ExitCode.CASSETTE:
        # The first line is the reason of the run's end; the rest is the diff.
        message = message.partition("\n")[0]
    return Failure(code=error.code, message=message, hint=error.hint)


def _step_reason(record: StepRecord) -> _UnitFailure:
    failure = record.failure
    message = failure.message if failure else record.status
    return _UnitFailure(
        f"step `{record.id}`: {message}",
        failure.hint if failure else None,
        retryable=record.retryable,
    )
