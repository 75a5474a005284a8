"""Outputs of a run's events: the journal, stdout in the chosen format, stderr for people.

`RunOutput` opens and closes the sinks of one run. Also here: the result as a table, the reports at
the end (B11), the events of the part before a `--resume` (B3), and checks that files can be
written.
"""

import errno
import os
import stat
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from aish.cli.boundary import say
from aish.cli.options import Format, ReportOptions, ResultOptions
from aish.config.model import Pipeline, PipelineStep, PromptStep, Step
from aish.core.errors import AishError, ExitCode, JournalLostError, UsageError
from aish.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    Exit,
    ItemStarted,
    Notice,
    RunFinished,
    Stamped,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.protocols import Approver, Clock, Follow
from aish.core.text import safe_utf8
from aish.engine.plan.plan import Plan, Played
from aish.engine.run_folder import RunFolder
from aish.output.event_log import EventLog, Sink
from aish.output.formats.text import DATA, FinalText, Manner, manner_of
from aish.output.items.results import ItemsFile, open_items_file
from aish.output.status import OpenQuestions
from aish.system.clock import process_began
from aish.system.secrets.secrets import Secrets
from aish.terminal.unattended import Unattended

if TYPE_CHECKING:
    # A run imports only the one that it uses.
    from aish.output.formats.plain import Plain
    from aish.output.presenter import Presenter

_OF_ITEMS = frozenset({"item.started", "item.finished", "item.moved"})
_OF_STEPS = frozenset({"step.finished"})

Retold = Callable[[frozenset[str] | None, int], Iterator[Stamped]]
"""Events of some types, or `None` for all; of items only those that ended after a number."""


@frozen
class Before:
    """The state that an earlier part of the run has left.

    `journal` is open, and `after` its last number; a run that is only shown again has none. `steps`
    are finished, and so are items up to the number `items`; `counts` are those of each step.
    `repeated` are calls that may be made again.
    """

    journal: Sink | None
    after: int
    steps: Container[str]
    items: int
    events: Retold
    counts: Mapping[str, int] = field(default_factory=dict)
    repeated: tuple[JsonObject, ...] = ()

    def pending_events(
        self, items: ItemsFile | None, result: Sink, form: Format, last_step: str
    ) -> Iterator[tuple[Sink, Stamped]]:
        """Each sink with the earlier events that it needs; few even for a million items."""
        if items is not None and any(items.count(id) < n for id, n in self.counts.items()):
            # Lines were removed from the file: it is rebuilt from the journal.
            items.clear()
        behind = items is not None and items.last < self.items
        known = 0 if items is None else items.last
        if self.journal is None or form is Format.JSON:
            for stamped in self.events(None, 0):
                if items is not None and behind:
                    yield items, stamped
                yield result, stamped
            return
        kinds: frozenset[str] = _OF_ITEMS if behind else frozenset()
        if form is Format.TEXT and last_step in self.steps:
            kinds |= _OF_STEPS
        for stamped in self.events(kinds, known) if kinds else ():
            if items is not None and behind:
                yield items, stamped
            if form is Format.TEXT:
                yield result, stamped


class EndReports:
    """The reports at the end; `journal` is the folder of the journal they are made from.

    A run that keeps no folder has its journal in a temporary one.
    """

    def __init__(
        self, asked: ReportOptions, folder: RunFolder, pipeline: Pipeline, stack: ExitStack
    ) -> None:
        self._asked = asked
        self._pipeline = pipeline
        self._run = folder.id
        self.journal = folder.path or _temporary(stack)

    def write(self) -> str | None:
        """Write them, once the journal is closed; returns a message about failures."""
        try:
            self._write()
        except OSError as error:
            return f"{error.filename}: cannot write the report: {error.strerror}"
        except AishError as error:
            return f"cannot make the reports: {error}"
        return None

    def _write(self) -> None:
        from aish.cli.github import annotated_file, github_of
        from aish.features.history.summary import events
        from aish.journal.reader import read_journal
        from aish.reports.make import ReportFiles, make_reports

        asked = self._asked
        others: list[Callable[[Stamped], None]] = []
        with ExitStack() as stack:
            if asked.github:
                github = github_of(self._pipeline)
                others.append(github)
                # Sent as far as the journal goes, whatever happens to the other reports.
                stack.callback(github.close)
            reading = stack.enter_context(read_journal(self.journal / "events.jsonl"))
            files = ReportFiles(asked.junit, asked.html, asked.sarif)
            make_reports(events(reading), self._run, files, others, annotated_file)


def _temporary(stack: ExitStack) -> Path:
    import tempfile

    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aish-")))


