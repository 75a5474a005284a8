"""Runs one case: as `aish run` does, on its cassette, without questions to the user (C12).

What it expects is checked on the finished run; snapshots are renewed on demand (F12).
"""

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

import anyio

from aish.cassettes.format.file import shown
from aish.cassettes.format.interaction import CassetteFileError
from aish.config.inputs import complete_inputs
from aish.config.model import Expectation
from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.events import NOWHERE, Event
from aish.core.json import JsonValue
from aish.core.protocols import Clock
from aish.engine.environment import RunEnvironment
from aish.engine.execution.run import execute
from aish.engine.expectations.check import Checked, check_all
from aish.engine.expectations.rendering import UnusableError, rendered
from aish.engine.expectations.snapshot import project_of, write_snapshot
from aish.engine.expectations.subject import (
    NotThereError,
    Subject,
    run_subject,
    step_subject,
    with_names,
)
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import judges_of, require_stdin
from aish.engine.plan.plan import Plan, make_plan, stages_calls
from aish.engine.run_folder import RunFolder, RunsPlace, open_folder
from aish.engine.steps.context import StepContext
from aish.engine.steps.expect import grader
from aish.features.recording.session import (
    CassetteChoice,
    Mode,
    load_session,
    open_recorder,
    test_renewal,
)
from aish.features.testing.outcome import Job, Outcome, verdict_of
from aish.policy.gate import Staging
from aish.system.clock import SystemClock
from aish.templates.limits import TemplateError
from aish.terminal.unattended import Unattended


class Examiner:
    """Examines a successful run; `checked` and `written` hold the results.

    `names` are additional names for the templates of the case: those of its row.
    """

    def __init__(
        self,
        expect: Sequence[Expectation],
        names: Mapping[str, JsonValue],
        *,
        update_snapshots: bool,
    ) -> None:
        self.checked: tuple[Checked, ...] = ()
        self.written: tuple[str, ...] = ()
        self._expect = expect
        self._names = names
        self._update = update_snapshots
        self._begun = monotonic()

    async def __call__(self, context: StepContext, outputs: JsonValue) -> None:
        """Check every expectation of the case.

        Raises:
            AishError: a snapshot cannot be written, or a judge could not be asked.
        """
        plan, seconds = context.plan, monotonic() - self._begun
        subject = run_subject(context.template_values(), context.records, outputs, seconds=seconds)
        subject = replace(subject, names=with_names(subject.names, self._names))
        if self._update:
            self.written = tuple(dict.fromkeys(self._renewed(context, subject)))
        fits = context.resources.runtime.check_arguments
        ask = grader(context, NOWHERE)
        self.checked = await check_all(self._expect, subject, fits, plan.secrets.mask, ask)

    def _renewed(self, context: StepContext, subject: Subject) -> Iterator[str]:
        """Write the snapshots of the case and of the steps; the paths of those that changed."""
        records = context.records
        yield from _written(self._expect, subject, context.plan)
        for step in context.plan.pipeline.steps:
            if _has_snapshot(step.expect) and step.id in records:
                own = step_subject(context.template_values(), records[step.id])
                yield from _written(step.expect, own, context.plan)


def without_snapshots(plan: Plan) -> Plan:
    """The plan with steps that do not fail because of a snapshot which is about to be renewed."""
    steps = tuple(
        replace(step, expect=tuple(one for one in step.expect if one.kind != "snapshot"))
        for step in plan.steps
    )
    return replace(plan, steps=steps)


def _has_snapshot(expect: Sequence[Expectation]) -> bool:
    return any(one.kind == "snapshot" for one in expect)


def _written(expect: Sequence[Expectation], subject: Subject, plan: Plan) -> Iterator[str]:
    project = project_of(plan.pipeline.file)
    for one in expect:
        if one.kind != "snapshot":
            continue
        try:
            named = rendered(one, subject.names)
            if write_snapshot(named, subject, project, plan.secrets.mask):
                assert named.file is not None
                yield shown(named.file)
        except (NotThereError, UnusableError, TemplateError):
            # There is nothing to keep, or no name for it; the check says so.
            continue


_STDIN = "give the case a `stdin:`, or put `stdin: optional` in the file"
_NO_CASSETTE = "the test has no cassette to run on"
_NAME = "name one under `cassette:`, in the test or at the top; `aish test --record` records it"
_OWN = "cases with different requests need a `cassette` each; "
_ACCEPTED = frozenset({ExitCode.OK})


def run_case(job: Job, mode: Mode = "none", *, update_snapshots: bool = False) -> Outcome:
    """Run a case and return its outcome; with `mode="all"` live, to record its cassette.

    All errors become part of the outcome.
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
    choice = CassetteChoice(
        path,
        mode,
        settings.ignore,
        settings.allow,
        strict=settings.strict is not False,
        renewal=test_renewal(job.pipeline),
        accepted=_ACCEPTED,
    )
    session = load_session(choice)
    require_stdin(job.pipeline, job.case.stdin, hint=_STDIN)
    options = RunOptions(inputs=case_inputs(job), stdin=job.case.stdin, environ=dict(os.environ))
    judges = tuple(judges_of(job.case.expect))
    plan = make_plan(job.pipeline, options, session=session, judges=judges)
    if update_snapshots:
        plan = without_snapshots(plan)
    clock, mask = SystemClock(), plan.secrets.mask
    folder = _folder(job, clock, mask)
    with open_recorder(session, plan, options, folder, clock) as recorder:
        environment = RunEnvironment(
            emit=_unheard,
            approver=Unattended(),
            clock=clock,
            folder=folder,
            environ=options.environ,
            recorder=recorder,
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
    """The expectations of a case; while it is recorded only its judges, which are recorded too."""
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
    """Staged calls of a test are not stored."""
    if not stages_calls(plan):
        return None
    from aish.features.staging.queue import unkept_queue

    return unkept_queue(plan, run)


def _unheard(event: Event) -> None:
    del event


def case_inputs(job: Job) -> dict[str, JsonValue]:
    """Every input of the pipeline with its value in this case (F9).

    Raises:
        UsageError: one is missing, unknown, or does not fit.
    """
    return complete_inputs(job.pipeline.inputs, job.case.inputs, f"{job.case.where}.inputs")
