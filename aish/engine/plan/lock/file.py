"""Lock files: where a pipeline's is, reading it, writing it (P8).

Most runs have none: what is in one is imported when there is one.
"""

from json import JSONDecodeError
from pathlib import Path

from aish.config.documents import parse_json
from aish.config.model import Pipeline
from aish.config.text_file import UnreadableError, read_text
from aish.core.errors import Position, Problem, UsageError
from aish.policy.lock import Difference, Lock

LIMIT = 16 * 1024 * 1024


class LockFileError(UsageError):
    """A lock file that cannot be used; `problem` has the place in it."""

    code = "lock_file"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message, where=str(problem.position), hint=problem.hint)
        self.problem = problem


def lock_path(pipeline: Pipeline) -> Path:
    """Where the pipeline's lock is, or would be: as `lock:` says, or beside the file."""
    return pipeline.lock or pipeline.file.with_name(f"{pipeline.file.stem}.lock.json")


def lock_of(pipeline: Pipeline) -> Lock | None:
    """The pipeline's lock; `None` where there is none and the file names none.

    Raises:
        LockFileError: it cannot be used, or the file names one that is not there.
    """
    path = lock_path(pipeline)
    if pipeline.lock is None and not path.exists() and not path.is_symlink():
        return None
    return read_lock(path, pipeline.file)


def is_ignored(found: Difference, pipeline: Pipeline) -> bool:
    """Whether the file says that such a difference is only to be told."""
    return f"{found.kind}s" in pipeline.lock_ignore


def read_lock(path: Path, pipeline: Path) -> Lock:
    """The lock in a file.

    Raises:
        LockFileError: there is none.
    """
    from aish.policy.lock import BadLockError, lock_of_data

    try:
        text = read_text(path, LIMIT)
    except UnreadableError as error:
        problem = error.problem
        message, hint = f"the lock file: {problem.message}", problem.hint
        if not path.exists():
            message, hint = "there is no lock file", f"`aish lock {pipeline}` writes it"
        raise LockFileError(_problem(path, message, hint)) from error
    if not text.strip():
        raise LockFileError(_problem(path, "the lock file is empty", _again(pipeline)))
    try:
        return lock_of_data(parse_json(text))
    except BadLockError as error:
        raise LockFileError(_problem(path, str(error), error.hint)) from error
    except JSONDecodeError as error:
        place = Position(str(path), error.lineno, error.colno)
        message = f"the lock file is not JSON: {error.msg}"
        raise LockFileError(Problem(place, "", message, _again(pipeline))) from error
    except ValueError as error:
        message = f"the lock file is not JSON: {error}"
        raise LockFileError(_problem(path, message, _again(pipeline))) from error


def write_lock(path: Path, lock: Lock) -> None:
    """Write the lock whole, in the place of an older one.

    Raises:
        UsageError: it cannot be written, or would be larger than can be read.
    """
    from aish.policy.lock import lock_text
    from aish.system.files import atomic_write

    data = lock_text(lock).encode()
    if len(data) > LIMIT:
        raise UsageError(
            f"the lock would be larger than {LIMIT // 1024**2} MiB",
            where=str(path),
            hint="leave tools out with `tools` or `exclude` of their server",
        )
    try:
        atomic_write(path, data)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _again(pipeline: Path) -> str:
    return f"restore it, or delete it and write a new one with `aish lock {pipeline}`"


def _problem(path: Path, message: str, hint: str | None) -> Problem:
    return Problem(Position(str(path), 1, 1), "", message, hint)