_ENDINGS = frozenset({".csv", ".tsv", ".jsonl"})
# Formats that no program opens if they contain text.
_NO_TEXT = frozenset(
    {".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers", ".parquet", ".feather", ".arrow"}
)


def table_step(plan: Plan, writing: ResultOptions, format_: Format) -> str | None:
    """The step whose items are written to the file as a table, if its name has such a suffix.

    The only step with items, or the one that is named. Without any, it is an ordinary file.

    Raises:
        UsageError: a file of that kind cannot be written, or the step is ambiguous.
    """
    output = writing.output
    if output is not None:
        check_kind(output)
    having = [step.id for step in plan.steps if step.flow.foreach is not None]
    ending = None if output is None or format_ is not Format.TEXT else output.suffix.lower()
    if ending not in _ENDINGS or not having:
        _check_alone("--step", given=writing.step is not None)
        _check_alone("--csv-raw", given=writing.csv_raw)
        return None
    _check_alone("--csv-raw", given=writing.csv_raw and ending == ".jsonl")
    from aish.output.items.table import step_of

    return step_of(having, writing.step, f"-o {output}")


def check_kind(output: Path) -> None:
    """Check that a result can be written to a file with this name.

    Raises:
        UsageError: no result has the format of its suffix.
    """
    ending = output.suffix.lower()
    if ending in _NO_TEXT:
        raise UsageError(
            f"a `{ending}` file cannot be written",
            where=f"-o {output}",
            hint="spreadsheets open `.csv` and `.tsv`; `.jsonl` has everything",
        )


def _check_alone(flag: str, *, given: bool) -> None:
    if given:
        hint = "a table is what `-o` writes of a step with `foreach`, in the format `text`"
        raise UsageError(f"`{flag}` goes with `-o FILE.csv` or `-o FILE.tsv`", hint=hint)


def ends_with_items(plan: Plan) -> bool:
    """Whether the last step, whose result is that of the run, has items."""
    return plan.steps[-1].flow.foreach is not None


def items_file(plan: Plan, folder: RunFolder) -> ItemsFile | None:
    """The file with the results of items, if any step may have items."""
    return open_items_file(folder.path) if any(map(_may_have_items, plan.steps)) else None


def item_result(plan: Plan, items: ItemsFile, out: BinaryIO, manner: Manner) -> Sink:
    """The sink that prints the texts of the last step's items."""
    from aish.output.formats.text import ItemTexts

    last = plan.steps[-1]
    structured = plan.answers_in_a_schema(last)
    return ItemTexts(out, items, last.id, say, manner, structured=structured)


def table(
    plan: Plan, items: ItemsFile, step: str, path: Path, folder: RunFolder, *, csv_raw: bool
) -> Sink:
    """The sink that writes the items of a step to a file; with `csv_raw` no cell is escaped."""
    import shlex

    from aish.engine.execution.item_source import given_parts
    from aish.output.items.table import ALL_RAW, ItemsExporter

    meant = next(one for one in plan.steps if one.id == step)
    raw = ALL_RAW if csv_raw else frozenset(given_parts(meant, plan))
    partly = None
    if folder.path is not None:
        words = ["aish", "runs", "report", folder.id, "-o", str(path)]
        having = [one for one in plan.steps if one.flow.foreach is not None]
        words += ["--step", step] if len(having) > 1 else []
        words += ["--csv-raw"] if csv_raw else []
        words += _run_dir(folder.path)
        partly = shlex.join(words)
    return ItemsExporter(items, step, path, say, raw, partly)


def _run_dir(folder: Path) -> list[str]:
    """The option by which `aish runs` finds a run that is not in its default place."""
    runs = folder.parent
    looked = [Path.cwd() / project / ".aish" / "runs" for project in (Path(), Path("pipelines"))]
    return [] if runs in looked else ["--run-dir", str(runs)]


def _may_have_items(step: Step) -> bool:
    return step.flow.foreach is not None or isinstance(step, PipelineStep)


_PIECE = 1 << 20
_NO_ITEMS = "no more items are started, because the journal cannot be written"


def check_writable(path: Path, option: str = "-o") -> None:
    """Check that a file can be written.

    Raises:
        UsageError: no file can be written there.
    """
    if str(path) == "-":
        raise UsageError("names no file", where=f"{option} -", hint="give it a path")
    if path.is_dir():
        raise UsageError("is a folder", where=f"{option} {path}")
    parent = path.parent
    if not parent.is_dir():
        raise UsageError(
            "its folder does not exist", where=f"{option} {path}", hint=f"mkdir -p {parent}"
        )
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise UsageError("cannot be written", where=f"{option} {path}")


