"""Where a run's events go: the journal, stdout in the wanted format, stderr for people."""

import errno
import os
import sys
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from aish.cli.boundary import say
from aish.cli.earlier import Before
from aish.cli.journal_lost import JournalLostError
from aish.cli.option_groups import Reporting
from aish.cli.options import Format
from aish.cli.reporting import EndReports
from aish.cli.tables import ends_with_items, item_result, items_file, table
from aish.cli.writable import pieces_for
from aish.config.model import PromptStep
from aish.core.errors import ExitCode
from aish.core.events import Event, Exit, ItemStarted, Notice, RunFinished
from aish.core.frozen import frozen
from aish.core.protocols import Approver, Clock
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.output.event_log import EventLog, Sink
from aish.output.formats.text import DATA, FinalText, Manner, manner_of
from aish.output.items.results import ItemsFile
from aish.system.clock import process_began
from aish.terminal.approver import TerminalApprover
from aish.terminal.unattended import Unattended


@frozen
class Shape:
    """How the command line wants the run told; `table` is the step whose items are the output."""

    format: Format
    output: Path | None
    stream: bool
    quiet: bool
    verbose: bool
    reporting: Reporting = Reporting()
    table: str | None = None
    csv_raw: bool = False


class Outlets:
    """The sinks of one run; leaving the context writes and closes what is open.

    Sinks that tell of the whole run are told first what was done `before`.
    """

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        shape: Shape,
        clock: Clock,
        staging: Sink | None = None,
        before: Before | None = None,
    ) -> None:
        self._shape = shape
        self._plan = plan
        self._before = before
        self._lost: ExitCode = ExitCode.OK
        self._stack = ExitStack()
        self._ended_well = False
        self._buffer: BinaryIO | None = None
        self._items = items_file(plan, folder)
        out = self._out()
        self._reports = _reports(plan, shape, folder, self._stack)
        self._console: Sink | None = None if shape.quiet else _for_people(plan, shape)
        # What is staged is put down before the journal says so: a killed run leaves no gap.
        # The console next: it takes its spinner away before stdout writes to the same terminal.
        self._result = _result(plan, folder, shape, out, self._items)
        self._journal = _journal(folder, self._reports) if before is None else before.journal
        self._unjournaled = False
        traces = _traces(plan, shape, folder)
        sinks = [staging, self._journal, self._items, self._console, self._result, traces]
        self._log = EventLog(
            [sink for sink in sinks if sink is not None],
            clock=clock,
            secrets=plan.secrets,
            on_failure=self._failed,
            after=0
            if before is None
            else max(before.after, self._items.last if self._items else 0),
        )

    def __enter__(self) -> Self:
        if self._before is not None:
            self._retell(self._before)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._log.close()
        # Two signals, or a reader who has gone, leave at once.
        if self._reports is not None and (kind is None or issubclass(kind, Exception)):
            lost = self._reports.write()
            if lost is not None:
                say(f"error: {lost}")
                self._lost = ExitCode.FAILED
        try:
            self._stack.close()
        except OSError as full:
            self._lose(f"{self._shape.output}: cannot write the result", full)
        # A failed run without an answer does not replace an older result by nothing.
        if self._buffer and kind is None and (self._ended_well or self._buffer.tell()):
            self._write_output(self._buffer)
        if self._buffer:
            self._buffer.close()

    def _retell(self, before: Before) -> None:
        """Tell of what is done already; a stream of events has told of it then."""
        lost: list[Sink] = []
        last = self._plan.steps[-1].id
        for sink, stamped in before.told(self._items, self._result, self._shape.format, last):
            self._ended_well = isinstance(stamped.event, RunFinished)
            if sink in lost:
                continue
            try:
                sink(stamped)
            except OSError as error:
                lost.append(sink)
                self._failed(sink, error)

    def emit(self, event: Event) -> None:
        """The `Emit` of the run.

        Raises:
            JournalLostError: an item was to begin that a resumed run would do once more.
        """
        if self._unjournaled and isinstance(event, ItemStarted):
            raise JournalLostError
        self._ended_well = isinstance(event, RunFinished) and event.exit.code == 0
        self._log.emit(event)
        if self._shape.quiet and isinstance(event, Notice):
            self._say_quietly(event)

    def approver(self, *, ask: bool) -> Approver:
        """The person at the terminal, where `--ask` says so, else nobody (P2, P3)."""
        if not ask:
            return Unattended()
        from aish.output.presenter import Presenter

        if isinstance(self._console, Presenter):
            return TerminalApprover(pause=self._console.hold, secrets=self._plan.secrets)
        return TerminalApprover(secrets=self._plan.secrets)

    def exit_code(self, end: Exit) -> int:
        """The run's exit code, or 1 where the run went well and its result was lost."""
        if self._shape.quiet and end.code:
            say(f"error: {end.reason}" + (f"\n\nhint: {end.hint}" if end.hint else ""))
        return end.code or int(self._lost)

    def _say_quietly(self, notice: Notice) -> None:
        """What `-q` does not hide: that a run goes on with what its lock does not pin (P8)."""
        if notice.level == "warning" and notice.code == "lock_differs":
            say(f"warning: {self._plan.secrets.mask(notice.text)}")

    def _out(self) -> BinaryIO:
        path = self._shape.output
        if path is None or self._shape.table is not None:
            return sys.stdout.buffer
        if self._shape.format is not Format.JSONL:
            # Written whole at the end: a result is there or it is not.
            self._buffer = BytesIO() if self._items is None else _large_buffer()
            return self._buffer
        return self._stack.enter_context(path.open("wb"))

    def _write_output(self, buffer: BinaryIO) -> None:
        from aish.system.files import atomic_pieces

        assert self._shape.output is not None
        buffer.seek(0)
        try:
            pieces = pieces_for(self._shape.output, buffer)
            atomic_pieces(self._shape.output, pieces, shared=True)
        except OSError as error:
            self._lose(f"{self._shape.output}: cannot write the result", error)

    def _failed(self, sink: Sink, error: OSError) -> None:
        """A sink is out of the run; what is lost by that decides whether the run still is ok."""
        if error.errno == errno.EPIPE:
            # A reader that left (`| head`) wanted no more: nothing is lost that it asked for.
            say(f"note: {sink.name}: output closed early (broken pipe)")
            return
        self._unjournaled |= sink is self._journal
        self._lose(f"cannot write {sink.name}", error)

    def _lose(self, what: str, error: OSError) -> None:
        say(f"error: {what}: {error.strerror or error}")
        self._lost = ExitCode.FAILED


