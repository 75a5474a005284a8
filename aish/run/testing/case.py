"""One case: the same way as `aish run`, on its cassette, with nobody to ask (C12)."""

import json
import os
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

import anyio

from aish.cassettes.errors import CassetteFileError
from aish.cassettes.file import shown
from aish.config.expected import Expectation
from aish.config.inputs import complete_inputs
from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.events import Event
from aish.core.json import JsonValue
from aish.core.protocols import Clock
from aish.engine.environment import RunEnvironment
from aish.engine.execution.run import execute
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import judges_of, require_stdin
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.run_folder import RunFolder, RunsPlace, open_folder
from aish.policy.staging import Staging
from aish.run.staging.wanted import stages
from aish.run.taping.reel import Mode, TapeChoice, load_reel, open_tape, test_renewal
from aish.run.testing.examiner import Examiner, without_snapshots
from aish.run.testing.outcome import Job, Outcome, verdict_of
from aish.system.clock import SystemClock
from aish.terminal.unattended import Unattended

_STDIN = "give the case a `stdin:`, or put `stdin: optional` in the file"
_NO_CASSETTE = "the test has no cassette to run on"
_NAME = "name one under `cassette:`, in the test or at the top; `aish test --record` records it"
_OWN = "cases that ask for different things need a `cassette` each; "
_ACCEPTED = frozenset({ExitCode.OK})


def run_case(job: Job, mode: Mode = "none", *, update_snapshots: bool = False) -> Outcome:
    """Run a case and say how it ended; with `mode="all"` live, to record its cassette.

    Whatever goes wrong is part of the answer.
    """
    begun = monotonic()
    try:
        outcome = _run(job, mode, update_snapshots=update_snapshots)
    except AishError as error:
        code = error.exit_code
        outcome = Outcome(
            verdict_of(code, ()),
            code=code,
            reason=str(error),
            hint=error.hint,
            unreadable=isinstance(error, CassetteFileError),
        )
    except Exception as error:  # ruff: ignore[blind-except] - a bug met in one case must not hide how the others end
        said = f"this is a bug in aish: {type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        outcome = Outcome("error", code=ExitCode.INTERNAL, reason=said, trace=trace)
    return replace(outcome, seconds=monotonic() - begun)


def _run(job: Job, mode: Mode, *, update_snapshots: bool) -> Outcome:
    settings = job.cassette
    if settings is None:
        raise UsageError(_NO_CASSETTE, hint=_NAME)
    path = Path(shown(settings.path))
    choice = TapeChoice(
        path,
        mode,
        settings.ignore,
        settings.allow,
        strict=settings.strict is not False,
        renewal=test_renewal(job.pipeline),
        accepted=_ACCEPTED,
    )
    reel = load_reel(choice)
    require_stdin(job.pipeline, job.case.stdin, hint=_STDIN)
    options = RunOptions(inputs=case_inputs(job), stdin=job.case.stdin, environ=dict(os.environ))
    judges = tuple(judges_of(job.case.expect))
    plan = make_plan(job.pipeline, options, reel=reel, judges=judges)
    if update_snapshots:
        plan = without_snapshots(plan)
    clock, mask = SystemClock(), plan.secrets.mask
    folder = _folder(job, clock, mask)
    with open_tape(reel, plan, options, folder, clock) as tape:
        environment = RunEnvironment(
            emit=_unheard,
            approver=Unattended(),
            clock=clock,
            folder=folder,
            environ=options.environ,
            tape=tape,
            staging=unkept(plan, folder.id),
        )
        examiner = Examiner(
            _looked_at(job, mode), job.case.names, update_snapshots=update_snapshots
        )
        look = examiner if mode == "none" or judges else None
        end = anyio.run(execute, plan, options, environment, look)
    verdict = verdict_of(ExitCode(end.code), examiner.checked)
    return Outcome(
        verdict,
        code=ExitCode(end.code),
        reason=mask(end.reason),
        hint=end.hint and mask(f"{_own(job) if verdict == 'miss' else ''}{end.hint}"),
        checked=tuple(replace(one, message=mask(one.message)) for one in examiner.checked),
        written=examiner.written,
    )


def _folder(job: Job, clock: Clock, mask: Callable[[str], str]) -> RunFolder:
    place = RunsPlace(job.pipeline.file.parent)
    return open_folder(job.pipeline.name, place, clock.now(), ephemeral=True, mask=mask)


def _looked_at(job: Job, mode: Mode) -> tuple[Expectation, ...]:
    """What a case expects; while it is recorded only its judges, whose words are recorded too."""
    expect = job.case.expect
    return expect if mode == "none" else tuple(one for one in expect if one.kind == "judge")


def _own(job: Job) -> str:
    """What cases of one cassette may be told first, if they ask for different things."""
    asked = {
        json.dumps([dict(case.inputs), case.stdin], sort_keys=True)
        for case in job.pipeline.tests
        if case.cassette == job.case.cassette
    }
    return _OWN if len(asked) > 1 else ""


def unkept(plan: Plan, run: str) -> Staging | None:
    """Calls that a rule stages are put down for nobody."""
    if not stages(plan):
        return None
    from aish.run.staging.book import unkept_book

    return unkept_book(plan, run)


def _unheard(event: Event) -> None:
    del event


def case_inputs(job: Job) -> dict[str, JsonValue]:
    """Every input of the pipeline with its value in this case (F9).

    Raises:
        UsageError: one is missing, unknown, or does not fit.
    """
    return complete_inputs(job.pipeline.inputs, job.case.inputs, f"{job.case.where}.inputs")
