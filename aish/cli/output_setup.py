"""Makes the outputs of a run: the journal, stdout in the chosen format, stderr for people.

Below `RunOutput`, which makes and closes the sinks of one run, are the result as a table and the
checks of files that are written at the end. How a format looks is in `output/`.
"""

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from aish.cli.boundary import say
from aish.cli.options import Format, ReportOptions, ResultOptions, RunRequest
from aish.config.model import Pipeline, PromptStep
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
from aish.core.phrases import backticked
from aish.core.protocols import Approver
from aish.core.text import safe_utf8
from aish.engine.environment import FilesWatch
from aish.engine.plan.plan import Plan, Played
from aish.engine.run_folder import RunFolder
from aish.engine.steps.context import has_items
from aish.features.launch import Launch, OpenRun
from aish.output.event_log import Sink
from aish.output.formats.text import DATA, FinalText, manner_for, manner_of
from aish.output.items.results import ItemsFile, open_items_file
from aish.output.status import OpenQuestions
from aish.system.clock import process_began
from aish.system.secrets.secrets import Secrets
from aish.terminal.unattended import Unattended

if TYPE_CHECKING:
    # A run imports only the one that it uses.
    from aish.output.formats.plain import Plain
    from aish.output.presenter import Presenter

_SAID_QUIETLY = frozenset({Notice, ApprovalAsked, ApprovalAnswered, RunFinished})
_NO_ITEMS = "no more items are started, because the journal cannot be written"


