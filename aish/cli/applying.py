"""From a file of staged calls to the exit code of `aish apply` (B16)."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import anyio

from aish.cli.applying_text import Row
from aish.cli.boundary import say
from aish.config.pipeline import Pipeline
from aish.errors import ExitCode, UsageError
from aish.policy.rules import Policy, compile_policy
from aish.run.applying.apply import Application, Job, apply_calls
from aish.run.applying.choice import Wish, chosen, is_unsettled, require_settled
from aish.run.applying.fitness import expected_problems, require_addresses
from aish.run.applying.log import AppliedLog, log_path, states_in
from aish.run.applying.reviewed import ReviewedCalls
from aish.run.final import PRECEDENCE
from aish.run.folder import RunsPlace, open_folder
from aish.run.options import RunOptions
from aish.run.plan import Plan, make_plan
from aish.run.staging.call import StagedCall
from aish.run.staging.reading import Staged
from aish.run.surroundings import Surroundings
from aish.sinks.fanout import EventLog, Sink
from aish.sinks.journal import open_journal
from aish.sinks.plain import Plain
from aish.system.clock import SystemClock
from aish.system.secrets import Secrets
from aish.terminal.unattended import Unattended
from aish.text import counted
from aish.vocab.event_parts import Exit
from aish.vocab.frozen import frozen
from aish.vocab.tools import Tool

WIDTH = 100
NOTHING_DUE = Exit(0, "ok", retryable=False, reason="")


@frozen
class Applying:
    """A file of staged calls and what is wanted of it; `calls` are those that were chosen.

    `policy` has the rules of the pipeline and of the command line.
    """

    path: Path
    staged: Staged
    pipeline: Pipeline
    calls: tuple[StagedCall, ...]
    wish: Wish
    policy: Policy

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
            f"the pipeline that it names is not beneath this folder: {name}",
            where=str(path),
            hint=f"name it: `aish apply {path} FILE`",
        )
    if not found.exists():
        raise UsageError(
            f"the pipeline that it names is not here: {name}",
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
    policy = compile_policy(pipeline.rules, deny=deny)
    return Applying(path, staged, pipeline, chosen(staged.calls, wish), wish, policy)


def reviewed_rows(asked: Applying, secrets: Secrets) -> list[Row]:
    """Every call with what is known of it, without asking a server."""
    states = states_in(log_path(asked.path))
    meant = {call.id for call in asked.calls}
    return [
        Row(
            call,
            states.get(call.digest, "open"),
            call.id not in meant,
            tuple(expected_problems(call, asked.pipeline, asked.policy, secrets)),
        )
        for call in asked.staged.calls
    ]


def expected_code(asked: Applying, rows: Sequence[Row]) -> ExitCode:
    """How applying would end, as far as no server is asked."""
    codes = {ExitCode.OK}
    for row in rows:
        if row.left_out or row.state == "applied":
            continue
        idempotent = row.call.digest in idempotent_calls([row.call], asked.policy)
        if is_unsettled(row.state, asked.wish, idempotent=idempotent):
            codes.add(ExitCode.FAILED)
        codes |= {problem.code for problem in row.problems}
    return next(code for code in PRECEDENCE if code in codes)


def idempotent_calls(calls: Iterable[StagedCall], policy: Policy) -> frozenset[str]:
    """The calls that may be made again, by a rule under `mcp.idempotent`."""
    return frozenset(
        call.digest
        for call in calls
        if policy.is_idempotent(Tool(call.name, str(call.name), "", {}))
    )


def narrowed(asked: Applying) -> Pipeline:
    """The pipeline with the servers that are called, and no others: these need no credentials."""
    used = {call.name.server for call in asked.calls}
    servers = {
        alias: replace(entry, required=True)
        for alias, entry in asked.pipeline.servers.items()
        if alias in used
    }
    return replace(asked.pipeline, servers=servers)


def plan_of(asked: Applying, options: RunOptions) -> Plan:
    """The plan for the calls: no model, no steps.

    Raises:
        UsageError: a variable that a server needs is not set.
        LockDiffersError: a server is not the one that a call was staged for.
    """
    plan = make_plan(narrowed(asked), options, with_models=False)
    if plan.lock is not None:
        used = plan.pipeline.servers
        pins = {alias: pin for alias, pin in plan.lock.servers.items() if alias in used}
        plan = replace(plan, lock=replace(plan.lock, servers=pins))
    require_addresses(asked.calls, asked.pipeline, plan.secrets)
    return replace(plan, steps=())


def applied(
    asked: Applying, plan: Plan, options: RunOptions, run_dir: Path | None, *, quiet: bool
) -> tuple[Application, str | None]:
    """Make the calls that are due; also where the run's folder is.

    Raises:
        UnsettledError: an earlier attempt left it open whether a call should be made.
        UsageError: the log beside the file cannot be written.
    """
    clock = SystemClock()
    with ExitStack() as stack:
        log = stack.enter_context(AppliedLog(log_path(asked.path), clock))
        again = idempotent_calls(asked.calls, plan.policy)
        require_settled(asked.calls, log.states, asked.wish, again)
        due = [call for call in asked.calls if log.states.get(call.digest) != "applied"]
        if not due:
            return Application((), NOTHING_DUE), None
        place = RunsPlace(plan.pipeline.file.parent, run_dir)
        name, mask = f"apply-{plan.pipeline.name}", plan.secrets.mask
        folder = open_folder(name, place, clock.now(), ephemeral=False, mask=mask)
        ids = [call.id for call in due]
        folder.write_plan({"apply": {"run": asked.staged.head.run, "calls": ids}})
        assert folder.path is not None
        lost: list[str] = []
        sinks: list[Sink] = [open_journal(folder.path)]
        sinks += [] if quiet else [Plain(sys.stderr)]
        events = EventLog(
            sinks,
            clock=clock,
            secrets=plan.secrets,
            on_failure=lambda sink, error: lost.append(f"cannot write {sink.name}: {error}"),
        )
        stack.callback(events.close)
        around = Surroundings(
            emit=events.emit,
            approver=Unattended(),
            clock=clock,
            folder=folder,
            environ=options.environ,
            reviewed=ReviewedCalls(due, asked.path.name),
        )
        job = Job(folder.id, plan, options, due, asked.staged.head.run, log)
        found = anyio.run(apply_calls, job, around)
    for said in lost:
        say(f"error: {said}")
    if lost and not found.end.code:
        found = replace(found, end=replace(found.end, code=1, name="failed", reason=lost[0]))
    return found, folder.shown


def width() -> int:
    """How wide the review may be: the terminal, or a usual page where there is none."""
    return shutil.get_terminal_size((WIDTH, 24)).columns
