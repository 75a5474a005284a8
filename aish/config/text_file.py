"""From a path to text: every way in which a file cannot be one is a problem with a place (F10)."""

import stat
from pathlib import Path

from aish.core.errors import Position, Problem, UsageError
from aish.system.files import read_capped

PIPELINE_LIMIT = 5_000_000
REFERENCED_LIMIT = 4 * 1024 * 1024


class UnreadableError(Exception):
    """A file that is no text of a fit size; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_text(path: Path, limit: int = PIPELINE_LIMIT) -> str:
    """The text of a file.

    Raises:
        UnreadableError: it is missing, a folder, too large, binary, or not UTF-8.
    """
    try:
        data = _bytes(path, limit)
    except FileNotFoundError as error:
        raise UnreadableError(_problem(path, "no such file")) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableError(_problem(path, f"cannot be read: {reason}")) from error
    except ValueError as error:
        raise UnreadableError(_problem(path, "is not the name of a file")) from error
    except UsageError as error:
        raise UnreadableError(_problem(path, _too_large(limit))) from error
    return as_text(data, str(path), limit)


def reason(error: UnreadableError) -> str:
    """Why, as the end of a sentence that begins with the file."""
    message = error.problem.message
    return "is not there" if message == "no such file" else message


def _bytes(path: Path, limit: int) -> bytes:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise UnreadableError(_problem(path, "is a folder, not a file"))
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableError(_problem(path, "is not a plain file"))
    if status.st_size > limit:
        raise UnreadableError(_problem(path, _too_large(limit)))
    return read_capped(path, limit)


def as_text(data: bytes, file: str, limit: int = PIPELINE_LIMIT) -> str:
    """Bytes as text, a BOM left out.

    Raises:
        UnreadableError: they are too many, binary, or not UTF-8.
    """
    if len(data) > limit:
        raise UnreadableError(Problem(Position(file, 1, 1), "", _too_large(limit)))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unreadable(data, 0, file, "is UTF-16, not UTF-8", "save it as UTF-8")
    nul = data.find(b"\0")
    if nul >= 0:
        raise _unreadable(data, nul, file, "a NUL byte: this is a binary file, not text", None)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        message = f"not UTF-8: byte 0x{data[start]:02x}"
        raise _unreadable(data, start, file, message, "save it as UTF-8") from error
    return text


def _too_large(limit: int) -> str:
    size = f"{limit // 1_000_000} MB" if limit % 1_000_000 == 0 else f"{limit // 1024**2} MiB"
    return f"is larger than {size}"


def _problem(path: Path, message: str) -> Problem:
    return Problem(Position(str(path), 1, 1), "", message)


def _unreadable(
    data: bytes, offset: int, file: str, message: str, hint: str | None
) -> UnreadableError:
    before = data[:offset]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    return UnreadableError(Problem(Position(file, line, column), "", message, hint))