class RunOutput:
    """The sinks of one run; leaving the context writes and closes what is open.

    `table_of` is the step whose items are the result. `lost` is 0, or the exit code of a run that
    succeeded but has lost its result or a report.
    """

    def __init__(self, run: OpenRun, asked: RunRequest, table_of: str | None) -> None:
        launch = run.launch
        plan, folder, earlier = launch.plan, launch.folder, launch.earlier
        self._run = run
        self._plan = plan
        self._output = asked.output
        self._path = asked.result.output
        self.lost = ExitCode.OK
        self._stack = ExitStack()
        # A completed run that is shown again has ended well.
        self._ended_well = earlier is not None and earlier.state.ended
        self._questions = OpenQuestions()
        self._waiting: tuple[str, ...] = ()
        self._buffer: BinaryIO | None = None
        self._unjournaled = False
        items = open_items_file(folder.path) if has_items(plan) else None
        streams = _streams(asked)
        out = self._out(whole=table_of is None, may_be_large=items is not None)
        self._reports = asked.reports
        self._journal: Path | None = None
        if asked.reports.at_end:
            # A run that keeps no folder has the journal of its reports in a temporary one.
            self._journal = folder.path or _temporary(self._stack)
        self._console = (
            None
            if asked.output.quiet
            else _for_people(plan, asked.output.output_format, streams=streams)
        )
        if items is not None and table_of is not None and self._path is not None:
            result: Sink = table(
                plan, items, table_of, self._path, folder, csv_raw=asked.result.csv_raw
            )
        else:
            result = _result(launch, asked.output.output_format, out, items, streams=streams)
        traces: Sink | None = None
        if asked.reports.traced:
            from aish.cli.traces import traces_of

            traces = traces_of(asked.reports, folder.id, plan.secrets)
        run.begin(
            [result, traces],
            items=items,
            console=self._console,
            wanted=_event_types_of(launch, asked.output.output_format),
            journal_folder=self._journal,
            on_failure=self._on_sink_error,
        )
        approver = self._approver() if asked.policy.ask else Unattended()
        changes: FilesWatch | None = None
        session = launch.cassette
        if asked.reports.shows_changes and not (session is not None and session.replays):
            from aish.features.file_changes import FileChanges, server_roots

            changes = FileChanges(server_roots(plan), folder, launch.options.environ)
        run.environment = replace(
            run.environment, emit=self._emit, approver=approver, changes=changes
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run.close()
        # Two signals, or a closed output, exit at once.
        if self._journal is not None and (kind is None or issubclass(kind, Exception)):
            id = self._run.launch.folder.id
            try:
                _write_reports(self._reports, self._plan.pipeline, id, self._journal)
            except OSError as failure:
                self._lose(f"{failure.filename}: cannot write the report", failure)
            except AishError as failure:
                say(f"error: cannot make the reports: {failure}")
                self.lost = ExitCode.FAILED
        try:
            self._stack.close()
        except OSError as full:
            self._lose(f"{self._path}: cannot write the result", full)
        # A failed run without an answer does not replace an older result by an empty one.
        if self._buffer and kind is None and (self._ended_well or self._buffer.tell()):
            self._write_output(self._buffer)
        if self._buffer:
            self._buffer.close()

    def _emit(self, event: Event) -> None:
        """The `Emit` of the run.

        Raises:
            JournalLostError: an item was about to start that a resumed run would repeat, or an
                answer or the call that it approves would not be in the journal.
        """
        if self._unjournaled and isinstance(event, ItemStarted):
            raise JournalLostError(_NO_ITEMS)
        self._ended_well = isinstance(event, RunFinished) and event.exit.code == 0
        self._run.log.emit(event)
        if self._output.quiet and event.__class__ in _SAID_QUIETLY:
            self._say_quietly(event)

    def _approver(self) -> Approver:
        from aish.output.presenter import Presenter
        from aish.terminal.approver import TerminalApprover

        if isinstance(self._console, Presenter):
            return TerminalApprover(pause=self._console.hold, secrets=self._plan.secrets)
        return TerminalApprover(secrets=self._plan.secrets)

    def exit_code(self, end: Exit) -> int:
        if self._output.quiet and end.code:
            word = "paused" if end.code == ExitCode.PAUSED else "error"
            lines = "".join(f"\n{line}" for line in self._waiting)
            say(f"{word}: {end.reason}{lines}" + (f"\n\nhint: {end.hint}" if end.hint else ""))
        if self._unjournaled and end.code == ExitCode.PAUSED:
            return int(self.lost)  # nobody can resume it
        return end.code or int(self.lost)

    def _say_quietly(self, event: Event) -> None:
        """Print what `-q` does not hide.

        That a run continues despite lock differences, that it may make calls again, and
        that it waits for somebody who is not at the terminal.
        """
        mask = self._plan.secrets.mask
        match event:
            case Notice(level="warning", code="lock_differs" | "calls_repeated"):
                say(f"warning: {mask(event.text)}")
            case ApprovalAsked():
                masked = replace(event, tool=mask(event.tool), reason=mask(event.reason))
                line = self._questions.add(masked)
                if event.expires is not None:
                    say(line)
            case ApprovalAnswered():
                self._questions.remove(event)
            case RunFinished():
                self._waiting = tuple(self._questions.lines_at_end(event))
            case _:
                pass

    def _out(self, *, whole: bool, may_be_large: bool) -> BinaryIO:
        if self._path is None or not whole:
            return sys.stdout.buffer
        if self._output.output_format is Format.JSONL:
            return self._stack.enter_context(self._path.open("wb"))
        # Written completely at the end, or not at all.
        self._buffer = _large_buffer() if may_be_large else BytesIO()
        return self._buffer

    def _write_output(self, buffer: BinaryIO) -> None:
        from aish.system.files import atomic_pieces

        assert self._path is not None
        buffer.seek(0)
        try:
            atomic_pieces(self._path, pieces_for(self._path, buffer), shared=True)
        except OSError as error:
            self._lose(f"{self._path}: cannot write the result", error)

    def _on_sink_error(self, sink: Sink, error: OSError) -> None:
        """A sink has failed; what is lost by that decides whether the run is still ok."""
        if error.errno == errno.EPIPE:
            # A reader that closed the output (`| head`) has lost nothing that it wanted.
            say(f"note: {sink.name}: output closed early (broken pipe)")
            return
        self._unjournaled |= sink is self._run.journal
        self._lose(f"cannot write {sink.name}", error)

    def _lose(self, what: str, error: OSError) -> None:
        say(f"error: {what}: {error.strerror or error}")
        self.lost = ExitCode.FAILED


def _streams(asked: RunRequest) -> bool:
    """Return true if the answer is streamed: on request, or if a person watches."""
    from aish.output.style import wants_console

    watched = _is_terminal(sys.stdout) and wants_console(os.environ, is_terminal=True)
    return asked.result.output is None and (asked.output.stream or watched)


def _is_terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _for_people(plan: Plan, form: Format, *, streams: bool) -> "Plain | Presenter":
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
        and form is Format.TEXT
        and plan.pipeline.outputs is None
        and streams
        and _is_terminal(sys.stdout)
    )
    screen = Screen(sys.stderr, look_of(sys.stderr, os.environ))
    return Presenter(screen, RUN, elsewhere=last.id if shared else None)


_OF_STEPS = frozenset({"step.finished"})


def _event_types_of(launch: Launch, form: Format) -> frozenset[str] | None:
    """The types of the events of an earlier part that the result needs; `None` for all."""
    earlier = launch.earlier
    if earlier is None or earlier.state.ended or form is Format.JSON:
        return None
    begun = form is Format.TEXT and launch.plan.steps[-1].id in earlier.state.begun
    # A stream of events contains them already.
    return _OF_STEPS if begun else frozenset()


