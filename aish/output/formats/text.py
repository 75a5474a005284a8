"""`--format text`: the final text of the last step, or `outputs` as YAML, and nothing else.

Written once, when the run has ended, so that a withdrawn answer never reaches a pipe; as it arrives
on a terminal or with `--stream`. A structured answer is the accepted JSON value, or nothing if none
was accepted; it is written at the end, when that is known.

JSON values as readable YAML 1.2: `outputs` on stdout.

`--format text` of a run whose last step has items: the text of each, in the order of the items.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any, BinaryIO, TextIO

from aish.core.events import (
    RunFinished,
    Stamped,
    StepFinished,
    TextDelta,
    TextWithdrawn,
    TurnFinished,
)
from aish.core.frozen import frozen
from aish.core.json import JsonValue, json_text, safe_json
from aish.core.patterns import lazy_pattern
from aish.core.phrases import counted
from aish.core.text import for_ci_log, for_terminal, safe_utf8
from aish.output.event_log import Sink
from aish.output.items.results import ItemsFile, Row

_PLAIN = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
# Words that some YAML readers do not read as strings.
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def yaml_text(value: JsonValue) -> str:
    """The value as a YAML document with a line end."""
    if isinstance(value, (Mapping, list, tuple)) and value:
        return "".join(f"{line}\n" for line in _block(value, ""))
    return f"{_scalar(value)}\n"


def _block(value: Any, indent: str) -> Iterator[str]:
    """The lines of a mapping or a list that is not empty."""
    pairs: Iterator[tuple[str, Any]]
    if isinstance(value, Mapping):
        pairs = ((f"{_scalar(key)}:", item) for key, item in value.items())
    else:
        pairs = (("-", item) for item in value)
    for lead, item in pairs:
        if isinstance(item, (Mapping, list, tuple)) and item:
            lines = _block(item, f"{indent}  ")
            # The first line of an item follows its dash.
            first = "" if lead != "-" else f" {next(lines).lstrip()}"
            yield f"{indent}{lead}{first}"
            yield from lines
        elif isinstance(item, str) and _is_literal(item):
            # `-` or `+`: whether the text ends with a line end.
            yield f"{indent}{lead} |{'' if item.endswith(chr(10)) else '-'}"
            yield from (
                f"{indent}  {line}" if line else "" for line in item.removesuffix("\n").split("\n")
            )
        else:
            yield f"{indent}{lead} {_scalar(item)}"


def _scalar(value: JsonValue) -> str:
    if not isinstance(value, str):
        return json_text(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # YAML has no surrogate pairs as JSON has, but an escape of its own for these characters.
    return safe_json(encode_basestring(value), lambda character: f"\\U{ord(character):08x}")


def _is_literal(text: str) -> bool:
    """Return true if a `|` block represents exactly this."""
    body = text.removesuffix("\n")
    return (
        "\n" in body
        and not body.endswith("\n")
        and not body.startswith((" ", "\n"))
        and "\t" not in body
        and "##" not in body
        and for_terminal(text) == text
    )


@frozen
class Manner:
    """The way in which untrusted text is sanitized for stdout; some ways need whole lines."""

    clean: Callable[[str], str]
    whole_lines: bool = False


TERMINAL = Manner(for_terminal)
CI_LOG = Manner(for_ci_log, whole_lines=True)
DATA = Manner(safe_utf8)


def manner_of(mode: int, environ: Mapping[str, str], *, is_terminal: bool) -> Manner:
    """The manner for a stream with file mode `mode`.

    In a CI job commands are read from stdout; text written to a file is not changed.
    """
    if is_terminal:
        return TERMINAL
    in_ci = any(environ.get(name) for name in ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION"))
    return CI_LOG if in_ci and not stat.S_ISREG(mode) else DATA


def manner_for(out: BinaryIO | TextIO) -> Manner:
    """The manner of writing untrusted text: unchanged to a file, sanitized for people."""
    try:
        mode, terminal = os.fstat(out.fileno()).st_mode, out.isatty()
    except OSError:
        # A buffer has no descriptor: it becomes a file.
        return DATA
    return manner_of(mode, os.environ, is_terminal=terminal)


def text_of_answer(step: StepFinished) -> str | None:
    """The JSON value that a step answered with; `None` if its answer was rejected.

    An answer that matches its schema but fails the step's expectations is returned, too.
    """
    if step.status == "ok" or (step.error is not None and step.error.code == "expectation"):
        return json_text(step.output, spaced=True)
    return None


class FinalText:
    """Writes the text of `last_step` to a binary stream.

    `outputs`: the file has outputs, which are printed at the end instead of the text. `structured`:
    the step has an answer schema.
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
                self._text = text_of_answer(step) if self._structured else step.text
            case RunFinished() as finished:
                self._end_turn()
                if self._outputs:
                    if finished.outputs is not None:
                        self._put(yaml_text(finished.outputs))
                elif self._text and self._text != self._streamed:
                    self._put(self._text if self._text.endswith("\n") else f"{self._text}\n")
            case _:
                pass

    def close(self) -> None:
        """End an unfinished line, as after an interrupt."""
        self._end_turn()

    def _end_turn(self) -> None:
        """End the line of a turn: what was written of it is a whole text."""
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


class ItemTexts(Sink):
    """Writes the texts when the run has ended, each with a line end, without failed items.

    Must follow the results file, which it reads. `say` reports how many were left out.
    """

    name = "the answer"

    def __init__(
        self,
        out: BinaryIO,
        items: ItemsFile,
        step: str,
        say: Callable[[str], None],
        manner: Manner = DATA,
        *,
        structured: bool = False,
    ) -> None:
        self._out = out
        self._items = items
        self._step = step
        self._say = say
        self._manner = manner
        self._structured = structured

    def __call__(self, stamped: Stamped) -> None:
        if not isinstance(stamped.event, RunFinished):
            return
        left_out = 0
        for row in self._items.rows(self._step):
            if row["status"] == "ok":
                self._put(self._text(row))
            else:
                left_out += 1
        self._out.flush()
        if left_out:
            are = "is" if left_out == 1 else "are"
            self._say(f"note: {counted(left_out, 'item')} without a result {are} left out")

    def _put(self, text: str) -> None:
        whole = text if text.endswith("\n") else f"{text}\n"
        self._out.write(safe_utf8(self._manner.clean(whole)).encode())

    def _text(self, row: Row) -> str:
        """A structured answer is its value, not the text around it."""
        if self._structured or (row["text"] is None and row["output"] is not None):
            return json_text(row["output"], spaced=True)
        return row["text"] or ""
