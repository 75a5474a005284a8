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
from aish.cli.options import Format
from aish.config.steps import PromptStep
from aish.errors import ExitCode, UsageError
from aish.run.folder import RunFolder
from aish.run.plan import Plan
from aish.sinks.fanout import EventLog, Sink
from aish.sinks.text import DATA, FinalText, Manner, manner_of
from aish.terminal.approver import TerminalApprover
from aish.terminal.unattended import Unattended
from aish.vocab.event_parts import Exit
from aish.vocab.events import Event, RunFinished
from aish.vocab.frozen import frozen
from aish.vocab.protocols import Approver, Clock


@frozen
class Shape:
    """How the command line wants the run told."""

    format: Format
    output: Path | None
    stream: bool
    quiet: bool
    verbose: bool


class Outlets:
    """The sinks of one run; leaving the context writes and closes what is open."""

    def __init__(self, plan: Plan, folder: RunFolder, shape: Shape, clock: Clock) -> None:
        self._shape = shape
        self._lost: ExitCode = ExitCode.OK
        self._stack = ExitStack()
        self._ended_well = False
        self._buffer: BytesIO | None = None
        out = self._out()
        self._console: Sink | None = None if shape.quiet else _for_people(plan, shape)
        # The console first: it takes its spinner away before stdout writes to the same terminal.
        sinks = [_journal(folder), self._console, _result(plan, folder, shape, out)]
        self._log = EventLog(
            [sink for sink in sinks if sink is not None],
            clock=clock,
            secrets=plan.secrets,
            on_failure=self._failed,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._log.close()
        try:
            self._stack.close()
        except OSError as full:
            self._lose(f"{self._shape.output}: cannot write the result", full)
        # A failed run without an answer does not replace an older result by nothing.
        if self._buffer and kind is None and (self._ended_well or self._buffer.tell()):
            self._write_output(self._buffer.getvalue())

    def emit(self, event: Event) -> None:
        """The `Emit` of the run."""
        self._ended_well = isinstance(event, RunFinished) and event.exit.code == 0
        self._log.emit(event)

    def approver(self, *, ask: bool) -> Approver:
        """The person at the terminal, where `--ask` says so, else nobody (P2, P3)."""
        if not ask:
            return Unattended()
        from aish.sinks.console import Console

        if isinstance(self._console, Console):
            return TerminalApprover(pause=self._console.hold)
        return TerminalApprover()

    def exit_code(self, end: Exit) -> int:
        """The run's exit code, or 1 where the run went well and its result was lost."""
        if self._shape.quiet and end.code:
            say(f"error: {end.reason}")
        return end.code or int(self._lost)

    def _out(self) -> BinaryIO:
        path = self._shape.output
        if path is None:
            return sys.stdout.buffer
        if self._shape.format is not Format.JSONL:
            # Written whole at the end: a result is there or it is not.
            self._buffer = BytesIO()
            return self._buffer
        return self._stack.enter_context(path.open("wb"))

    def _write_output(self, data: bytes) -> None:
        from aish.system.files import atomic_write

        assert self._shape.output is not None
        try:
            atomic_write(self._shape.output, data)
        except OSError as error:
            self._lose(f"{self._shape.output}: cannot write the result", error)

    def _failed(self, sink: Sink, error: OSError) -> None:
        """A sink is out of the run; what is lost by that decides whether the run still is ok."""
        if error.errno == errno.EPIPE:
            # A reader that left (`| head`) wanted no more: nothing is lost that it asked for.
            say(f"note: {sink.name}: the reader has gone")
            return
        self._lose(f"cannot write {sink.name}", error)

    def _lose(self, what: str, error: OSError) -> None:
        say(f"error: {what}: {error.strerror or error}")
        self._lost = ExitCode.FAILED


def check_writable(path: Path, option: str = "-o") -> None:
    """Find out before the run, not after it.

    Raises:
        UsageError: no file can be written there.
    """
    if path.is_dir():
        raise UsageError("is a folder", where=f"{option} {path}")
    parent = path.parent
    if not parent.is_dir():
        raise UsageError(
            "its folder does not exist", where=f"{option} {path}", hint=f"mkdir -p {parent}"
        )
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise UsageError("cannot be written", where=f"{option} {path}")


def _journal(folder: RunFolder) -> Sink | None:
    if folder.path is None:
        return None
    from aish.sinks.journal import open_journal

    return open_journal(folder.path)


def _result(plan: Plan, folder: RunFolder, shape: Shape, out: BinaryIO) -> Sink:
    if shape.format is Format.JSON:
        from aish.sinks.result import Result

        return Result(out, folder.id)
    if shape.format is Format.JSONL:
        from aish.sinks.jsonl import JsonLines

        return JsonLines(out)
    # Several steps and no outputs: the last one speaks for the run.
    last = plan.steps[-1].id
    return FinalText(
        out,
        last,
        manner_for(out),
        stream=_streams(shape),
        outputs=plan.pipeline.outputs is not None,
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
    from aish.sinks.look import wants_console

    watched = _is_terminal(sys.stdout) and wants_console(os.environ, is_terminal=True)
    return shape.output is None and (shape.stream or watched)


def _is_terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _for_people(plan: Plan, shape: Shape) -> Sink:
    from aish.sinks.look import look_of, wants_console

    if not wants_console(os.environ, is_terminal=_is_terminal(sys.stderr)):
        from aish.sinks.plain import Plain

        return Plain(sys.stderr)
    from aish.sinks.console import Console
    from aish.sinks.screen import Screen

    last = plan.steps[-1]
    shared = (
        isinstance(last, PromptStep)
        and shape.format is Format.TEXT
        and plan.pipeline.outputs is None
        and _streams(shape)
        and _is_terminal(sys.stdout)
    )
    screen = Screen(sys.stderr, look_of(sys.stderr, os.environ))
    return Console(screen, elsewhere=last.id if shared else None)
