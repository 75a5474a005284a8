"""Runs one case: as `aish run` does, on its cassette, without questions to the user.

What it expects is checked on the finished run; snapshots are renewed on demand.
"""

import json
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

import anyio

from aish.cassettes.format.file import show_path
from aish.cassettes.format.interaction import CassetteFileError
from aish.config.inputs import complete_inputs
from aish.config.model import Expectation
from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.events import NOWHERE
from aish.core.json import JsonValue
from aish.engine.expectations.check import CheckedExpectation, check_all
from aish.engine.expectations.rendering import UnusableError, render_expectation
from aish.engine.expectations.snapshot import project_of, write_snapshot
from aish.engine.expectations.subject import (
    NotThereError,
    Subject,
    run_subject,
    step_subject,
)
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import judges_of, require_stdin
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.run_folder import new_folder
from aish.engine.steps.context import StepContext
from aish.engine.steps.expect import grader, quote_scope
from aish.features.launch import Launch, open_run
from aish.features.recording.session import (
    CassetteChoice,
    CassetteSession,
    Mode,
    load_session,
    test_renewal,
)
from aish.features.testing.outcome import CaseJob, CaseOutcome, verdict_of
from aish.system.clock import SystemClock
from aish.templates.limits import TemplateError
from aish.templates.values import with_names


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
        self.checked: tuple[CheckedExpectation, ...] = ()
        self.written: tuple[str, ...] = ()
        self.expects = expect
        self._names = names
        self._update = update_snapshots
        self._begun = monotonic()

    async def __call__(self, context: StepContext, outputs: JsonValue) -> None:
        plan, seconds = context.plan, monotonic() - self._begun
        subject = run_subject(context.template_values(), context.records, outputs, seconds=seconds)
        subject = replace(subject, names=with_names(subject.names, self._names))
        if self._update:
            self.written = tuple(dict.fromkeys(self._update_snapshots(context, subject)))
        fits = context.agent.check_arguments
        ask = grader(context, NOWHERE)
        scope = quote_scope(subject.calls, context, NOWHERE)
        mask = plan.secrets.mask
        self.checked = await check_all(self.expects, subject, fits, mask, ask, scope)

    def _update_snapshots(self, context: StepContext, subject: Subject) -> Iterator[str]:
        """Write the snapshots of the case and of the steps; the paths of those that changed."""
        records = context.records
        yield from _write_snapshots(self.expects, subject, context.plan)
        for step in context.plan.pipeline.steps:
            if any(one.kind == "snapshot" for one in step.expect) and step.id in records:
                own = step_subject(context.template_values(), records[step.id])
                yield from _write_snapshots(step.expect, own, context.plan)


def without_snapshots(plan: Plan) -> Plan:
    """The plan with steps that do not fail because of a snapshot which is about to be renewed."""
    steps = tuple(
        replace(step, expect=tuple(one for one in step.expect if one.kind != "snapshot"))
        for step in plan.steps
    )
    return replace(plan, steps=steps)


def _write_snapshots(expect: Sequence[Expectation], subject: Subject, plan: Plan) -> Iterator[str]:
    project = project_of(plan.pipeline.file)
    for expectation in expect:
        if expectation.kind != "snapshot":
            continue
        try:
            named = render_expectation(expectation, subject.names)
            if write_snapshot(named, subject, project, plan.secrets.mask):
                assert named.file is not None
                yield show_path(named.file)
        except (NotThereError, UnusableError, TemplateError):
            # There is nothing to keep, or no name for it; the check says so.
            continue


_STDIN = "give the case a `stdin:`, or put `stdin: optional` in the file"
_NO_CASSETTE = "the test has no cassette to run on"
_NAME = "name one under `cassette:`, in the test or at the top; `aish test --record` records it"
_OWN = "cases with different requests need a `cassette` each; "
_ACCEPTED = frozenset({ExitCode.OK})


