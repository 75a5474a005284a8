"""`aish apply STAGED [FILE]`: shows the calls in full, then executes each once (B16)."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import anyio

from aish.cli.boundary import say
from aish.cli.options import (
    Argument,
    BroadRootOption,
    DenyOption,
    LockOption,
    LockUse,
    Option,
    QuietOption,
    Report,
    ReportOption,
    RunDirOption,
    SetOption,
    VerboseOption,
)
from aish.cli.pipeline_options import load, look_options
from aish.cli.printer import print_json, print_text, register_masks
from aish.config.model import Pipeline
from aish.core.errors import ExitCode, UsageError
from aish.core.events import Exit, plain
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.core.protocols import Clock
from aish.core.text import for_line
from aish.core.tools import Tool
from aish.engine.environment import RunEnvironment
from aish.engine.final import PRECEDENCE
from aish.engine.plan.literals import mask_literals
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.plan.validation.older_names import policy_of
from aish.engine.run_folder import RunFolder, RunsPlace, open_folder
from aish.features.staging.apply import (
    Against,
    Application,
    Attempt,
    Job,
    ReviewedCalls,
    Wish,
    apply_calls,
    chosen,
    expected_problems,
    homes_of,
    is_unsettled,
    require_addresses,
    require_settled,
)
from aish.features.staging.file import Staged, StagedCall, read_staged
from aish.features.staging.log import AppliedLog, State, log_path, states_in
from aish.journal.writer import open_journal
from aish.output.event_log import EventLog, Sink
from aish.output.formats.plain import Plain
from aish.policy.rules import Policy
from aish.system.clock import SystemClock, process_began
from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import barred_arguments
from aish.terminal.unattended import Unattended

WORDS = {
    "open": "to be applied",
    "applied": "applied before",
    "failed": "failed before",
    "unknown": "started before, with unknown outcome",
}


@frozen
class Row:
    """A call in the review: its state so far, and what prevents it now."""

    call: StagedCall
    state: State
    left_out: bool
    problems: tuple[Against, ...] = ()


def review_lines(heading: Sequence[str], rows: Sequence[Row], width: int) -> Iterator[str]:
    """All calls for the review, reviewed or not: nothing of a call is cut."""
    yield from map(for_line, heading)
    for number, row in enumerate(rows, 1):
        yield ""
        yield from _call_lines(number, row, width)


def _call_lines(number: int, row: Row, width: int) -> Iterator[str]:
    call = row.call
    state = "left out" if row.left_out else WORDS[row.state]
    yield for_line(f"{number}. {call.id}  {call.name}  {state}")
    place = ", ".join(f"{k} {v}" for k, v in (("step", call.step), ("item", call.item)) if v)
    yield for_line(f"  requested by {place or 'the run'} at {call.time}, staged by {call.rule}")
    yield for_line(f"  sent to {_where(call)}")
    arguments = list(barred_arguments(call.arguments, width))
    yield "  all arguments:"
    yield from arguments
    yield from (for_line(f"  problem: {problem.text}") for problem in row.problems)


def review_row(row: Row) -> JsonObject:
    """The same as JSON."""
    call = row.call
    return {
        "id": call.id,
        "step": call.step,
        "item": call.item,
        "tool": str(call.name),
        "where": _where(call),
        "arguments": call.arguments,
        "rule": call.rule,
        "time": call.time,
        "state": "left_out" if row.left_out else row.state,
        "problems": [problem.text for problem in row.problems],
    }


def attempt_line(attempt: Attempt) -> str:
    """The result of a call, on one line."""
    said = ""
    if attempt.used is not None and attempt.outcome != "applied":
        said = f": {attempt.used.content.removeprefix('[aish] ')}"
    outcome = attempt.outcome.replace("_", " ")
    return for_line(f"{attempt.call.id}  {attempt.call.name}  {outcome}{said}")


def attempt_row(attempt: Attempt) -> JsonObject:
    """The same as JSON, with the result of the tool."""
    used = attempt.used
    return {
        "outcome": attempt.outcome,
        "kind": None if used is None else used.kind,
        "content": None if used is None else used.content,
        "structured": None if used is None else used.structured,
        "seconds": None if used is None else used.seconds,
    }


def _where(call: StagedCall) -> str:
    pin = call.server
    if pin is None:
        return "this machine, as a local command"
    return f"`{call.name.server}`: {pin.transport} {' '.join(pin.address)}"


WIDTH = 100
NOTHING_DUE = Exit(0, "ok", retryable=False, reason="")


@frozen
class Applying:
    """A file of staged calls with the options for it; `calls` are the selected ones.

    `homes` are the pipeline and those of its sub-pipelines that contain calls.
    """

    path: Path
    staged: Staged
    pipeline: Pipeline
    calls: tuple[StagedCall, ...]
    wish: Wish
    homes: Mapping[str, Pipeline]
    deny: tuple[str, ...]

    def policy(self, call: StagedCall) -> Policy:
        """The rules that apply to a call, with those of the command line."""
        home = self.homes.get(call.home, self.pipeline)
        return policy_of(home, deny=self.deny)

    @property
    def heading(self) -> tuple[str, ...]:
        """The heading of the calls."""
        head, count = self.staged.head, counted(len(self.staged.calls), "staged call")
        first = f"{self.path}: {count} of the run {head.run}, for {self.pipeline.file}"
        if head.digest == self.pipeline.digest:
            return (first,)
        return (first, "note: the pipeline is not the very file that was run")


def named_pipeline(staged: Staged, path: Path) -> Path:
    """The pipeline that the file names, if that can be trusted.

    A file of staged calls may come from another job, together with other files: the pipeline is
    searched for here, and not beside that file.

    Raises:
        UsageError: the pipeline has to be named on the command line.
    """
    name, here = Path(staged.head.file), Path.cwd().resolve()
    found, beside = (here / name).resolve(), path.resolve().parent
    came_with_it = found.is_relative_to(beside) and not here.is_relative_to(beside)
    if name.is_absolute() or not found.is_relative_to(here) or came_with_it:
        raise UsageError(
            f"the pipeline it names is outside this folder: {name}",
            where=str(path),
            hint=f"name it: `aish apply {path} FILE`",
        )
    if not found.exists():
        raise UsageError(
            f"the pipeline it names does not exist: {name}",
            where=str(path),
            hint=f"name it: `aish apply {path} FILE`",
        )
    return name


def applying(
    path: Path, staged: Staged, pipeline: Pipeline, wish: Wish, deny: tuple[str, ...]
) -> Applying:
    """The request with the selected calls.

    Raises:
        UsageError: no call has one of the ids.
    """
    homes = homes_of(pipeline, staged.calls)
    return Applying(path, staged, pipeline, chosen(staged.calls, wish), wish, homes, deny)


def reviewed_rows(asked: Applying, secrets: Secrets) -> list[Row]:
    """Every call with its state, without contacting a server."""
    states = states_in(log_path(asked.path))
    meant = {call.id for call in asked.calls}
    return [
        Row(
            call,
            states.get(call.digest, "open"),
            call.id not in meant,
            tuple(expected_problems(call, asked.homes.get(call.home), asked.policy(call), secrets)),
        )
        for call in asked.staged.calls
    ]


def expected_code(asked: Applying, rows: Sequence[Row]) -> ExitCode:
    """The expected exit code, as far as it is known without a server."""
    codes = {ExitCode.OK}
    for row in rows:
        if row.left_out or row.state == "applied":
            continue
        idempotent = row.call.digest in idempotent_calls(asked, [row.call])
        if is_unsettled(row.state, asked.wish, idempotent=idempotent):
            codes.add(ExitCode.FAILED)
        codes |= {problem.code for problem in row.problems}
    return next(code for code in PRECEDENCE if code in codes)


def idempotent_calls(asked: Applying, calls: Iterable[StagedCall]) -> frozenset[str]:
    """The calls that may be repeated, by a rule under `mcp.idempotent`."""
    return frozenset(
        call.digest
        for call in calls
        if asked.policy(call).is_idempotent(Tool(call.name, str(call.name), "", {}))
    )


def plans_of(asked: Applying, options: RunOptions) -> Mapping[str, Plan]:
    """A plan for each pipeline that has calls: no model, no steps, only servers that are called.

    Other servers need no credentials then.

    Raises:
        UsageError: a variable that a server needs is not set.
        LockDiffersError: a server differs from the one that a call was staged for.
    """
    secrets = Secrets()
    aliases = {
        home: {call.name.server for call in asked.calls if call.home == home}
        for home in ("", *(call.home for call in asked.calls))
        if home in asked.homes
    }
    plans = {
        home: _plan(asked.homes[home], used, options, secrets) for home, used in aliases.items()
    }
    require_addresses(asked.calls, asked.homes, secrets)
    return plans


def _plan(pipeline: Pipeline, used: set[str], options: RunOptions, secrets: Secrets) -> Plan:
    entries = pipeline.servers.items()
    servers = {alias: replace(entry, required=True) for alias, entry in entries if alias in used}
    called = replace(pipeline, servers=servers, steps=())
    plan = make_plan(called, options, with_models=False, secrets=secrets)
    if plan.lock is None:
        return plan
    pins = {alias: pin for alias, pin in plan.lock.servers.items() if alias in used}
    return replace(plan, lock=replace(plan.lock, servers=pins, prompts={}))


def applied(
    asked: Applying,
    plans: Mapping[str, Plan],
    options: RunOptions,
    run_dir: Path | None,
    *,
    quiet: bool,
) -> tuple[Application, str | None]:
    """Execute the pending calls; returns also the run's folder.

    Raises:
        UnsettledError: after an earlier attempt it is unknown whether a call was made.
        UsageError: the log beside the file cannot be written.
    """
    clock = SystemClock()
    with AppliedLog(log_path(asked.path), clock) as log:
        again = idempotent_calls(asked, asked.calls)
        require_settled(asked.calls, log.states, asked.wish, again)
        due = [call for call in asked.calls if log.states.get(call.digest) != "applied"]
        if not due:
            return Application((), NOTHING_DUE), None
        folder = _folder(asked, due, run_dir, clock, plans[""].secrets)
        job = Job(folder.id, plans, options, due, asked.staged.head.run, log)
        return _told(job, folder, clock, asked.path.name, quiet=quiet), folder.shown


def _folder(
    asked: Applying,
    due: Sequence[StagedCall],
    run_dir: Path | None,
    clock: Clock,
    secrets: Secrets,
) -> RunFolder:
    pipeline = asked.pipeline
    place, name = RunsPlace(pipeline.file.parent, run_dir), f"apply-{pipeline.name}"
    folder = open_folder(name, place, clock.now(), ephemeral=False, mask=secrets.mask)
    ids = [call.id for call in due]
    with folder.beginning():
        folder.write_plan({"apply": {"run": asked.staged.head.run, "calls": ids}})
    return folder


def _told(job: Job, folder: RunFolder, clock: Clock, source: str, *, quiet: bool) -> Application:
    """Execute the job, with events to its journal and the person."""
    assert folder.path is not None
    register_masks(job.secrets, quiet=quiet)
    lost: list[str] = []
    with folder.beginning():
        sinks: list[Sink] = [open_journal(folder.path)]
    plain = None if quiet else Plain(sys.stderr, process_began())
    sinks += [] if plain is None else [plain]
    events = EventLog(
        sinks,
        clock=clock,
        secrets=job.secrets,
        on_failure=lambda sink, error: lost.append(f"cannot write {sink.name}: {error.strerror}"),
    )
    mask = job.secrets.mask

    def opening(doing: Sequence[str]) -> None:
        if plain is not None:
            name, said = mask(job.plans[""].pipeline.name), [mask(one) for one in doing]
            events.before(plain, lambda now: plain.opening(name, said, now))

    environment = RunEnvironment(
        emit=events.emit,
        approver=Unattended(),
        clock=clock,
        folder=folder,
        environ=job.options.environ,
        reviewed=ReviewedCalls(job.calls, source),
        follow=events.follow,
        opening=opening,
    )
    opening(())
    try:
        found = anyio.run(apply_calls, job, environment)
    finally:
        events.close()
    for said in lost:
        say(f"error: {said}")
    if lost and not found.end.code:
        found = replace(found, end=replace(found.end, code=1, name="failed", reason=lost[0]))
    return found


def width() -> int:
    """The width of the review: that of the terminal, or a default without one."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def _ids(flag: str, what: str) -> object:
    return Option(flag, metavar="ID", help=what)


