"""`aish apply STAGED [FILE]`: shows the calls in full, then executes each once."""

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
    RuleOptions,
    RunDirOption,
    SetOption,
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
from aish.engine.final import PRECEDENCE
from aish.engine.plan.literals import mask_literals
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.plan.validation.older_names import policy_of
from aish.engine.run_folder import RunFolder, RunsPlace, open_folder
from aish.features.launch import Launch, open_run
from aish.features.staging.apply import (
    Application,
    ApplyJob,
    Attempt,
    CallSelection,
    Objection,
    ReviewedCalls,
    apply_calls,
    find_objections,
    homes_of,
    is_unsettled,
    require_addresses,
    require_settled,
    select_calls,
)
from aish.features.staging.file import Staged, StagedCall, read_staged
from aish.features.staging.log import AppliedLog, State, log_path, states_in
from aish.output.formats.plain import Plain
from aish.policy.rules import Policy
from aish.system.clock import SystemClock, process_began
from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import arguments_with_bar

WORDS = {
    "open": "to be applied",
    "applied": "applied before",
    "failed": "failed before",
    "unknown": "started before, with unknown outcome",
}


@frozen
class ReviewRow:
    """A call in the review: its state so far, and what prevents it now."""

    call: StagedCall
    state: State
    left_out: bool
    problems: tuple[Objection, ...] = ()


def review_lines(heading: Sequence[str], rows: Sequence[ReviewRow], width: int) -> Iterator[str]:
    """All calls for the review, reviewed or not: nothing of a call is cut."""
    yield from map(for_line, heading)
    for number, row in enumerate(rows, 1):
        yield ""
        call = row.call
        state = "left out" if row.left_out else WORDS[row.state]
        yield for_line(f"{number}. {call.id}  {call.name}  {state}")
        place = ", ".join(f"{k} {v}" for k, v in (("step", call.step), ("item", call.item)) if v)
        yield for_line(f"  requested by {place or 'the run'} at {call.time}, staged by {call.rule}")
        yield for_line(f"  sent to {_where(call)}")
        arguments = list(arguments_with_bar(call.arguments, width))
        yield "  all arguments:"
        yield from arguments
        yield from (for_line(f"  problem: {problem.text}") for problem in row.problems)


def review_row(row: ReviewRow) -> JsonObject:
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
    detail = ""
    if attempt.used is not None and attempt.outcome != "applied":
        detail = f": {attempt.used.content.removeprefix('[aish] ')}"
    outcome = attempt.outcome.replace("_", " ")
    return for_line(f"{attempt.call.id}  {attempt.call.name}  {outcome}{detail}")


def attempt_row(attempt: Attempt) -> JsonObject:
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
    selection: CallSelection
    homes: Mapping[str, Pipeline]
    deny: tuple[str, ...]

    def policy(self, call: StagedCall) -> Policy:
        home = self.homes.get(call.home, self.pipeline)
        return policy_of(home, deny=self.deny)

    @property
    def heading(self) -> tuple[str, ...]:
        head, count = self.staged.head, counted(len(self.staged.calls), "staged call")
        first = f"{self.path}: {count} of the run {head.run}, for {self.pipeline.file}"
        if head.digest == self.pipeline.digest:
            return (first,)
        return (first, "note: the pipeline is not the very file that was run")


def pipeline_of_file(staged: Staged, path: Path) -> Path:
    """The pipeline that the file names, if that can be trusted.

    A file of staged calls may come from another job, together with other files: the pipeline is
    searched for here, and not beside that file.
    """
    name, here = Path(staged.head.file), Path.cwd().resolve()
    target, beside = (here / name).resolve(), path.resolve().parent
    came_with_it = target.is_relative_to(beside) and not here.is_relative_to(beside)
    if name.is_absolute() or not target.is_relative_to(here) or came_with_it:
        raise UsageError(
            f"the pipeline it names is outside this folder: {name}",
            where=str(path),
            hint=f"name it: `aish apply {path} FILE`",
        )
    if not target.exists():
        raise UsageError(
            f"the pipeline it names does not exist: {name}",
            where=str(path),
            hint=f"name it: `aish apply {path} FILE`",
        )
    return name


def make_request(
    path: Path, staged: Staged, pipeline: Pipeline, selection: CallSelection, deny: tuple[str, ...]
) -> Applying:
    homes = homes_of(pipeline, staged.calls)
    return Applying(
        path, staged, pipeline, select_calls(staged.calls, selection), selection, homes, deny
    )


def review_rows(asked: Applying, secrets: Secrets) -> list[ReviewRow]:
    """Every call with its state, without contacting a server."""
    states = states_in(log_path(asked.path))
    meant = {call.id for call in asked.calls}
    return [
        ReviewRow(
            call,
            states.get(call.digest, "open"),
            call.id not in meant,
            tuple(find_objections(call, asked.homes.get(call.home), asked.policy(call), secrets)),
        )
        for call in asked.staged.calls
    ]


def predict_code(asked: Applying, rows: Sequence[ReviewRow]) -> ExitCode:
    """The expected exit code, as far as it is known without a server."""
    codes = {ExitCode.OK}
    for row in rows:
        if row.left_out or row.state == "applied":
            continue
        idempotent = row.call.digest in idempotent_calls(asked, [row.call])
        if is_unsettled(row.state, asked.selection, idempotent=idempotent):
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


