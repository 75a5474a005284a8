"""Exceptions of a run, and the exit code of each.

This module defines the whole exception tree: other packages raise these errors and `cli.boundary`
turns them into a message, a hint and an exit code. A failure that only the model should see is a
tool result, not an exception.
"""

from collections.abc import Iterable
from enum import IntEnum

from aish.core.frozen import frozen


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    DENIED = 3
    BUDGET = 4
    UNAVAILABLE = 5
    CASSETTE = 6
    LOCK = 7
    PAUSED = 8
    INTERNAL = 70
    INTERRUPTED = 130
    TERMINATED = 143


class AishError(Exception):
    """A failure a person can act on.

    `message` is one sentence without a full stop, `where` names the place (`file:line:col`, a
    server alias, a step id), `hint` says what to do next, `retryable` whether the same could
    succeed another time.
    """

    exit_code: ExitCode = ExitCode.FAILED
    code: str = "failed"
    retryable: bool = False

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        if hint is not None:
            # A traceback and a notebook show notes.
            self.add_note(f"hint: {hint}")

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class UsageError(AishError):
    """An invalid flag, input value or file; nothing was contacted."""

    exit_code = ExitCode.USAGE
    code = "usage"


@frozen
class Position:
    """A place in a file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@frozen
class Problem:
    """Problem of a pipeline file.

    `path` is the path in the file, such as `steps[0].prompt`; empty for the file as a whole.
    """

    position: Position
    path: str
    message: str
    hint: str | None = None
    warning: bool = False

    def __str__(self) -> str:
        place = f"{self.position}: {self.path}: " if self.path else f"{self.position}: "
        return f"{place}{self.message}"


class PipelineError(UsageError):
    """A pipeline file that cannot be run, with all its problems in the order of the file."""

    code = "invalid_pipeline"

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))
        for hint in dict.fromkeys(problem.hint for problem in problems if problem.hint is not None):
            self.add_note(f"hint: {hint}")


class StepFailedError(AishError):
    code = "step_failed"


class BudgetError(AishError):
    """A limit was reached."""

    exit_code = ExitCode.BUDGET
    code = "budget"


class JournalLostError(AishError):
    """Journal record that must exist before an action counts could not be written."""

    code = "journal_lost"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="`--resume` continues once there is space")


class UnavailableError(AishError):
    """A model endpoint or a required server could not be reached or refused credentials."""

    exit_code = ExitCode.UNAVAILABLE
    code = "unavailable"
    retryable = True


class LockDiffersError(AishError):
    """The resolved pipeline does not match its lock file."""

    exit_code = ExitCode.LOCK
    code = "lock"


_LONGEST_COMPARED = 100
_MOST_COMPARED = 20_000
"""Characters of all names that one is compared with: the time grows with the product."""


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The hint with the closest known name, if one is similar enough."""
    from difflib import get_close_matches

    names: list[str] = []
    left = _MOST_COMPARED if len(name) <= _LONGEST_COMPARED else 0
    for known_name in known:
        if left <= 0:
            break
        if len(known_name) <= _LONGEST_COMPARED:
            names.append(known_name)
            left -= len(known_name)
    folded = {known_name.lower(): known_name for known_name in reversed(names)}
    near = get_close_matches(name, names, n=1, cutoff=0.6) or [
        folded[match] for match in get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    ]
    return f"did you mean `{near[0]}`" if near else None


class InternalError(AishError):
    """An internal error as the event stream reports it; the exception propagates to `main`."""

    exit_code = ExitCode.INTERNAL
    code = "internal"
