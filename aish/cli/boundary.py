"""Turns exceptions into a message, a hint and an exit code; the only place that does so."""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from stat import S_ISFIFO
from typing import Any, TextIO

from aish.core.errors import AishError, ExitCode, PipelineError
from aish.core.text import for_ci_log
from aish.system.files import MANY_FILES, MANY_FILES_HINT, lacks_descriptors

_lost: list[OSError] = []
"""Why stdout takes nothing more."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


def run_guarded(call: Callable[[], int], *, verbose: bool) -> int:
    """Run `call`; every exception becomes an `ExitCode`, never a traceback.

    A reader that closes our output (`| head`) changes nothing: the rest is discarded. So it is if
    the output cannot be written (a full disk), and 0 becomes 1.
    """
    _lost.clear()
    sys.stdout, sys.stderr = _without_broken_pipe(sys.stdout), _without_broken_pipe(sys.stderr)
    try:
        code = call()
    except AishError as error:
        report(error)
        code = int(error.exit_code)
    except (KeyboardInterrupt, EOFError):
        say("interrupted")
        code = int(ExitCode.INTERRUPTED)
    except OSError as error:
        code = _surroundings(error, verbose=verbose)
    except Exception as error:  # ruff: ignore[blind-except] - the outermost handler: a bug must not print a traceback
        code = _internal(error, verbose=verbose)
    return _flush(code)


def report(error: AishError) -> None:
    if isinstance(error, PipelineError):
        from aish.cli.problems import ProblemPrinter

        printer = ProblemPrinter(say)
        for problem in error.problems:
            printer.say(problem, "warning" if problem.warning else "error")
        return
    from aish.system.secrets.literal_keys import without_keys

    say(without_keys(f"error: {error}"))
    if error.hint:
        say(without_keys(f"\nhint: {error.hint}"))


def say(text: str) -> None:
    """Lines for people, on stderr; untrusted text cannot control terminal or CI runner."""
    try:
        sys.stderr.write(for_ci_log(text) + "\n")
        sys.stderr.flush()
    except OSError:
        # Stderr is closed; the exit code still reports the error.
        return


def lose_output(error: OSError) -> None:
    """Discard what is printed from now on; said once."""
    if not _lost:
        say(f"error: cannot write to stdout: {error.strerror}")
    _lost.append(error)
    _discard(sys.stdout.fileno())


def code_with_output(code: int) -> int:
    """An exit code, or 1 if the command succeeded and its output was lost."""
    return code or (int(ExitCode.FAILED) if _lost else 0)


def _surroundings(error: OSError, *, verbose: bool) -> int:
    """A full disk and too many open files are not bugs; any other error of the system is one."""
    if lacks_descriptors(error):
        report(AishError(MANY_FILES, hint=MANY_FILES_HINT))
        return int(ExitCode.FAILED)
    if error.errno not in _NO_ROOM:
        return _internal(error, verbose=verbose)
    where = f"{error.filename}: " if error.filename else ""
    say(f"error: {where}cannot write: {error.strerror}")
    return int(ExitCode.FAILED)


def _internal(error: Exception, *, verbose: bool) -> int:
    from aish.system.secrets.literal_keys import without_keys

    text = without_keys("".join(traceback.format_exception(error)))
    if verbose:
        say(text)
    say(without_keys(f"error: this is a bug in aish: {type(error).__name__}: {error}"))
    log = _write_log(text)
    where = f"the details are in {log}; " if log else "run again with `--verbose` for details; "
    say(f"\nhint: {where}please report it with them")
    return int(ExitCode.INTERNAL)


def _write_log(text: str) -> Path | None:
    from aish.system.files import private_folder, state_folder, write_private

    try:
        log = private_folder(state_folder()) / f"crash-{os.getpid()}-{os.urandom(4).hex()}.log"
        write_private(log, text.encode("utf-8", "replace"))
    except (OSError, AishError):
        return None
    return log


def _flush(code: int) -> int:
    """Flush now, so that a closed output causes no traceback when the interpreter exits."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if code == ExitCode.OK:
            lose_output(error)
        else:
            _discard(sys.stdout.fileno())
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr.fileno())
    return code_with_output(code)


class _Pipe(FileIO):
    """The writing end of a pipe; without a reader it takes everything."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _discard(self.fileno())
            return memoryview(data).nbytes


def _without_broken_pipe(stream: TextIO) -> TextIO:
    """The stream itself, or if it is a pipe, one of the same kind that needs no reader."""
    if type(stream) is not TextIOWrapper:
        return stream
    # Without a buffer (`PYTHONUNBUFFERED`) the stream writes to the file itself.
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, FileIO):
        return stream
    if isinstance(raw, _Pipe) or not S_ISFIFO(os.fstat(raw.fileno()).st_mode):
        return stream
    stream.flush()
    pipe = _Pipe(raw.fileno(), "w", closefd=False)
    return TextIOWrapper(
        pipe if stream.buffer is raw else BufferedWriter(pipe),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _discard(descriptor: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