def pieces_for(path: Path, result: BinaryIO) -> Iterator[bytes]:
    """A result for `path`: unchanged for a file, sanitized as on a screen for `/dev/stdout`."""
    try:
        mode = path.stat().st_mode
    except OSError:
        mode = stat.S_IFREG
    manner = DATA
    if not stat.S_ISREG(mode):
        manner = manner_of(mode, os.environ, is_terminal=stat.S_ISCHR(mode))
    if manner is DATA:
        return iter(lambda: result.read(_PIECE), b"")
    return (safe_utf8(manner.clean(line.decode("utf-8", "replace"))).encode() for line in result)


def check_reports(asked: ReportOptions, cassette: Played | None, secrets: Secrets) -> None:
    """Check before the run whether its reports can be written and its traces sent.

    Raises:
        UsageError: one of them cannot.
    """
    if asked.otel_content and not asked.traced:
        raise UsageError("`--otel-content` sets what is in traces", hint="add `--otel`")
    if asked.traced:
        from aish.cli.traces import check_traces

        check_traces(asked, cassette, secrets)
    files = (("--junit", asked.junit), ("--html", asked.html), ("--sarif", asked.sarif))
    for option, path in files:
        if path is not None:
            check_writable(path, option)


@frozen
class Shape:
    """The output options; `table` is the step whose items are the output."""

    format: Format
    output: Path | None
    stream: bool
    quiet: bool
    verbose: bool
    reporting: ReportOptions = ReportOptions()
    table: str | None = None
    csv_raw: bool = False


