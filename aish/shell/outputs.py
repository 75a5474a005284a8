"""Outputs of a session's events and commands: a terminal, or pipes (1.2, B12).

Text is wrapped, and rows put in columns, at the width of a terminal; nothing is cut off. Pure.
"""

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import FileIO
from typing import TextIO

from aish.core.errors import AishError
from aish.core.events import Event, RunFinished, Stamped
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.protocols import Clock
from aish.core.text import for_ci_log, for_line, for_terminal
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.journal.history import History, Unit
from aish.output.event_log import EventLog, Sink
from aish.output.formats.text import DATA, FinalText, Manner, manner_of
from aish.output.rows import spans
from aish.output.style import cells, look_of
from aish.shell.input.lines import Lines
from aish.system.clock import process_began
from aish.system.secrets.secrets import Secrets

_GAP = "  "
_INDENT = "    "
_LAST = 24
"""How narrow the last column may become before another one does."""
_OTHER = 16
_LEAST = 8


def fold(text: str, room: int) -> list[str]:
    """Lines of at most `room` cells, wrapped between words and indented like the text."""
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
    widths = natural if width is None else _fitted(natural, width)
    for row in rows:
        yield from _flowing(row, width or 0) if widths is None else _in_columns(row, widths)


def _fitted(natural: Sequence[int], width: int) -> list[int] | None:
    """The widths of columns that fit, narrowing the last one first; `None` if none do."""
    found = list(natural)
    excess = sum(found) + len(_GAP) * (len(found) - 1) - width
    order = [len(found) - 1, *sorted(range(len(found) - 1), key=lambda at: -found[at])]
    for at in order:
        least = _LAST if at == len(found) - 1 else _OTHER
        less = min(excess, max(found[at] - least, 0))
        if less > 0:
            found[at] -= less
            excess -= less
    return found if excess <= 0 else None


