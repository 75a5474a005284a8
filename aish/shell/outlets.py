"""Where a session's events go (design 1.2, B12).

To its journal; to the terminal, or answers to stdout and the rest to stderr.
"""

import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TextIO

from aish.core.events import Event
from aish.core.frozen import frozen
from aish.core.protocols import Clock, Emit
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.output.event_log import EventLog, Sink
from aish.output.formats.text import DATA, FinalText, Manner, manner_of
from aish.output.style import look_of
from aish.shell.lines import Lines
from aish.shell.onscreen import TerminalOut
from aish.shell.piped import Answers, LastWords, Lost, PipedOut
from aish.system.clock import process_began
from aish.system.secrets.secrets import Secrets

_USUAL = 80


@frozen
class Told:
    """How a session is told."""

    attended: bool
    plain: bool = False
    quiet: bool = False
    verbose: bool = False


@frozen
class Outlets:
    """What shows a session; `pause` is entered while somebody else has the terminal."""

    log: EventLog
    out: PipedOut | TerminalOut
    pause: Callable[[], AbstractContextManager[object]]
    visitor: Callable[[], Sink] | None
    lost: Lost

    @contextmanager
    def asking(self, lines: Lines) -> Generator[None]:
        """While a person is asked something at the terminal: nobody draws, and keys are echoed."""
        with self.pause(), lines.question():
            yield

    def emit(self, event: Event) -> None:
        """The `Emit` of the session."""
        self.log.emit(event)

    @contextmanager
    def of_run(self, plan: Plan, folder: RunFolder, clock: Clock) -> Generator[Emit]:
        """Where the events of a pipeline go that is run in the session (`:run`)."""
        sinks: list[Sink] = []
        if folder.path is not None:
            from aish.journal.writer import open_journal

            with folder.beginning():
                sinks.append(open_journal(folder.path))
        if self.visitor is not None:
            sinks.append(self.visitor())
        if isinstance(self.out, PipedOut):
            outputs = plan.pipeline.outputs is not None
            manner, last = _manner(os.environ), plan.steps[-1]
            structured = plan.answers_in_a_schema(last)
            out = sys.stdout.buffer
            text = FinalText(out, last.id, manner, outputs=outputs, structured=structured)
            sinks.append(text)
        log = EventLog(sinks, clock=clock, secrets=plan.secrets, on_failure=self.lost)
        try:
            yield log.emit
        finally:
            log.close()


def open_outlets(
    told: Told,
    stream: TextIO,
    journal: Sink | None,
    secrets: Secrets,
    clock: Clock,
    lost: Lost,
    after: int = 0,
) -> Outlets:
    """The sinks of a session, whose journal is open already; people read at `stream`."""
    shown: Sink | None
    visitor: Callable[[], Sink] | None
    out: PipedOut | TerminalOut
    pause: Callable[[], AbstractContextManager[object]] = nullcontext
    others: list[Sink] = []
    mask = secrets.mask
    if told.attended:
        from aish.output.screen import Screen
        from aish.output.terminal.chat import Chat

        look = look_of(stream, os.environ)
        talk = Chat(Screen(stream, look), plain=told.plain, verbose=told.verbose)
        shown, pause, visitor = talk, talk.hold, talk.visitor
        out = TerminalOut(talk.line, lambda text: look.paint("red", text), _width(stream), mask)
    else:
        from aish.output.formats.plain import Plain

        answers = Answers(sys.stdout.buffer, _manner(os.environ))
        others.append(answers)
        out = piped = PipedOut(answers, lost, mask)
        shown = LastWords(piped) if told.quiet else Plain(sys.stderr, process_began())
        # It counts by itself what that run comes to.
        visitor = None if told.quiet else lambda: Plain(sys.stderr)
    sinks = [sink for sink in (journal, shown, *others) if sink is not None]
    log = EventLog(sinks, clock=clock, secrets=secrets, on_failure=lost, after=after)
    return Outlets(log, out, pause, visitor, lost)


def _width(stream: TextIO) -> Callable[[], int]:
    """How wide the terminal is, each time it is asked: a person may change it."""

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
