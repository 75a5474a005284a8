"""Report files of a command: none of an earlier one survives it, and JUnit tells its exit code."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from aish.cli.boundary import code_with_output
from aish.core.errors import AishError, ExitCode
from aish.core.text import for_line
from aish.output.formats.junit import (
    CaseResult,
    CaseSuite,
    Trouble,
    TroubleState,
    junit_xml,
    name_apart,
)
from aish.reports.junit import FAILURES
from aish.system.files import atomic_write
from aish.system.secrets.literal_keys import without_keys

_BEGINNING = 512
# A file without any of these is not a report: its name was given by mistake.
_SIGNS = (b"<testsuite", b"<!doctype html", b"sarif")
_COUNTS = re.compile(rb'<testsuites[^>]* failures="(\d+)" errors="(\d+)"')
_END = b"</testsuites>\n"


@contextmanager
def report_files(
    name: str, junit: Path | None, *others: Path | None
) -> Generator[Callable[[int], int]]:
    """Remove reports of earlier commands; the value takes the exit code of this one.

    Whatever ends it with another code than 0, JUnit has a failure or an error, or is not there.
    """
    for path in filter(None, (junit, *others)):
        # What cannot be removed cannot be written either, which is an error of its own.
        with suppress(OSError):
            if path.is_file() and _is_report(path):
                path.unlink()
    code = 0

    def set_code(with_code: int) -> int:
        nonlocal code
        code = with_code
        return code

    try:
        yield set_code
    except Exception as error:
        if junit is not None:
            _redden(junit, name, _trouble(error))
        raise
    code = code_with_output(code)
    if code and junit is not None:
        message = f"the command ended with exit code {code}"
        _redden(junit, name, Trouble(_state(code), "exit_code", message))


def _is_report(path: Path) -> bool:
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING).lower()
    return any(sign in beginning for sign in _SIGNS)


def _trouble(error: Exception) -> Trouble:
    message, code, kind = str(error), ExitCode.INTERNAL, "internal"
    if isinstance(error, AishError):
        code, kind = error.exit_code, error.code
        message += f"\nhint: {error.hint}" if error.hint else ""
    elif isinstance(error, OSError):
        code, kind = ExitCode.FAILED, "failed"
    message = without_keys(message)
    return Trouble(_state(code), kind, for_line(message.partition("\n")[0]), message)


def _state(code: int) -> TroubleState:
    return "failure" if code in FAILURES else "error"


def _redden(path: Path, name: str, trouble: Trouble) -> None:
    """Make the report say why the command did not succeed, unless it says so already."""
    with suppress(OSError):
        written = None
        if path.exists() or path.is_symlink():
            written = path.read_bytes() if path.is_file() else b""
            if not (counts := _COUNTS.search(written)) or any(map(int, counts.groups())):
                return
        unique = name_apart(name, lambda one: f'classname="run"{one}'.encode() in (written or b""))
        suite = CaseSuite("run", (CaseResult(unique, "run", 0.0, troubles=(trouble,)),))
        whole = junit_xml(name, (suite,))
        if written is not None:
            whole = _with_suite(written, whole, trouble.state)
        atomic_write(path, whole, shared=True)


def _with_suite(written: bytes, other: bytes, state: str) -> bytes:
    """A report without a failure, and the only suite of another one behind its own."""
    begin, end = other.index(b"  <testsuite "), other.index(_END)
    opening = re.search(rb"<testsuites[^>]*>", written)
    assert opening is not None, "it has counts"
    count = {"failure": b"failures", "error": b"errors"}[state]
    more = re.sub(rb' tests="(\d+)"', lambda one: b' tests="%d"' % (int(one[1]) + 1), opening[0])
    more = more.replace(b' %s="0"' % count, b' %s="1"' % count)
    body = written[opening.end() : written.rindex(_END)]
    return written[: opening.start()] + more + body + other[begin:end] + _END
