"""From a file of staged calls to the exit code of `aish apply` (B16)."""

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import anyio

from aish.cli.applying_text import Row
from aish.cli.boundary import say
from aish.cli.masks import register_masks
from aish.config.model import Pipeline
from aish.core.errors import ExitCode, UsageError
from aish.core.events import Exit
from aish.core.frozen import frozen
from aish.core.phrases import counted
from aish.core.protocols import Clock
from aish.core.tools import Tool
from aish.engine.environment import RunEnvironment
from aish.engine.final import PRECEDENCE
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.run_folder import RunFolder, RunsPlace, open_folder
from aish.features.staging.apply import (
    Application,
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
from aish.features.staging.file import Staged, StagedCall
from aish.features.staging.log import AppliedLog, log_path, states_in
from aish.journal.writer import open_journal
from aish.output.event_log import EventLog, Sink
from aish.output.formats.plain import Plain
from aish.policy.rules import Policy, compile_policy
from aish.system.clock import SystemClock, process_began
from aish.system.secrets.secrets import Secrets
from aish.terminal.unattended import Unattended

WIDTH = 100
NOTHING_DUE = Exit(0, "ok", retryable=False, reason="")


@frozen
class Applying:
    """A file of staged calls and what is wanted of it; `calls` are those that were chosen.

    `homes` are the pipeline and those of its sub-pipelines that calls are of.
    """

    path: Path
    staged: Staged
    pipeline: Pipeline
    calls: tuple[StagedCall, ...]
    wish: Wish
    homes: Mapping[str, Pipeline]
    deny: tuple[str, ...]

    def policy(self, call: StagedCall) -> Policy:
        """The rules that hold for a call, with those of the command line."""
        home = self.homes.get(call.home, self.pipeline)
        return compile_policy(home.rules, deny=self.deny)

    @property
    def heading(self) -> tuple[str, ...]:
        """What is said above the calls."""
        head, count = self.staged.head, counted(len(self.staged.calls), "staged call")
        first = f"{self.path}: {count} of the run {head.run}, for {self.pipeline.file}"
        if head.digest == self.pipeline.digest:
            return (first,)
        return (first, "note: the pipeline is not the very file that was run")


def named_pipeline(staged: Staged, path: Path) -> Path:
    """The pipeline that the file names, where that can be trusted.

    A file of staged calls may come from another job, with whatever else came with it: what it
    names is looked for here and not there.

    Raises:
        UsageError: the pipeline is to be named on the command line.
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
    """What is wanted, with the calls that are meant.

    Raises:
        UsageError: an id is that of no call.
    """
    homes = homes_of(pipeline, staged.calls)
    return Applying(path, staged, pipeline, chosen(staged.calls, wish), wish, homes, deny)


def reviewed_rows(asked: Applying, secrets: Secrets) -> list[Row]:
    """Every call with what is known of it, without asking a server."""
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
    """How applying would end, as far as no server is asked."""
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
    """The calls that may be made again, by a rule under `mcp.idempotent`."""
    return frozenset(
        call.digest
        for call in calls
        if asked.policy(call).is_idempotent(Tool(call.name, str(call.name), "", {}))
    )


def plans_of(asked: Applying, options: RunOptions) -> Mapping[str, Plan]:
    """A plan for each pipeline that calls are of: no model, no steps, only servers that are called.

    Others need no credentials then.

    Raises:
        UsageError: a variable that a server needs is not set.
        LockDiffersError: a server is not the one that a call was staged for.
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
    """Make the calls that are due; also where the run's folder is.

    Raises:
        UnsettledError: an earlier attempt left it open whether a call should be made.
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
    """Do the job, and tell its journal and the person about it."""
    assert folder.path is not None
    register_masks(job.secrets, quiet=quiet)
    lost: list[str] = []
    with folder.beginning():
        sinks: list[Sink] = [open_journal(folder.path)]
    sinks += [] if quiet else [Plain(sys.stderr, process_began())]
    events = EventLog(
        sinks,
        clock=clock,
        secrets=job.secrets,
        on_failure=lambda sink, error: lost.append(f"cannot write {sink.name}: {error.strerror}"),
    )
    environment = RunEnvironment(
        emit=events.emit,
        approver=Unattended(),
        clock=clock,
        folder=folder,
        environ=job.options.environ,
        reviewed=ReviewedCalls(job.calls, source),
    )
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
    """How wide the review may be: the terminal, or a usual page where there is none."""
    return shutil.get_terminal_size((WIDTH, 24)).columns
