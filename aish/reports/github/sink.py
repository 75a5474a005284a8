"""`--github`: a run for the page of its job, written when it has ended (B11)."""

import os
import stat
from collections.abc import Callable, Mapping
from typing import TextIO

from aish.reports.github.commands import Spot, in_github
from aish.reports.github.gathered import Gathered
from aish.reports.github.notes import annotations
from aish.reports.github.page import LIMIT
from aish.reports.github.summary import summary
from aish.vocab.events import Stamped

_VARIABLE = "GITHUB_STEP_SUMMARY"


class GitHub:
    """Folds events; `close` appends the summary and prints annotations to `out`.

    Outside of GitHub Actions nobody reads annotations, so none are printed. `warn` is told what
    could not be done.
    """

    name = "the GitHub summary"
    deltas = False

    def __init__(
        self,
        environ: Mapping[str, str],
        out: TextIO,
        spots: Mapping[str, Spot],
        warn: Callable[[str], None],
    ) -> None:
        self._environ = environ
        self._out = out
        self._spots = spots
        self._warn = warn
        self._run = Gathered()

    def __call__(self, stamped: Stamped) -> None:
        """Fold the event in."""
        self._run.take(stamped)

    def close(self) -> None:
        """Write both; the summary is lost alone."""
        self._run.end()
        if in_github(self._environ):
            for line in annotations(self._run, self._spots):
                self._out.write(f"{line}\n")
            self._out.flush()
        self._write_summary()

    def _write_summary(self) -> None:
        path = self._environ.get(_VARIABLE)
        if not path:
            self._warn(f"`--github`: `{_VARIABLE}` is not set, so there is no summary")
            return
        try:
            written = append_summary(path, self._run)
        except OSError as error:
            self._warn(f"`--github`: the summary cannot be written: {error.strerror or error}")
            return
        if not written:
            self._warn("`--github`: the summary of this step is full, so this run is not in it")


def append_summary(path: str, run: Gathered) -> bool:
    """Whether there was room for a summary after what is in the file already.

    Raises:
        OSError: the file cannot be written.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no plain file")
        # What another program wrote ends here, whatever it was in the middle of.
        begin = b"\n\n" if status.st_size else b""
        text = summary(run, LIMIT - status.st_size - len(begin)).encode()
        rest = memoryview(begin + text if text else b"")
        while rest:
            rest = rest[file.write(rest) or 0 :]
    return bool(text)
