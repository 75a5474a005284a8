"""What a job's page is made of: the file of the step's summary, and annotations on a stream."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TextIO

from aish.core.frozen import frozen
from aish.reports.github.commands import in_github

# A step may write 1024 KiB, and a summary over that is dropped whole.
LIMIT = 1000 * 1024
_VARIABLE = "GITHUB_STEP_SUMMARY"


@frozen
class Job:
    """The step this is: its variables, a stream that the runner reads, who is told of trouble."""

    environ: Mapping[str, str]
    out: TextIO
    warn: Callable[[str], None]

    def annotate(self, lines: Iterable[str]) -> None:
        """Print annotations; outside of GitHub Actions nobody would read them, which is said."""
        if not in_github(self.environ):
            if any(True for _ in lines):
                self.warn("`--github`: `GITHUB_ACTIONS` is not `true`, so no annotation is printed")
            return
        # A runner that has gone reads nothing more.
        with suppress(OSError):
            for line in lines:
                self.out.write(f"{line}\n")
            self.out.flush()

    def summarise(self, made: Callable[[int], str]) -> None:
        """Append the summary that `made` makes of at most so many bytes."""
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


def _append(path: str, made: Callable[[int], str]) -> bool:
    """Whether there was room after what is in the file already."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no plain file")
        # What another program wrote ends here, whatever it was in the middle of.
        begin = b"\n\n" if status.st_size else b""
        text = made(LIMIT - status.st_size - len(begin)).encode()
        rest = memoryview(begin + text if text else b"")
        while rest:
            rest = rest[file.write(rest) or 0 :]
    return bool(text)