def _in_columns(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    folded = list(map(fold, row, widths))
    for at in range(max(map(len, folded))):
        parts = (cell[at] if at < len(cell) else "" for cell in folded)
        padded = (
            part + " " * (width - cells(part)) for part, width in zip(parts, widths, strict=True)
        )
        yield _GAP.join(padded).rstrip()


def _flowing(row: Sequence[str], width: int) -> Iterator[str]:
    """The cells one after the other; one that does not fit begins a line."""
    line = row[0]
    for cell in row[1:]:
        if cells(line) + len(_GAP) + cells(cell) <= width:
            line += _GAP + cell
            continue
        yield from fold(line, width)
        line = _INDENT + cell
    yield from fold(line, width)


_NARROWEST = 20


class TerminalOut:
    """`session.Out` at a terminal, between the output of events."""

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
        """Show lines, wrapped between words."""
        for line in self._mask(text).rstrip("\n").split("\n"):
            for part in fold(for_terminal(line), self._room()):
                self._line(part)

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Show rows in columns that fit."""
        cells = [[for_line(self._mask(cell)) for cell in row] for row in rows]
        for line in columns(cells, self._room()):
            self._line(line)

    def error(self, error: AishError) -> None:
        """In red, with its hint."""
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
"""Makes secrets unreadable (X4)."""


class Answers:
    """Writes each answer to a stream that is not a terminal, once it is complete."""

    name = "the answers"
    deltas = False

    def __init__(self, out: FileIO, manner: Manner) -> None:
        self._out = out
        self._manner = manner
        self._history = History()
        self.gone = False
        """Whether nobody takes them any more."""

    def __call__(self, stamped: Stamped) -> None:
        """Write the text of a line that was answered."""
        for one in self._history.take(stamped):
            if not isinstance(one, Unit) or one.finished is None:
                continue
            if one.kind == "run":
                self._printed(one.finished.output)
            elif one.finished.status in {"ok", "budget"} and one.finished.text:
                self.write(one.finished.text)

    def _printed(self, output: JsonValue) -> None:
        """Show the output of a local command (S1)."""
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
        rest = self._manner.clean(whole).encode("utf-8", "replace")
        try:
            while rest:
                rest = rest[self._out.write(rest) :]
        except OSError:
            self.gone = True
            raise

    def close(self) -> None:
        """Nothing to close."""


class PipedOut:
    """`session.Out` without a terminal: answers of commands are data."""

    def __init__(self, answers: Answers, lost: Lost, mask: Mask) -> None:
        self._answers = answers
        self._lost = lost
        self._mask = mask
        self.errors: set[str] = set()
        """What went wrong and was told."""

    @property
    def gone(self) -> bool:
        """Whether stdout was closed by its reader."""
        return self._answers.gone

    def show(self, text: str) -> None:
        """Write to stdout; a failure is reported once."""
        if self.gone:
            return
        try:
            self._answers.write(self._mask(text))
        except OSError as error:
            self._lost(self._answers, error)

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """One line for each row, for programs."""
        cells = [[for_line(self._mask(cell)) for cell in row] for row in rows]
        for line in columns(cells, None):
            self.show(line)

    def error(self, error: AishError) -> None:
        """To stderr."""
        text = self._mask(str(error))
        self.errors.add(text)
        _complain(text, error.hint and self._mask(error.hint))


class LastWords:
    """Writes to stderr why a quiet session failed, unless that was reported when it happened."""

    name = "the log"
    deltas = False

    def __init__(self, piped: PipedOut) -> None:
        self._piped = piped

    def __call__(self, stamped: Stamped) -> None:
        """React to the last event only."""
        event = stamped.event
        if isinstance(event, RunFinished) and event.exit.code:
            end = event.exit
            if end.reason not in self._piped.errors:
                _complain(end.reason, end.hint)

    def close(self) -> None:
        """Nothing is buffered."""


def _complain(text: str, hint: str | None) -> None:
    more = f"\n  hint: {hint}" if hint else ""
    _to_stderr(f"error: {text}{more}\n")


def _to_stderr(text: str) -> None:
    """Write to stderr; a closed stderr does not end the session."""
    try:
        sys.stderr.write(for_ci_log(text))
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


_USUAL = 80


@frozen
class SessionOutput:
    """The output options of a session."""

    attended: bool
    plain: bool = False
    quiet: bool = False
    verbose: bool = False


@frozen
class Outlets:
    """The outputs of a session; `pause` is entered while other code uses the terminal."""

    log: EventLog
    out: PipedOut | TerminalOut
    pause: Callable[[], AbstractContextManager[object]]
    visitor: Callable[[], Sink] | None
    lost: Lost

    @contextmanager
    def asking(self, lines: Lines) -> Generator[None]:
        """Used while a person is asked at the terminal: nothing is drawn, and keys are echoed."""
        with self.pause(), lines.question():
            yield

    def emit(self, event: Event) -> None:
        """The `Emit` of the session."""
        self.log.emit(event)

    @contextmanager
    def of_run(
        self, plan: Plan, folder: RunFolder, clock: Clock, watching: Sequence[Sink] = ()
    ) -> Generator[EventLog]:
        """The outputs for events of a pipeline that is run in the session (`:run`)."""
        sinks: list[Sink] = []
        journal: Sink | None = None
        if folder.path is not None:
            from aish.journal.writer import open_journal

            with folder.beginning():
                journal = open_journal(folder.path)
            sinks.append(journal)
        if self.visitor is not None:
            sinks.append(self.visitor())
        if isinstance(self.out, PipedOut):
            outputs = plan.pipeline.outputs is not None
            manner, last = _manner(os.environ), plan.steps[-1]
            structured = plan.answers_in_a_schema(last)
            out = sys.stdout.buffer
            text = FinalText(out, last.id, manner, outputs=outputs, structured=structured)
            sinks.append(text)
        sinks += watching
        log = EventLog(
            sinks, clock=clock, secrets=plan.secrets, on_failure=self.lost, journal=journal
        )
        try:
            yield log
        finally:
            log.close()


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
    shown: Sink | None
    visitor: Callable[[], Sink] | None
    out: PipedOut | TerminalOut
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
        shown, pause, visitor = talk, talk.hold, talk.guest
        out = TerminalOut(talk.line, lambda text: look.paint("red", text), _width(stream), mask)
    else:
        from aish.output.formats.plain import Plain

        # Not the stream of `sys.stdout`, which discards what a reader that has gone does not take:
        # a session ends then, and asks for nothing that nobody reads.
        stdout = FileIO(sys.stdout.fileno(), "wb", closefd=False)
        answers = Answers(stdout, _manner(os.environ))
        others.append(answers)
        out = piped = PipedOut(answers, lost, mask)
        shown = LastWords(piped) if session_output.quiet else Plain(sys.stderr, process_began())
        # It counts the usage of that run itself.
        visitor = None if session_output.quiet else lambda: Plain(sys.stderr)
    sinks = [sink for sink in (journal, shown, *others, *watching) if sink is not None]
    log = EventLog(
        sinks, clock=clock, secrets=secrets, on_failure=lost, after=after, journal=journal
    )
    return Outlets(log, out, pause, visitor, lost)


def _width(stream: TextIO) -> Callable[[], int]:
    """The width of the terminal, read each time, because it may change."""

    def width() -> int:
        try:
            return os.get_terminal_size(stream.fileno()).columns or _USUAL
        except (OSError, ValueError):
            return _USUAL

    return width


def _manner(environ: Mapping[str, str]) -> Manner:
    try:
        mode, terminal = os.fstat(sys.stdout.fileno()).st_mode, sys.stdout.isatty()
    except OSError:
        return DATA
    return manner_of(mode, environ, is_terminal=terminal)