def _result(
    launch: Launch, form: Format, out: BinaryIO, items: ItemsFile | None, *, streams: bool
) -> Sink:
    plan, earlier = launch.plan, launch.earlier
    if form is Format.JSON:
        from aish.output.result import ResultWriter

        return ResultWriter(
            out, launch.folder.id, items, () if earlier is None else earlier.state.repeated.calls
        )
    if form is Format.JSONL:
        from aish.output.formats.jsonl import JsonLines

        return JsonLines(out)
    # Several steps and no outputs: the last step's result is that of the run.
    last, has_outputs = plan.steps[-1], plan.pipeline.outputs is not None
    structured = plan.answers_in_a_schema(last)
    if items is not None and last.flow.foreach is not None and not has_outputs:
        from aish.output.formats.text import ItemTexts

        return ItemTexts(out, items, last.id, say, manner_for(out), structured=structured)
    return FinalText(
        out, last.id, manner_for(out), stream=streams, outputs=has_outputs, structured=structured
    )


def _large_buffer() -> BinaryIO:
    from tempfile import TemporaryFile

    return TemporaryFile()


_PIECE = 1 << 20


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


def _temporary(stack: ExitStack) -> Path:
    import tempfile

    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aish-")))


def _write_reports(asked: ReportOptions, pipeline: Pipeline, run: str, journal: Path) -> None:
    from aish.cli.github import github_of, path_to_annotate
    from aish.features.history.summary import events
    from aish.journal.reader import read_journal
    from aish.reports.make import ReportFiles, make_reports

    others: list[Callable[[Stamped], None]] = []
    with ExitStack() as stack:
        if asked.github:
            github = github_of(pipeline)
            others.append(github)
            # Sent as far as the journal goes, whatever happens to the other reports.
            stack.callback(github.close)
        reading = stack.enter_context(read_journal(journal / "events.jsonl"))
        files = ReportFiles(asked.junit, asked.html, asked.sarif)
        make_reports(events(reading), run, files, others, path_to_annotate)


_ENDINGS = frozenset({".csv", ".tsv", ".jsonl"})


def table_step(plan: Plan, writing: ResultOptions, output_format: Format) -> str | None:
    """The step whose items are written to the file as a table, if its name has such a suffix.

    The only step with items, or the one that is named. Without any, it is an ordinary file.
    """
    output = writing.output
    if output is not None:
        check_kind(output)
    having = [step.id for step in plan.steps if step.flow.foreach is not None]
    ending = None if output is None or output_format is not Format.TEXT else output.suffix.lower()
    if ending not in _ENDINGS or not having:
        _check_alone("--step", given=writing.step is not None)
        _check_alone("--csv-raw", given=writing.csv_raw)
        return None
    _check_alone("--csv-raw", given=writing.csv_raw and ending == ".jsonl")
    from aish.output.items.table import step_of

    return step_of(having, writing.step, f"-o {output}")


def _check_alone(flag: str, *, given: bool) -> None:
    if given:
        hint = "a table is what `-o` writes of a step with `foreach`, in the format `text`"
        raise UsageError(f"`{flag}` goes with `-o FILE.csv` or `-o FILE.tsv`", hint=hint)


def table(
    plan: Plan, items: ItemsFile, step: str, path: Path, folder: RunFolder, *, csv_raw: bool
) -> Sink:
    """The sink that writes the items of a step to a file; with `csv_raw` no cell is escaped."""
    import shlex

    from aish.engine.execution.item_source import input_parts
    from aish.output.items.table import ALL_RAW, ItemsExporter

    meant = next(planned for planned in plan.steps if planned.id == step)
    raw = ALL_RAW if csv_raw else frozenset(input_parts(meant, plan))
    partly = None
    if folder.path is not None:
        words = ["aish", "runs", "report", folder.id, "-o", str(path)]
        having = [planned for planned in plan.steps if planned.flow.foreach is not None]
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


# Formats that no program opens if they contain text.
_NO_TEXT = frozenset(
    {".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers", ".parquet", ".feather", ".arrow"}
)


def check_kind(output: Path) -> None:
    ending = output.suffix.lower()
    if ending in _NO_TEXT:
        raise UsageError(
            f"a `{ending}` file cannot be written",
            where=f"-o {output}",
            hint="spreadsheets open `.csv` and `.tsv`; `.jsonl` has everything",
        )


def check_table(output: Path, what: str) -> None:
    """Check that `what`, rows of items, can be written to a file with this name."""
    from aish.output.items.table import WRITERS

    check_kind(output)
    if output.suffix.lower() not in WRITERS:
        raise UsageError(f"{what} are written as {backticked(WRITERS)}", where=f"-o {output}")
    check_writable(output)


def check_writable(path: Path, option: str = "-o") -> None:
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


def check_reports(asked: ReportOptions, cassette: Played | None, secrets: Secrets) -> None:
    if asked.otel_content and not asked.traced:
        raise UsageError("`--otel-content` sets what is in traces", hint="add `--otel`")
    if asked.traced:
        from aish.cli.traces import check_traces

        check_traces(asked, cassette, secrets)
    files = (("--junit", asked.junit), ("--html", asked.html), ("--sarif", asked.sarif))
    for option, path in files:
        if path is not None:
            check_writable(path, option)
