"""Forecast of a live session before its first request: runs, cost, time, what it can find."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from aish.cassettes.format.file import load
from aish.config.model import PromptStep
from aish.core.errors import AishError
from aish.core.messages import sum_costs
from aish.core.phrases import counted
from aish.engine.plan.estimate import most_cost
from aish.engine.plan.template_context import template_context
from aish.features.recording.compare import trajectory_of_models
from aish.features.testing.baseline import BaselineRun
from aish.features.testing.comparison import ITSELF, ComparisonPlan, Sides, fall_found
from aish.features.testing.live import OUT_OF_REACH, CellDraft, LiveSession, comparison_plans
from aish.features.testing.repeat_statistics import Counts
from aish.models.pricing import pricing_of
from aish.output.status import seconds_text
from aish.reports.figures import cost_text

_ASSUMED_RATE = 0.9
"""The rate of a side that has not been measured yet."""


def forecast_line(session: LiveSession) -> str:
    """`50 cases, 1 model, 8 runs each: 150 to 400 runs, about $1.90 (at most $5.20), …`."""
    drafts = session.drafts
    cases = len({draft.job.id for draft in drafts})
    size = f"{counted(cases, 'case')}, {counted(len(session.models), 'model')}"
    least, most = sum(_fewest(draft, session) for draft in drafts), sum(d.planned for d in drafts)
    runs = counted(most, "run") if least == most else f"{least} to {counted(most, 'run')}"
    usual = (least + most) / 2 / most
    parts = [runs, _cost(session, usual), _time(session, usual)]
    line = f"{size}, {counted(session.rounds, 'run')} each: {', '.join(filter(None, parts))}"
    return "; ".join((line, *_smallest_fall(session)))


def _fewest(draft: CellDraft, session: LiveSession) -> int:
    """The fewest runs of a case after which it may end."""
    if not session.settings.stops or draft.error is not None:
        return draft.planned
    if session.is_compared(draft):
        plan = ComparisonPlan(session.settings.against or "", session.rounds)
        return min(draft.planned, plan.looks[0].after)
    needed = draft.repeat.needed(draft.planned)
    return min(needed, draft.planned - needed + 1) if draft.has_share else draft.planned


def _runs_before(draft: CellDraft, session: LiveSession) -> Sequence[BaselineRun]:
    baseline = session.settings.baseline
    return (
        () if baseline is None or draft.key not in session.known else baseline.cells[draft.key].runs
    )


def _cost(session: LiveSession, usual: float) -> str:
    costs = [_cost_of_run(draft, session) for draft in session.drafts]
    about = sum_costs(
        None if cost is None else cost * draft.planned * usual
        for cost, draft in zip(costs, session.drafts, strict=True)
    )
    bounds = [sum_costs(_worst(draft) for draft in session.drafts), session.settings.max_cost_usd]
    most = min((bound for bound in bounds if bound is not None), default=None)
    if about is None:
        return "cost unknown" if most is None else f"at most {cost_text(most)}"
    about = about if most is None else min(about, most)
    return f"about {cost_text(about)}" + ("" if most is None else f" (at most {cost_text(most)})")


def _worst(draft: CellDraft) -> float | None:
    """The maximum cost of all runs of a case; `None` if nothing bounds it."""
    if draft.plan is None:
        return 0.0
    plan = draft.plan
    most = most_cost(plan, template_context(plan.pipeline, draft.options, {}, plan.variables))
    return None if most is None or most >= OUT_OF_REACH else most * draft.planned


def _cost_of_run(draft: CellDraft, session: LiveSession) -> float | None:
    """The cost of a run: as in the baseline, else of the recorded tokens."""
    if draft.plan is None:
        return 0.0
    before = sum_costs(run.cost_usd for run in _runs_before(draft, session))
    if before is not None and (count := len(_runs_before(draft, session))):
        return before / count
    return _recorded_cost(draft)


def _recorded_cost(draft: CellDraft) -> float | None:
    """The cost of the cassette's tokens at the prices of the one model that is asked."""
    plan, cassette = draft.plan, draft.job.cassette
    if plan is None or cassette is None:
        return None
    models = {plan.model_of(step) for step in plan.steps if isinstance(step, PromptStep)}
    try:
        usage = trajectory_of_models(load(cassette.path).interactions).totals.usage
    except AishError:
        return None
    pricings = [pricing_of(plan.models[alias].entry) for alias in models]
    return pricings[0].cost(usage) if len(pricings) == 1 and pricings[0] is not None else None


def _time(session: LiveSession, usual: float) -> str:
    """The time, if the baseline has that of each case."""
    runs = [_runs_before(draft, session) for draft in session.drafts]
    if not all(runs):
        return ""
    seconds = sum(
        fmean(run.seconds for run in before) * draft.planned * usual
        for before, draft in zip(runs, session.drafts, strict=True)
    )
    width = min(session.width, len(session.drafts))
    return f"{seconds_text(seconds / width)} at {width} at a time" if seconds else ""


def _smallest_fall(session: LiveSession) -> Iterator[str]:
    """The fall that the comparison of the first column can find."""
    baseline = session.settings.baseline
    for plan, model in comparison_plans(session):
        sides: dict[str, Sides] = {}
        for draft in session.drafts:
            if draft.model == model and session.is_compared(draft):
                runs = draft.planned // 2 if plan.against == ITSELF else draft.planned
                counts = (Counts(0, runs),)
                before = counts if baseline is None else baseline.cells[draft.key].counts
                sides[draft.job.id] = Sides(before, Counts(0, runs), runs)
        rates = [one.pair[0].rate for one in sides.values()]
        fall = fall_found(plan, sides, _ASSUMED_RATE if baseline is None else fmean(rates))
        if fall is None:
            yield "so few runs find no fall 9 times in 10"
        else:
            yield f"a fall of {100 * fall:.0f} points is found 9 times in 10"
        return