def _large_buffer() -> BinaryIO:
    """A buffer for what may not fit into memory."""
    from tempfile import TemporaryFile

    return TemporaryFile()


def _journal(folder: RunFolder, reports: EndReports | None) -> Sink | None:
    path = folder.path if reports is None else reports.journal
    if path is None:
        return None
    from aish.journal.writer import open_journal

    return open_journal(path)


def _traces(plan: Plan, shape: Shape, folder: RunFolder) -> Sink | None:
    if not shape.reporting.traced:
        return None
    from aish.cli.traces import traces_of

    return traces_of(shape.reporting, folder.id, plan.secrets)


def _reports(plan: Plan, shape: Shape, folder: RunFolder, stack: ExitStack) -> EndReports | None:
    if not shape.reporting.at_end:
        return None
    return EndReports(shape.reporting, folder, plan.pipeline, stack)


def _result(
    plan: Plan, folder: RunFolder, shape: Shape, out: BinaryIO, items: ItemsFile | None
) -> Sink:
    if items is not None and shape.table is not None and shape.output is not None:
        return table(plan, items, shape.table, shape.output, folder, csv_raw=shape.csv_raw)
    if shape.format is Format.JSON:
        from aish.output.result import Result

        return Result(out, folder.id, items)
    if shape.format is Format.JSONL:
        from aish.output.formats.jsonl import JsonLines

        return JsonLines(out)
    if items is not None and ends_with_items(plan) and plan.pipeline.outputs is None:
        return item_result(plan, items, out, manner_for(out))
    # Several steps and no outputs: the last one speaks for the run.
    last = plan.steps[-1]
    return FinalText(
        out,
        last.id,
        manner_for(out),
        stream=_streams(shape),
        outputs=plan.pipeline.outputs is not None,
        structured=plan.answers_in_a_schema(last),
    )


def manner_for(out: BinaryIO) -> Manner:
    """How foreign text is written to a stream: as it is to a file, made harmless to people."""
    try:
        mode, terminal = os.fstat(out.fileno()).st_mode, out.isatty()
    except OSError:
        # A buffer has no descriptor: it becomes a file.
        return DATA
    return manner_of(mode, os.environ, is_terminal=terminal)


def _streams(shape: Shape) -> bool:
    """Whether the answer is written as it comes: if asked for, or where a person watches."""
    from aish.output.style import wants_console

    watched = _is_terminal(sys.stdout) and wants_console(os.environ, is_terminal=True)
    return shape.output is None and (shape.stream or watched)


def _is_terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _for_people(plan: Plan, shape: Shape) -> Sink:
    from aish.output.style import look_of, wants_console

    if not wants_console(os.environ, is_terminal=_is_terminal(sys.stderr)):
        from aish.output.formats.plain import Plain

        return Plain(sys.stderr, process_began())
    from aish.output.presenter import RUN, Presenter
    from aish.output.screen import Screen

    last = plan.steps[-1]
    shared = (
        isinstance(last, PromptStep)
        and last.flow.foreach is None
        and last.output is None
        and shape.format is Format.TEXT
        and plan.pipeline.outputs is None
        and _streams(shape)
        and _is_terminal(sys.stdout)
    )
    screen = Screen(sys.stderr, look_of(sys.stderr, os.environ))
    return Presenter(screen, RUN, elsewhere=last.id if shared else None)
