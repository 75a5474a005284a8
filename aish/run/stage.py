"""What every kind of step is given: the plan, the open resources, and what came before."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from aish.config.steps import LoopLimits, OnDenied
from aish.errors import ExitCode
from aish.loop.equipment import Equipment
from aish.run.context import template_context
from aish.run.options import RunOptions
from aish.run.plan import Plan
from aish.run.records import StepRecord
from aish.run.resources import Resources
from aish.vocab.event_parts import StepStatus
from aish.vocab.json import JsonValue

EXIT_OF_STATUS: Mapping[StepStatus, ExitCode] = {
    "ok": ExitCode.OK,
    "skipped": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "denied": ExitCode.DENIED,
    "budget": ExitCode.BUDGET,
}


@dataclass(slots=True)
class Stage:
    """A run in progress; `records` grows as steps finish, `ends` is when its time is over."""

    plan: Plan
    options: RunOptions
    resources: Resources
    records: dict[str, StepRecord] = field(default_factory=dict)
    ends: float | None = None

    def context(self) -> Mapping[str, JsonValue]:
        """What templates see now."""
        return template_context(self.plan.pipeline, self.options, self.records, self.plan.variables)

    def equipment(self, limits: LoopLimits, on_denied: OnDenied) -> Equipment:
        """The resources as the loop takes them, under a step's own limits."""
        return replace(self.resources.equipment, limits=limits, on_denied=on_denied)


Examine = Callable[[Stage, JsonValue], Awaitable[None]]
"""Looks at a run that has succeeded, and at its outputs: `aish test` does."""
