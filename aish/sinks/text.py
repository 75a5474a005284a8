"""`--format text`: the final text of the last step, or `outputs` as YAML, and nothing else.

Once, when the run has ended, so that a withdrawn answer never reaches a pipe; as it comes on a
terminal or with `--stream`. An answer in a schema is the JSON value that was accepted, and nothing
where none was: never before the end, because only then it is known.
"""

import stat
from collections.abc import Callable, Mapping
from typing import BinaryIO

from aish.core.events import (
    RunFinished,
    Stamped,
    StepFinished,
    TextDelta,
    TextWithdrawn,
    TurnFinished,
)
from aish.core.frozen import frozen
from aish.core.text import for_ci_log, for_terminal, safe_utf8
from aish.sinks.json_text import json_text
from aish.sinks.yaml_text import yaml_text


@frozen
class Manner:
    """How a stranger's text is made fit for stdout; some ways need whole lines."""

    clean: Callable[[str], str]
    whole_lines: bool = False


TERMINAL = Manner(for_terminal)
CI_LOG = Manner(for_ci_log, whole_lines=True)
DATA = Manner(safe_utf8)


def manner_of(mode: int, environ: Mapping[str, str], *, is_terminal: bool) -> Manner:
    """The manner for a stream of file mode `mode`.

    In a CI job stdout is read for commands (B13); text that goes to a file is left as it is.
    """
    if is_terminal:
        return TERMINAL
    in_ci = any(environ.get(name) for name in ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION"))
    return CI_LOG if in_ci and not stat.S_ISREG(mode) else DATA


def accepted_text(step: StepFinished) -> str | None:
    """The JSON value that a step has answered with, `None` where its answer was rejected.

    An answer that fits its schema and not what the step expects beyond it is one, too.
    """
    if step.status == "ok" or (step.error is not None and step.error.code == "expectation"):
        return json_text(step.output, spaced=True)
    return None


class FinalText:
    """Writes the text of `last_step` to a binary stream.

    `outputs` says that the file has outputs: they are printed at the end, and no text is.
    `structured` says that the step answers in a schema.
    """

    name = "the answer"

    def __init__(
        self,
        out: BinaryIO,
        last_step: str,
        manner: Manner = DATA,
        *,
        stream: bool = False,
        outputs: bool = False,
        structured: bool = False,
    ) -> None:
        self.deltas = stream and not outputs and not structured
        self._out = out
        self._last_step = last_step
        self._manner = manner
        self._outputs = outputs
        self._structured = structured
        self._text: str | None = None
        self._turn = ""
        self._line = ""
        self._streamed: str | None = None

    def __call__(self, stamped: Stamped) -> None:
        """Write what this event adds to the answer."""
        match stamped.event:
            case TextDelta(place, text) if self.deltas and place.step == self._last_step:
                self._turn += text
                self._write(text)
            case TextWithdrawn(place) if self.deltas and place.step == self._last_step:
                self._end_turn()
                self._streamed = None
            case TurnFinished() as turn if self.deltas and turn.place.step == self._last_step:
                self._end_turn()
            case StepFinished() as step if step.place.step == self._last_step:
                self._end_turn()
                self._text = accepted_text(step) if self._structured else step.text
            case RunFinished() as finished:
                self._finish(finished)
            case _:
                pass

    def close(self) -> None:
        """End a line that was begun and never ended, as by an interrupt."""
        self._end_turn()

    def _finish(self, finished: RunFinished) -> None:
        self._end_turn()
        if self._outputs:
            if finished.outputs is not None:
                self._put(yaml_text(finished.outputs))
        elif self._text and self._text != self._streamed:
            self._put(self._text if self._text.endswith("\n") else f"{self._text}\n")

    def _end_turn(self) -> None:
        """What was written of a turn is a whole text, so it ends its line."""
        if not self._turn:
            return
        if not self._turn.endswith("\n"):
            self._write("\n")
        self._streamed, self._turn = self._turn, ""

    def _write(self, text: str) -> None:
        if self._manner.whole_lines:
            whole, end, self._line = (self._line + text).rpartition("\n")
            text = whole + end
        if text:
            self._put(text)

    def _put(self, text: str) -> None:
        self._out.write(safe_utf8(self._manner.clean(text)).encode())
        self._out.flush()