def apply_staged(
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
    """
    clock = SystemClock()
    with AppliedLog(log_path(asked.path), clock) as log:
        again = idempotent_calls(asked, asked.calls)
        require_settled(asked.calls, log.states, asked.selection, again)
        due = [call for call in asked.calls if log.states.get(call.digest) != "applied"]
        if not due:
            return Application((), NOTHING_DUE), None
        folder = _folder(asked, due, run_dir, clock, plans[""].secrets)
        job = ApplyJob(folder.id, plans, options, due, asked.staged.head.run, log)
        return _run_job(job, folder, clock, asked.path.name, quiet=quiet), folder.shown


def _folder(
    asked: Applying, due: Sequence[StagedCall], run_dir: Path | None, clock: Clock, secrets: Secrets
) -> RunFolder:
    pipeline = asked.pipeline
    place, name = RunsPlace(pipeline.file.parent, run_dir), f"apply-{pipeline.name}"
    folder = open_folder(name, place, clock.now(), ephemeral=False, mask=secrets.mask)
    ids = [call.id for call in due]
    with folder.require_in_place():
        folder.write_plan({"apply": {"run": asked.staged.head.run, "calls": ids}})
    return folder


def _run_job(
    job: ApplyJob, folder: RunFolder, clock: Clock, source: str, *, quiet: bool
) -> Application:
    """Execute the job, with events to its journal and the person."""
    register_masks(job.secrets, quiet=quiet)
    plain = None if quiet else Plain(sys.stderr, process_began())
    with open_run(Launch(job.plans[""], job.options, folder, clock, staging=None)) as run:
        run.begin(console=plain)
        environment = replace(run.environment, reviewed=ReviewedCalls(job.calls, source))
        if environment.opening is not None:
            environment.opening(())
        end = anyio.run(apply_calls, job, environment)
    for lost in run.lost:
        say(f"error: {lost}")
    if run.lost and not end.end.code:
        end = replace(end, end=replace(end.end, code=1, name="failed", reason=run.lost[0]))
    return end


def width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns


@frozen
class Choosing:
    """Which of the calls are executed."""

    dry_run: Annotated[bool, Option("--dry-run", "Only show the calls; start no server.")] = False
    only: Annotated[list[str] | None, Option("--only ID", "Only this call; may be repeated.")] = (
        None
    )
    skip: Annotated[list[str] | None, Option("--skip ID", "Not this call; may be repeated.")] = None
    retry_unknown: Annotated[
        bool, Option("--retry-unknown", "Retry calls with unknown outcome.")
    ] = False
    retry_failed: Annotated[bool, Option("--retry-failed", "Retry calls that failed before.")] = (
        False
    )

    @property
    def selection(self) -> CallSelection:
        ids = (tuple(self.only or ()), tuple(self.skip or ()))
        return CallSelection(*ids, retry_unknown=self.retry_unknown, retry_failed=self.retry_failed)


def command(
    staged: Annotated[Path, Argument("STAGED", "The file of staged calls.")],
    choosing: Choosing,
    file: Annotated[
        Path | None, Argument("[FILE]", "The pipeline; default: the one that was run.")
    ] = None,
    *,
    overrides: SetOption = None,
    deny: DenyOption = None,
    broad_root: BroadRootOption = False,
    lock: LockOption = LockUse.ENFORCE,
    run_dir: RunDirOption = None,
    output_format: ReportOption = Report.TEXT,
    quiet: QuietOption = False,
) -> int:
    """Execute staged calls after review, each once.

    Example: aish apply staged.json pipelines/release.yaml --dry-run
    """
    document = read_staged(staged)
    pipeline = load(file or pipeline_of_file(document, staged), overrides, quiet=quiet, lock=lock)
    asked = make_request(staged, document, pipeline, choosing.selection, tuple(deny or ()))
    if choosing.dry_run:
        secrets = Secrets()
        for pipeline in asked.homes.values():
            mask_literals(pipeline, secrets)
        rows = review_rows(asked, secrets)
        code = int(predict_code(asked, rows))
        if output_format is Report.JSON:
            print_json(_report(asked, rows, None, None, code))
        else:
            print_text("\n".join(review_lines(asked.heading, rows, width())))
        return code
    options = look_options(RuleOptions(None, deny, broad_root, lock))
    plans = plans_of(asked, options)
    secrets = plans[""].secrets
    rows = review_rows(asked, secrets)
    if not quiet:
        say(secrets.mask("\n".join(review_lines(asked.heading, rows, width()))))
    done, folder = apply_staged(asked, plans, options, run_dir, quiet=quiet)
    if output_format is Report.JSON:
        print_json(secrets.mask_json(_report(asked, rows, done, folder, done.end.code)))
    else:
        for attempt in done.attempts:
            print_text(secrets.mask(attempt_line(attempt)))
        before = sum(row.state == "applied" and not row.left_out for row in rows)
        if before:
            print_text(f"{counted(before, 'call')} applied before")
    if quiet and done.end.code:
        say(f"error: {done.end.reason}")
    return done.end.code


def _report(
    asked: Applying,
    rows: Sequence[ReviewRow],
    done: Application | None,
    folder: str | None,
    code: int,
) -> JsonObject:
    attempts = {attempt.call.id: attempt_row(attempt) for attempt in done.attempts} if done else {}
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
