"""Outputs of a session's events and commands: a terminal, or pipes.

Text is wrapped, and rows put in columns, at the width of a terminal; nothing is cut off.
"""

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import FileIO
from typing import TYPE_CHECKING, TextIO

from aish.core.errors import AishError
from aish.core.events import Event, RunFinished, Stamped
from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.core.text import for_ci_log, for_line, for_terminal
from aish.journal.history import RunHistory, Unit
from aish.output.event_log import EventLog, Sink
from aish.output.formats.text import FinalText, Manner, manner_for
from aish.output.rows import GAP, column_rows, spans
from aish.output.style import cells, look_of
from aish.shell.input.lines import Lines
from aish.system.clock import process_began
from aish.system.secrets.secrets import Secrets

if TYPE_CHECKING:
    # The prompt is drawn before this is imported.
    from aish.features.launch import OpenRun

_INDENT = "    "
_LAST = 24
"""How narrow the last column may become before another one does."""
_OTHER = 16
_LEAST = 8


def fold(text: str, room: int) -> list[str]:
    if cells(text) <= room:
        return [text]
    bare = text.lstrip(" ")
    indent = text[: min(len(text) - len(bare), max(room - _LEAST, 0))]
    return [indent + bare[start:end] for start, end in spans(bare, room - len(indent))]