def run_case(job: CaseJob, mode: Mode = "none", *, update_snapshots: bool = False) -> CaseOutcome:
    """Run a case and return its outcome; with `mode="all"` live, to record its cassette.

    All errors become part of the outcome.
    """
    begun = monotonic()
    try:
        outcome = _run(job, mode, update_snapshots=update_snapshots)
    except AishError as error:
        code = error.exit_code
        outcome = CaseOutcome(
            verdict_of(code, ()),
            code=code,
            reason=str(error),
            hint=error.hint,
            unreadable=isinstance(error, CassetteFileError),
        )
    except Exception as error:  # ruff: ignore[blind-except] - a bug met in one case must not hide how the others end
        message = f"this is a bug in aish: {type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        outcome = CaseOutcome("error", code=ExitCode.INTERNAL, reason=message, trace=trace)
    return replace(outcome, seconds=monotonic() - begun)


def _run(job: CaseJob, mode: Mode, *, update_snapshots: bool) -> CaseOutcome:
    session = load_case_session(job, mode)
    require_stdin(job.pipeline, job.case.stdin, hint=_STDIN)
    options = RunOptions(inputs=case_inputs(job), stdin=job.case.stdin, environ=dict(os.environ))
    judges = tuple(judges_of(job.case.expect))
    plan = make_plan(job.pipeline, options, session=session, judges=judges)
    if update_snapshots:
        plan = without_snapshots(plan)
    clock, mask = SystemClock(), plan.secrets.mask
    folder = new_folder(plan, options, clock, ephemeral=True)
    launch = Launch(plan, options, folder, clock, cassette=session, staging="unkept")
    examiner = Examiner(_expectations(job, mode), job.case.names, update_snapshots=update_snapshots)
    look = examiner if mode == "none" or examiner.expects else None
    with open_run(launch) as run:
        run.begin()
        end = anyio.run(run.execute, look)
    verdict = verdict_of(ExitCode(end.code), examiner.checked)
    return CaseOutcome(
        verdict,
        code=ExitCode(end.code),
        reason=mask(end.reason),
        hint=end.hint and mask(f"{_own(job) if verdict == 'miss' else ''}{end.hint}"),
        checked=tuple(replace(check, message=mask(check.message)) for check in examiner.checked),
        written=examiner.written,
    )


def load_case_session(
    job: CaseJob, mode: Mode = "none", *, tools_only: bool = False
) -> CassetteSession:
    """The cassette of a case; with `tools_only` its models are live.

    Raises:
        UsageError: it has none, or that cannot be read.
    """
    settings = job.cassette
    if settings is None:
        raise UsageError(_NO_CASSETTE, hint=_NAME)
    choice = CassetteChoice(
        Path(show_path(settings.path)),
        mode,
        settings.ignore,
        settings.allow,
        strict=settings.strict is not False,
        tools_only=tools_only,
        renewal=test_renewal(job.pipeline),
        accepted=_ACCEPTED,
    )
    return load_session(choice)


def _expectations(job: CaseJob, mode: Mode) -> tuple[Expectation, ...]:
    """The expectations of a case; while it is recorded only those that are recorded too."""
    expect = job.case.expect
    return expect if mode == "none" else tuple(one for one in expect if _is_recorded(one))


def _is_recorded(expectation: Expectation) -> bool:
    """Return true if it asks a judge, or looks up quotes in files."""
    wanted = expectation.quoted
    return expectation.kind == "judge" or (
        wanted is not None and any(source.kind == "file" for source in wanted.sources)
    )


def _own(job: CaseJob) -> str:
    """The hint for cases that share a cassette but have different inputs, or nothing."""
    asked = {
        json.dumps([dict(case.inputs), case.stdin], sort_keys=True)
        for case in job.pipeline.tests
        if case.cassette == job.case.cassette
    }
    return _OWN if len(asked) > 1 else ""


def case_inputs(job: CaseJob) -> dict[str, JsonValue]:
    """Every input of the pipeline with its value in this case.

    Raises:
        UsageError: one is missing, unknown, or does not fit.
    """
    return complete_inputs(job.pipeline.inputs, job.case.inputs, f"{job.case.where}.inputs")
