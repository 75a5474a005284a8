"""Output of a step of GitHub Actions for its runner.

Workflow commands: `::error …::…` and `::add-mask::…`. Untrusted text in them remains data:
characters that end a line, a property or a command are escaped as the runner's parser expects. And
the file of the step summary, to which a page is appended.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TextIO

from aish.core.events import AnnotationLevel
from aish.core.frozen import frozen
from aish.core.phrases import shorten
from aish.core.text import for_terminal
from aish.system.secrets.secrets import Secrets

_LONGEST = 4000


@frozen
class Spot:
    """A place in a file of the repository; lines and columns count from 1."""

    file: str
    line: int | None = None
    column: int | None = None
    end_line: int | None = None


def annotation(level: AnnotationLevel, title: str, message: str, spot: Spot | None) -> str:
    """A line that makes the runner show `message` at its place in the file."""
    properties = {"title": title}
    if spot is not None:
        numbers = {"line": spot.line, "endLine": spot.end_line, "col": spot.column}
        known = {name: str(number) for name, number in numbers.items() if number is not None}
        properties = {"file": spot.file, **known, **properties}
    fields = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {fields}::{_data(_shorten(message))}"


def in_github(environ: Mapping[str, str]) -> bool:
    return environ.get("GITHUB_ACTIONS") == "true"


def mask_commands(secrets: Secrets) -> Iterator[str]:
    """The lines that make the runner mask each secret in whatever the job prints."""
    return (f"::add-mask::{_data(value)}" for value in secrets.plain())


def goes_to_the_runner(stream: TextIO) -> bool:
    """Return true for a pipe of its own, as the runner provides for stdout and stderr.

    A file would keep what is written to it, and so would the reader of `2>&1 |`.
    """
    try:
        status = os.fstat(stream.fileno())
        other = os.fstat(1)
    except (OSError, ValueError):
        return False
    same = (status.st_dev, status.st_ino) == (other.st_dev, other.st_ino)
    return stat.S_ISFIFO(status.st_mode) and not same


def _shorten(text: str) -> str:
    return for_terminal(shorten(text, _LONGEST))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(_shorten(text)).replace(":", "%3A").replace(",", "%2C")


# A step may write 1024 KiB; a larger summary is dropped whole.
LIMIT = 1000 * 1024
_VARIABLE = "GITHUB_STEP_SUMMARY"


@frozen
class RunnerJob:
    """The current step: its variables, a stream that the runner reads, a function for warnings."""

    environ: Mapping[str, str]
    out: TextIO
    warn: Callable[[str], None]

    def annotate(self, lines: Iterable[str]) -> None:
        """Print annotations; outside of GitHub Actions warn that nothing would read them."""
        if not in_github(self.environ):
            if any(True for _ in lines):
                self.warn("`--github`: `GITHUB_ACTIONS` is not `true`, so no annotation is printed")
            return
        # A runner that has exited reads nothing more.
        with suppress(OSError):
            for line in lines:
                self.out.write(f"{line}\n")
            self.out.flush()

    def summarise(self, made: Callable[[int], str]) -> None:
        """Append the summary that `made` returns for a maximum number of bytes."""
        path = self.environ.get(_VARIABLE)
        if not path:
            self.warn(f"`--github`: `{_VARIABLE}` is not set, so there is no summary")
            return
        try:
            written = _append(path, made)
        except OSError as error:
            self.warn(f"`--github`: the summary cannot be written: {error.strerror or error}")
            return
        if not written:
            self.warn("`--github`: the summary of this step is full, so this is not in it")


def _append(path: str, make: Callable[[int], str]) -> bool:
    """Append; returns whether there was space after the existing content."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        # Ends the output of another program, which may be incomplete.
        begin = b"\n\n" if status.st_size else b""
        text = make(LIMIT - status.st_size - len(begin)).encode()
        rest = memoryview(begin + text if text else b"")
        while rest:
            rest = rest[file.write(rest) or 0 :]
    return bool(text)