def columns(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Each row as lines; without a `width` a row is one line.

    If the columns do not fit, cells are wrapped, and if that is not enough they follow one another.
    """
    if not rows:
        return
    natural = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    widths = natural if width is None else _fit_widths(natural, width)
    for row in rows:
        if widths is None:
            yield from _flow(row, width or 0)
        else:
            yield from column_rows(list(map(fold, row, widths)), widths)


def _fit_widths(natural: Sequence[int], width: int) -> list[int] | None:
    """The widths of columns that fit, narrowing the last one first; `None` if none do."""
    widths = list(natural)
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    order = [len(widths) - 1, *sorted(range(len(widths) - 1), key=lambda at: -widths[at])]
    for at in order:
        least = _LAST if at == len(widths) - 1 else _OTHER
        less = min(excess, max(widths[at] - least, 0))
        if less > 0:
            widths[at] -= less
            excess -= less
    return widths if excess <= 0 else None


def _flow(row: Sequence[str], width: int) -> Iterator[str]:
    line = row[0]
    for cell in row[1:]:
        if cells(line) + len(GAP) + cells(cell) <= width:
            line += GAP + cell
            continue
        yield from fold(line, width)
        line = _INDENT + cell
    yield from fold(line, width)


_NARROWEST = 20


class TerminalOut:
    """Answers of commands at a terminal, between the output of events."""

    gone = False
    """A terminal that goes away ends the session by itself."""

    def __init__(
        self,
        line: Callable[[str], None],
        paint: Callable[[str], str],
        width: Callable[[], int],
        mask: Callable[[str], str],
    ) -> None:
        self._line = line
        self._paint = paint
        self._width = width
        self._mask = mask

    def show(self, text: str) -> None:
        for line in self._mask(text).rstrip("\n").split("\n"):
            for part in fold(for_terminal(line), self._room()):
                self._line(part)

    def show_unfolded(self, text: str) -> None:
        """Show lines that a person copies whole: the terminal folds them, and knows that it did."""
        for line in for_terminal(self._mask(text)).split("\n"):
            self._line(line)

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        cells = [[for_line(self._mask(cell)) for cell in row] for row in rows]
        for line in columns(cells, self._room()):
            self._line(line)

    def error(self, error: AishError) -> None:
        for line in for_terminal(self._mask(f"error: {error}")).split("\n"):
            for part in fold(line, self._room()):
                self._line(self._paint(part))
        if error.hint:
            self.show(f"  hint: {error.hint}")

    def _room(self) -> int:
        # The last column stays free: terminals differ in their handling of it.
        return max(self._width() - 1, _NARROWEST)


Lost = Callable[[Sink, OSError], None]
"""Is told of a sink that cannot be written to."""
Mask = Callable[[str], str]
"""Makes secrets unreadable."""


class AnswerWriter(Sink):
    """Writes each answer to a stream that is not a terminal, once it is complete."""

    name = "the answers"

    def __init__(self, out: FileIO, manner: Manner) -> None:
        self._out = out
        self._manner = manner
        self._history = RunHistory()
        self.gone = False
        """Whether nobody takes them any more."""

    def __call__(self, stamped: Stamped) -> None:
        for unit in self._history.take(stamped):
            if not isinstance(unit, Unit) or unit.finished is None:
                continue
            if unit.kind == "run":
                if isinstance(unit.finished.output, Mapping):
                    if unit.finished.output.get("stdout"):
                        self.write(str(unit.finished.output["stdout"]))
                    if unit.finished.output.get("stderr"):
                        _to_stderr(str(unit.finished.output["stderr"]))
            elif unit.finished.status in {"ok", "budget"} and unit.finished.text:
                self.write(unit.finished.text)

    def write(self, text: str) -> None:
        """Write lines.

        Raises:
            OSError: they cannot be written.
        """
        whole = text if text.endswith("\n") else f"{text}\n"
        rest = self._manner.clean(whole).encode("utf-8", "replace")
        try:
            while rest:
                rest = rest[self._out.write(rest) :]
        except OSError:
            self.gone = True
            raise


class PipedOut:
    """Answers of commands without a terminal: they are data."""

    def __init__(self, answers: AnswerWriter, lost: Lost, mask: Mask) -> None:
        self._answers = answers
        self._lost = lost
        self._mask = mask
        self.errors: set[str] = set()
        """What went wrong and was told."""

    @property
    def gone(self) -> bool:
        return self._answers.gone

    def show(self, text: str) -> None:
        if self.gone:
            return
        try:
            self._answers.write(self._mask(text))
        except OSError as error:
            self._lost(self._answers, error)

    show_unfolded = show

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        cells = [[for_line(self._mask(cell)) for cell in row] for row in rows]
        for line in columns(cells, None):
            self.show(line)

    def error(self, error: AishError) -> None:
        text = self._mask(str(error))
        self.errors.add(text)
        _complain(text, error.hint and self._mask(error.hint))


Out = TerminalOut | PipedOut
"""The output for answers of commands, apart from the events."""


class LastWords(Sink):
    """Writes to stderr why a quiet session failed, unless that was reported when it happened."""

    name = "the log"

    def __init__(self, piped: PipedOut) -> None:
        self._piped = piped

    def __call__(self, stamped: Stamped) -> None:
        """React to the last event only."""
        event = stamped.event
        if isinstance(event, RunFinished) and event.exit.code:
            end = event.exit
            if end.reason not in self._piped.errors:
                _complain(end.reason, end.hint)


def _complain(text: str, hint: str | None) -> None:
    more = f"\n  hint: {hint}" if hint else ""
    _to_stderr(f"error: {text}{more}\n")


def _to_stderr(text: str) -> None:
    try:
        sys.stderr.write(for_ci_log(text))
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


_USUAL = 80


@frozen
class SessionOutput:
    attended: bool
    plain: bool = False
    quiet: bool = False
    verbose: bool = False


@frozen
class Outlets:
    """The outputs of a session; `pause` is entered while other code uses the terminal."""

    log: EventLog
    out: Out
    pause: Callable[[], AbstractContextManager[object]]
    visitor: Callable[[], Sink] | None
    lost: Lost

    @contextmanager
    def pause_for_question(self, lines: Lines) -> Generator[None]:
        """Used while a person is asked at the terminal: nothing is drawn, and keys are echoed."""
        with self.pause(), lines.question():
            yield

    def emit(self, event: Event) -> None:
        self.log.emit(event)

    def begin_run(self, run: "OpenRun") -> None:
        plan = run.launch.plan
        sinks = [] if self.visitor is None else [self.visitor()]
        if isinstance(self.out, PipedOut):
            outputs = plan.pipeline.outputs is not None
            manner, last = manner_for(sys.stdout), plan.steps[-1]
            structured = plan.answers_in_a_schema(last)
            out = sys.stdout.buffer
            sinks.append(FinalText(out, last.id, manner, outputs=outputs, structured=structured))
        run.begin(sinks, on_failure=self.lost)


def open_outlets(
    session_output: SessionOutput,
    stream: TextIO,
    journal: Sink | None,
    secrets: Secrets,
    clock: Clock,
    lost: Lost,
    after: int = 0,
    watching: Sequence[Sink] = (),
) -> Outlets:
    """The sinks of a session, whose journal is open already; `stream` is for people.

    `watching` are those of others, who are told after these.
    """
    output: Sink | None
    visitor: Callable[[], Sink] | None
    out: Out
    pause: Callable[[], AbstractContextManager[object]] = nullcontext
    others: list[Sink] = []
    mask = secrets.mask
    if session_output.attended:
        from aish.output.presenter import SESSION, Presenter
        from aish.output.screen import Screen

        look = look_of(stream, os.environ)
        screen = Screen(stream, look)
        talk = Presenter(
            screen, SESSION, markdown=not session_output.plain, verbose=session_output.verbose
        )
        output, pause, visitor = talk, talk.hold, talk.guest
        out = TerminalOut(talk.line, lambda text: look.paint("red", text), _width(stream), mask)
    else:
        from aish.output.formats.plain import Plain

        # Not the stream of `sys.stdout`, which discards what a reader that has gone does not take:
        # a session ends then, and asks for nothing that nobody reads.
        stdout = FileIO(sys.stdout.fileno(), "wb", closefd=False)
        answers = AnswerWriter(stdout, manner_for(sys.stdout))
        others.append(answers)
        out = piped = PipedOut(answers, lost, mask)
        output = LastWords(piped) if session_output.quiet else Plain(sys.stderr, process_began())
        # It counts the usage of that run itself.
        visitor = None if session_output.quiet else lambda: Plain(sys.stderr)
    sinks = [sink for sink in (journal, output, *others, *watching) if sink is not None]
    log = EventLog(
        sinks, clock=clock, secrets=secrets, on_failure=lost, after=after, journal=journal
    )
    return Outlets(log, out, pause, visitor, lost)


def _width(stream: TextIO) -> Callable[[], int]:
    def width() -> int:
        try:
            return os.get_terminal_size(stream.fileno()).columns or _USUAL
        except (OSError, ValueError):
            return _USUAL

    return width
