"""What a case expects, checked on the finished run; its snapshots renewed on demand (F12)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic

from aish.cassettes.file import shown
from aish.config.expected import Expectation
from aish.core.events import NOWHERE
from aish.core.json import JsonValue
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
from aish.engine.plan.plan import Plan
from aish.engine.steps.context import StepContext
from aish.engine.steps.expect import grader
from aish.templates.explain import TemplateError


class Examiner:
    """Looks at a run that has succeeded; `checked` and `written` say what it found and did.

    `names` are what the templates of the case see beside the others: those of its row.
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

    async def __call__(self, stage: StepContext, outputs: JsonValue) -> None:
        """Check every expectation of the case.

        Raises:
            AishError: a snapshot cannot be written, or a judge could not be asked.
        """
        plan, seconds = stage.plan, monotonic() - self._begun
        subject = run_subject(stage.context(), stage.records, outputs, seconds=seconds)
        subject = replace(subject, names=with_names(subject.names, self._names))
        if self._update:
            self.written = tuple(dict.fromkeys(self._renewed(stage, subject)))
        fits = stage.resources.runtime.check_arguments
        ask = grader(stage, NOWHERE)
        self.checked = await check_all(self._expect, subject, fits, plan.secrets.mask, ask)

    def _renewed(self, stage: StepContext, subject: Subject) -> Iterator[str]:
        """Write the snapshots of the case and of the steps; the paths of those that changed."""
        records = stage.records
        yield from _written(self._expect, subject, stage.plan)
        for step in stage.plan.pipeline.steps:
            if _has_snapshot(step.expect) and step.id in records:
                own = step_subject(stage.context(), records[step.id])
                yield from _written(step.expect, own, stage.plan)


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