class RunOutput:
    """The sinks of one run; leaving the context writes and closes what is open.

    Sinks that cover the whole run get the events `before` first. `lost` is 0, or the exit code of a
    run that succeeded but has lost its result or a report.
    """

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        shape: Shape,
        clock: Clock,
        staging: Sink | None = None,
        before: Before | None = None,
        watching: Iterable[Sink] = (),
    ) -> None:
        self._shape = shape
        self._plan = plan
        self._before = before
        self.lost = ExitCode.OK
        self._stack = ExitStack()
        self._ended_well = False
        self._questions = OpenQuestions()
        self._waiting: tuple[str, ...] = ()
        self._buffer: BinaryIO | None = None
        self._items = items_file(plan, folder)
        out = self._out()
        self._reports = _reports(plan, shape, folder, self._stack)
        self._console = None if shape.quiet else _for_people(plan, shape)
        # Staged calls are written before the journal records them: a killed run leaves no gap.
        repeated = () if before is None else before.repeated
        self._result = _result(plan, folder, shape, out, self._items, repeated)
        self._journal = _journal(folder, self._reports) if before is None else before.journal
        self._unjournaled = False
        traces = _traces(plan, shape, folder)
        sinks = [staging, self._journal, self._items, self._console, self._result, traces]
        # The last ones: what is seen from outside is written already.
        sinks.extend(watching)
        self._log = EventLog(
            [sink for sink in sinks if sink is not None],
            clock=clock,
            secrets=plan.secrets,
            on_failure=self._failed,
            journal=self._journal,
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
        # Two signals, or a closed output, exit at once.
        if self._reports is not None and (kind is None or issubclass(kind, Exception)):
            lost = self._reports.write()
            if lost is not None:
                say(f"error: {lost}")
                self.lost = ExitCode.FAILED
        try:
            self._stack.close()
        except OSError as full:
            self._lose(f"{self._shape.output}: cannot write the result", full)
        # A failed run without an answer does not replace an older result by an empty one.
        if self._buffer and kind is None and (self._ended_well or self._buffer.tell()):
            self._write_output(self._buffer)
        if self._buffer:
            self._buffer.close()

    def _retell(self, before: Before) -> None:
        """Replay earlier events to the sinks; a stream of events contains them already."""
        lost: list[Sink] = []
        last = self._plan.steps[-1].id
        for sink, stamped in before.pending_events(
            self._items, self._result, self._shape.format, last
        ):
            self._ended_well = isinstance(stamped.event, RunFinished)
            if sink in lost:
                continue
            try:
                sink(stamped)
            except OSError as error:
                lost.append(sink)
                self._failed(sink, error)

    @property
    def follow(self) -> Follow:
        """Tells others of the events, after all sinks."""
        return self._log.follow

    def emit(self, event: Event) -> None:
        """The `Emit` of the run.

        Raises:
            JournalLostError: an item was about to start that a resumed run would repeat, or an
                answer or the call that it approves would not be in the journal.
        """
        if self._unjournaled and isinstance(event, ItemStarted):
            raise JournalLostError(_NO_ITEMS)
        self._ended_well = isinstance(event, RunFinished) and event.exit.code == 0
        self._log.emit(event)
        if self._shape.quiet:
            self._say_quietly(event)

    def opening(self, doing: Sequence[str]) -> None:
        """Show people at once which run this is, and what is done before it has started."""
        console, mask = self._console, self._plan.secrets.mask
        if console is not None:
            name, said = mask(self._plan.pipeline.name), [mask(one) for one in doing]
            self._log.before(console, lambda now: console.opening(name, said, now))

    def approver(self, *, ask: bool) -> Approver:
        """Asks the person at the terminal with `--ask`, else nobody (P2, P3)."""
        if not ask:
            return Unattended()
        from aish.output.presenter import Presenter
        from aish.terminal.approver import TerminalApprover

        if isinstance(self._console, Presenter):
            return TerminalApprover(pause=self._console.hold, secrets=self._plan.secrets)
        return TerminalApprover(secrets=self._plan.secrets)

    def exit_code(self, end: Exit) -> int:
        """The run's exit code, or that of what it has lost."""
        if self._shape.quiet and end.code:
            word = "paused" if end.code == ExitCode.PAUSED else "error"
            told = "".join(f"\n{line}" for line in self._waiting)
            say(f"{word}: {end.reason}{told}" + (f"\n\nhint: {end.hint}" if end.hint else ""))
        if self._unjournaled and end.code == ExitCode.PAUSED:
            return int(self.lost)  # nobody can resume it
        return end.code or int(self.lost)

    def _say_quietly(self, event: Event) -> None:
        """Print what `-q` does not hide.

        That a run continues despite lock differences (P8), that it may make calls again (B3), and
        that it waits for somebody who is not at the terminal (A7).
        """
        mask = self._plan.secrets.mask
        match event:
            case Notice(level="warning", code="lock_differs" | "calls_repeated"):
                say(f"warning: {mask(event.text)}")
            case ApprovalAsked():
                masked = replace(event, tool=mask(event.tool), reason=mask(event.reason))
                said = self._questions.asked(masked)
                if event.expires is not None:
                    say(said)
            case ApprovalAnswered():
                self._questions.answered(event)
            case RunFinished():
                self._waiting = tuple(self._questions.closing(event))
            case _:
                pass

    def _out(self) -> BinaryIO:
        path = self._shape.output
        if path is None or self._shape.table is not None:
            return sys.stdout.buffer
        if self._shape.format is not Format.JSONL:
            # Written completely at the end, or not at all.
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
        """A sink has failed; what is lost by that decides whether the run is still ok."""
        if error.errno == errno.EPIPE:
            # A reader that closed the output (`| head`) has lost nothing that it wanted.
            say(f"note: {sink.name}: output closed early (broken pipe)")
            return
        self._unjournaled |= sink is self._journal
        self._lose(f"cannot write {sink.name}", error)

    def _lose(self, what: str, error: OSError) -> None:
        say(f"error: {what}: {error.strerror or error}")
        self.lost = ExitCode.FAILED


def _large_buffer() -> BinaryIO:
    """A buffer for data that may not fit into memory."""
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
    plan: Plan,
    folder: RunFolder,
    shape: Shape,
    out: BinaryIO,
    items: ItemsFile | None,
    repeated: Sequence[JsonObject],
) -> Sink:
    if items is not None and shape.table is not None and shape.output is not None:
        return table(plan, items, shape.table, shape.output, folder, csv_raw=shape.csv_raw)
    if shape.format is Format.JSON:
        from aish.output.result import Result

        return Result(out, folder.id, items, repeated)
    if shape.format is Format.JSONL:
        from aish.output.formats.jsonl import JsonLines

        return JsonLines(out)
    if items is not None and ends_with_items(plan) and plan.pipeline.outputs is None:
        return item_result(plan, items, out, manner_for(out))
    # Several steps and no outputs: the last step's result is that of the run.
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
    """How untrusted text is written to a stream: unchanged to a file, sanitized for people."""
    try:
        mode, terminal = os.fstat(out.fileno()).st_mode, out.isatty()
    except OSError:
        # A buffer has no descriptor: it becomes a file.
        return DATA
    return manner_of(mode, os.environ, is_terminal=terminal)


def _streams(shape: Shape) -> bool:
    """Whether the answer is streamed: on request, or if a person watches."""
    from aish.output.style import wants_console

    watched = _is_terminal(sys.stdout) and wants_console(os.environ, is_terminal=True)
    return shape.output is None and (shape.stream or watched)


def _is_terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _for_people(plan: Plan, shape: Shape) -> "Plain | Presenter":
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
