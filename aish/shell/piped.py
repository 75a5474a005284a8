"""Where a session speaks with nobody at a terminal: answers to stdout, the rest to stderr (1.2)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from aish.core.errors import AishError
from aish.core.events import RunFinished, Stamped, StepFinished, StepStarted
from aish.core.json import JsonValue
from aish.core.text import for_ci_log, for_line
from aish.output.event_log import Sink
from aish.output.formats.text import Manner
from aish.shell.columns import columns

Lost = Callable[[Sink, OSError], None]
"""Is told of a sink that cannot be written to."""
Mask = Callable[[str], str]
"""Makes secrets unreadable (X4)."""


class Answers:
    """Each answer to a stream that is no terminal: whole, when it is whole."""

    name = "the answers"
    deltas = False

    def __init__(self, out: BinaryIO, manner: Manner) -> None:
        self._out = out
        self._manner = manner
        self._kinds: dict[str | None, str] = {}
        self.gone = False
        """Whether nobody takes them any more."""

    def __call__(self, stamped: Stamped) -> None:
        """Write the text of a line that was answered."""
        event = stamped.event
        match event:
            case StepStarted(kind=kind):
                self._kinds[event.place.step] = kind
            case StepFinished() if self._kinds.pop(event.place.step, "") == "run":
                self._printed(event.output)
            case StepFinished(status="ok" | "budget", text=text) if text:
                self.write(text)
            case _:
                pass

    def _printed(self, output: JsonValue) -> None:
        """What a local command has printed is shown (S1)."""
        if not isinstance(output, Mapping):
            return
        if output.get("stdout"):
            self.write(str(output["stdout"]))
        if output.get("stderr"):
            _to_stderr(str(output["stderr"]))

    def write(self, text: str) -> None:
        """Write lines.

        Raises:
            OSError: they cannot be written.
        """
        whole = text if text.endswith("\n") else f"{text}\n"
        try:
            self._out.write(self._manner.clean(whole).encode("utf-8", "replace"))
            self._out.flush()
        except OSError:
            self.gone = True
            raise

    def close(self) -> None:
        """Nothing is open."""


class PipedOut:
    """`session.Out` where nobody is at a terminal: answers of commands are data."""

    def __init__(self, answers: Answers, lost: Lost, mask: Mask) -> None:
        self._answers = answers
        self._lost = lost
        self._mask = mask
        self.errors: set[str] = set()
        """What went wrong and was told."""

    @property
    def gone(self) -> bool:
        """Whether stdout takes no more."""
        return self._answers.gone

    def show(self, text: str) -> None:
        """To stdout; one that takes no more is told of once."""
        if self.gone:
            return
        try:
            self._answers.write(self._mask(text))
        except OSError as error:
            self._lost(self._answers, error)

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """A line each, for whoever reads them next."""
        cells = [[for_line(self._mask(cell)) for cell in row] for row in rows]
        for line in columns(cells, None):
            self.show(line)

    def error(self, error: AishError) -> None:
        """To stderr."""
        text = self._mask(str(error))
        self.errors.add(text)
        _complain(text, error.hint and self._mask(error.hint))


class LastWords:
    """Why a quiet session failed, on stderr, unless that was told when it happened."""

    name = "the log"
    deltas = False

    def __init__(self, told: PipedOut) -> None:
        self._told = told

    def __call__(self, stamped: Stamped) -> None:
        """Speak at the end only."""
        event = stamped.event
        if isinstance(event, RunFinished) and event.exit.code:
            end = event.exit
            if end.reason not in self._told.errors:
                _complain(end.reason, end.hint)

    def close(self) -> None:
        """Nothing is held back."""


def _complain(text: str, hint: str | None) -> None:
    more = f"\n  hint: {hint}" if hint else ""
    _to_stderr(f"error: {text}{more}\n")


def _to_stderr(text: str) -> None:
    """For who reads there; the session goes on as well where nobody does any more."""
    try:
        sys.stderr.write(for_ci_log(text))
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