@frozen
class Choosing:
    """Which of the calls are executed."""

    dry_run: Annotated[bool, Option("--dry-run", help="Only show the calls; start no server.")] = (
        False
    )
    only: Annotated[list[str] | None, _ids("--only", "Only this call; may be repeated.")] = None
    skip: Annotated[list[str] | None, _ids("--skip", "Not this call; may be repeated.")] = None
    retry_unknown: Annotated[
        bool, Option("--retry-unknown", help="Retry calls with unknown outcome.")
    ] = False
    retry_failed: Annotated[
        bool, Option("--retry-failed", help="Retry calls that failed before.")
    ] = False

    @property
    def wish(self) -> Wish:
        """The same as a request."""
        ids = (tuple(self.only or ()), tuple(self.skip or ()))
        return Wish(*ids, retry_unknown=self.retry_unknown, retry_failed=self.retry_failed)


def command(
    staged: Annotated[Path, Argument(metavar="STAGED", help="The file of staged calls.")],
    choosing: Choosing,
    file: Annotated[
        Path | None,
        Argument(metavar="[FILE]", help="The pipeline; default: the one that was run."),
    ] = None,
    *,
    overrides: SetOption = None,
    deny: DenyOption = None,
    broad_root: BroadRootOption = False,
    lock: LockOption = LockUse.ENFORCE,
    run_dir: RunDirOption = None,
    format_: ReportOption = Report.TEXT,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Execute staged calls after review, each once.

    Example: aish apply staged.json pipelines/release.yaml --dry-run
    """
    del verbose
    found = read_staged(staged)
    pipeline = load(file or named_pipeline(found, staged), overrides, quiet=quiet, lock=lock)
    asked = applying(staged, found, pipeline, choosing.wish, tuple(deny or ()))
    if choosing.dry_run:
        return _review(asked, format_)
    options = look_options(None, deny, allow_broad_root=broad_root, lock=lock)
    plans = plans_of(asked, options)
    secrets = plans[""].secrets
    rows = reviewed_rows(asked, secrets)
    if not quiet:
        say(secrets.mask("\n".join(review_lines(asked.heading, rows, width()))))
    done, folder = applied(asked, plans, options, run_dir, quiet=quiet)
    if format_ is Report.JSON:
        print_json(secrets.mask_json(_report(asked, rows, done, folder, done.end.code)))
    else:
        _print_end(rows, done, secrets)
    if quiet and done.end.code:
        say(f"error: {done.end.reason}")
    return done.end.code


def _review(asked: Applying, format_: Report) -> int:
    """Show the calls, and the expected result as far as it is known without a server."""
    secrets = Secrets()
    for pipeline in asked.homes.values():
        mask_literals(pipeline, secrets)
    rows = reviewed_rows(asked, secrets)
    code = int(expected_code(asked, rows))
    if format_ is Report.JSON:
        print_json(_report(asked, rows, None, None, code))
    else:
        print_text("\n".join(review_lines(asked.heading, rows, width())))
    return code


def _print_end(rows: Sequence[Row], done: Application, secrets: Secrets) -> None:
    for attempt in done.attempts:
        print_text(secrets.mask(attempt_line(attempt)))
    before = sum(row.state == "applied" and not row.left_out for row in rows)
    if before:
        print_text(f"{counted(before, 'call')} applied before")


def _report(
    asked: Applying, rows: Sequence[Row], done: Application | None, folder: str | None, code: int
) -> JsonObject:
    attempts = {one.call.id: attempt_row(one) for one in done.attempts} if done else {}
    return {
        "v": 1,
        "staged": str(asked.path),
        "run": asked.staged.head.run,
        "pipeline": str(asked.pipeline.file),
        "dry_run": done is None,
        "calls": [{**review_row(row), **attempts.get(row.call.id, {})} for row in rows],
        "exit": {"code": code} if done is None else plain(done.end),
        "folder": folder,
    }
