"""`aish test --live`: cases on the real models, each case on each model, once or repeatedly.

All runs share one event loop: so one limit on cost holds over all of them, and a signal ends them
together. Repeated runs go in rounds, each case on each model once in an order that is shuffled:
models share the day, and an early end leaves as many runs of each. Runs that have not begun by
then are left out, and the rest is reported.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from random import Random
from statistics import median
from time import monotonic
from typing import Protocol

import anyio

from aish.config.model import Case, CaseRepeat, Limits, PromptStep
from aish.core.errors import AishError, BudgetError, ExitCode, UsageError, did_you_mean
from aish.core.events import (
    Exit,
    Place,
    RunFinished,
    Stamped,
    StepFinished,
    ToolFinished,
    TurnFinished,
    plain,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.phrases import backticked, dollars
from aish.core.protocols import Approver
from aish.engine.cancellation import ShutdownRequests, borrow_signals, interruptible
from aish.engine.environment import Opening
from aish.engine.execution.fingerprint import hash_value
from aish.engine.expectations.rendering import UnusableError, render_expectation
from aish.engine.final import PRECEDENCE
from aish.engine.limits import Budget, RequestHold, RunMeter
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import judges_of
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.run_folder import new_folder
from aish.features.launch import Launch, open_run
from aish.features.recording.session import CassetteSession
from aish.features.testing.baseline import (
    Baseline,
    CellKey,
    change_of_verdict,
    count_live,
)
from aish.features.testing.case import Examiner, case_inputs, load_case_session
from aish.features.testing.comparison import (
    ALPHA,
    ITSELF,
    UNDECIDED,
    ComparisonDecision,
    ComparisonPlan,
    Sides,
    conclude,
    judge,
    spread_of,
)
from aish.features.testing.outcome import CaseJob, CaseOutcome, explanation
from aish.features.testing.repeat_statistics import (
    Counts,
    mean_rate,
    pass_power,
    variance_parts,
    wilson,
)
from aish.models.pricing import Pricing
from aish.output.event_log import Sink
from aish.output.status import call_status
from aish.reports.live_results import (
    TRIED,
    CellVerdict,
    LiveCall,
    LiveCase,
    LiveCell,
    LiveColumn,
    LiveResults,
    LiveRun,
    RunVerdict,
)
from aish.system.clock import SystemClock
from aish.templates.limits import TemplateError
from aish.terminal.approver import TerminalApprover
from aish.terminal.tty import Turns
from aish.terminal.unattended import Unattended

AS_IN_THE_FILE = None
"""The model of a column where none was named: each step has its own."""

USUAL_WIDTH = 4
"""Cases at a time; one where a model runs on this machine."""

OUT_OF_REACH = 1_000_000.0
_ALL_OVER = "the limit of {} for all cases together is reached"


@frozen
class LiveSettings:
    """The options of the command line; `max_cost_usd` and `timeout` hold for all runs together.

    `options` has what holds for each run: rules, the lock, whether broad roots are allowed. `ask`
    asks the person at the terminal about calls that no rule decides, one question at a time.
    `repeat` replaces the number of runs that the cases name; `stops` allows to end before them
    where the verdict is known. With `recorded_tools` what tools answer comes from the cassettes.
    Columns are compared with `baseline`, or with the model that `against` names, or each with
    itself.
    """

    models: tuple[str, ...] = ()
    options: RunOptions = RunOptions()
    width: int | None = None
    max_cost_usd: float | None = None
    timeout: float | None = None
    stop_first: bool = False
    ask: bool = False
    repeat: int | None = None
    stops: bool = True
    recorded_tools: bool = False
    against: str | None = None
    baseline: Baseline | None = None


@frozen
class CellDraft:
    """A case on a model before it is run: its plan, or why there is none.

    `planned` are its runs, `repeat` says how many of them have to pass. `cassette` has its tools,
    if they are recorded.
    """

    job: CaseJob
    model: str | None
    planned: int
    repeat: CaseRepeat
    options: RunOptions = RunOptions()
    plan: Plan | None = None
    cassette: CassetteSession | None = None
    error: AishError | None = None
    inputs_digest: str = ""
    expected_digest: str = ""
    is_fixed: bool = False

    @property
    def key(self) -> CellKey:
        return self.job.id, self.model

    @property
    def has_share(self) -> bool:
        """True if the file says how many runs have to pass."""
        return self.repeat.passes is not None or self.repeat.percent is not None


def _with_digests(draft: CellDraft) -> CellDraft:
    """The draft with digests of its inputs and of what it expects; they reveal no secret."""
    case, plan = draft.job.case, draft.plan
    inputs = draft.options.inputs if plan is not None else case.inputs
    values: tuple[JsonValue, JsonValue] = (
        {"inputs": dict(inputs), "stdin": case.stdin},
        {"expect": list(_expected_data(draft.job)), "row": _row_of(case)},
    )
    digests = [hash_value(one if plan is None else plan.secrets.mask_json(one)) for one in values]
    fixed = False
    if plan is not None:
        steps = [step for step in plan.steps if isinstance(step, PromptStep)]
        fixed = bool(steps) and all(_is_fixed(plan, step) for step in steps)
    return replace(draft, inputs_digest=digests[0], expected_digest=digests[1], is_fixed=fixed)


def _row_of(case: Case) -> JsonObject:
    """The names of a row that say which one it is; its number says only where it is."""
    return {name: value for name, value in case.names.items() if name != "index"}


def _is_fixed(plan: Plan, step: PromptStep) -> bool:
    """True if equal answers are copies: at temperature 0, or with a seed."""
    params = {**plan.models[plan.model_of(step)].entry.params, **step.params}
    return params.get("temperature") == 0 or params.get("seed") is not None


def _expected_data(job: CaseJob) -> Sequence[JsonValue]:
    """The list under `expect`, as the file has it."""
    tests = job.pipeline.data.get("tests")
    number = job.case.where.removeprefix("tests[").removesuffix("]")
    entry = tests[int(number)] if isinstance(tests, list) and number.isdigit() else None
    expect = entry.get("expect") if isinstance(entry, Mapping) else None
    return expect if isinstance(expect, list) else []


class LiveListener(Protocol):
    def ended(self, draft: CellDraft, run: LiveRun, number: int) -> None: ...


@frozen
class LiveSession:
    """All that is to be run: drafts by case and model, and the seed of their order.

    `known` are the cells that the baseline has as they are now. `is_by_runs`: with more than one
    run of a case on a side, so that the baseline is compared by their numbers.
    """

    drafts: tuple[CellDraft, ...]
    models: tuple[str | None, ...]
    settings: LiveSettings
    seed: int
    known: frozenset[CellKey] = frozenset()
    is_by_runs: bool = False

    @property
    def rounds(self) -> int:
        return max((draft.planned for draft in self.drafts), default=1)

    @property
    def width(self) -> int:
        if self.settings.width is not None:
            return self.settings.width
        plans = (draft.plan for draft in self.drafts if draft.plan is not None)
        local = any(model.entry.embedded for plan in plans for model in plan.models.values())
        return 1 if local else USUAL_WIDTH

    def is_compared(self, draft: CellDraft) -> bool:
        """True if a comparison decides about the case, and not its `pass`."""
        return self.settings.against is not None or (self.is_by_runs and draft.key in self.known)


def prepare_session(jobs: Sequence[CaseJob], settings: LiveSettings, seed: int = 0) -> LiveSession:
    """Plan each case on each model; nothing is contacted.

    Raises:
        UsageError: a file has no such model.
    """
    against = settings.against
    others = () if against in {None, ITSELF} else (against,)
    models = tuple(dict.fromkeys((*(one for one in others if one), *settings.models)))
    if others and len(models) == 1:
        message = f"`{against}` is compared with nothing"
        raise UsageError(message, where="--against", hint="`-m ALIAS` names another model")
    _check_models(jobs, models)
    columns = models or (AS_IN_THE_FILE,)
    drafts = tuple(_with_digests(_draft(job, model, settings)) for job in jobs for model in columns)
    baseline = settings.baseline
    if baseline is None:
        return LiveSession(drafts, columns, settings, seed)
    known = [draft for draft in drafts if _is_known(draft, baseline)]
    by_runs = any(d.planned > 1 or len(baseline.cells[d.key].runs) > 1 for d in known)
    keys = frozenset(draft.key for draft in known)
    return LiveSession(drafts, columns, settings, seed, keys, by_runs)


def _is_known(draft: CellDraft, baseline: Baseline) -> bool:
    """True if the baseline has runs of the case as it is now."""
    cell = baseline.cells.get(draft.key)
    if cell is None or not cell.runs:
        return False
    inputs, expected = cell.inputs_digest, cell.expected_digest
    return inputs in {"", draft.inputs_digest} and expected in {"", draft.expected_digest}


def _check_models(jobs: Sequence[CaseJob], models: Sequence[str]) -> None:
    for job in jobs:
        known = job.pipeline.models
        for model in models:
            if model not in known:
                named = backticked(known) or "none"
                hint = did_you_mean(model, known) or f"models: {named}"
                raise UsageError(f"no model `{model}` in {job.file}", hint=hint)


def _draft(job: CaseJob, model: str | None, settings: LiveSettings) -> CellDraft:
    """The cell with its plan: all that is wrong with files and variables comes before any cost."""
    repeat = job.case.repeat or CaseRepeat(1)
    planned = settings.repeat or repeat.runs
    if settings.against == ITSELF:
        planned *= 2
    draft = CellDraft(job, model, planned, repeat)
    judges = tuple(judges_of(job.case.expect))
    try:
        # The limit of one run is the file's own. Where only the whole has one, this is out
        # of reach. With it prices and the length of answers are known, which counting needs.
        own = job.pipeline.limits.cost_usd
        options = replace(
            settings.options,
            inputs=case_inputs(job),
            stdin=job.case.stdin,
            model=model,
            max_cost_usd=OUT_OF_REACH if own is None and settings.max_cost_usd is not None else own,
            environ=dict(os.environ),
        )
        recorded = settings.recorded_tools
        cassette = load_case_session(job, tools_only=True) if recorded else None
        plan = make_plan(job.pipeline, options, session=cassette, judges=judges)
    except AishError as error:
        return replace(draft, error=error)
    return replace(draft, options=options, plan=plan, cassette=cassette)


def identity_of(session: LiveSession) -> JsonObject:
    """The part of the results that is known before: which pipelines, models and cases."""
    drafts = session.drafts
    return {
        "pipelines": {draft.job.file: draft.job.pipeline.digest for draft in drafts},
        "models": [
            {"model": m, "endpoints": _endpoints([d for d in drafts if d.model == m])}
            for m in session.models
        ],
        "cases": [
            {
                "id": draft.job.id,
                "inputs_digest": draft.inputs_digest,
                "expected_digest": draft.expected_digest,
            }
            for draft in drafts
        ],
    }


class _Share(RunMeter):
    """A run's part of the common limit; remembers a refusal by that one, not its own."""

    def __init__(self, total: RunMeter) -> None:
        super().__init__(Budget(Limits()), {}, total)
        self.refused = False

    async def reserve_at(
        self, pricing: Pricing | None, place: Place, size: int, max_tokens: int | None
    ) -> RequestHold:
        try:
            return await super().reserve_at(pricing, place, size, max_tokens)
        except BudgetError:
            self.refused = True
            raise


@slotted
class _RunNotes:
    """A sink that keeps the end of the run, the last text before it, calls, and who answered."""

    name: str = "the table"
    deltas: bool = False
    finished: RunFinished | None = None
    answer: str | None = None
    calls: list[LiveCall] = field(default_factory=list)
    served: dict[str, None] = field(default_factory=dict)

    def __call__(self, stamped: Stamped) -> None:
        match stamped.event:
            case TurnFinished(served=served) if served is not None and served.model is not None:
                self.served[served.model] = None
            case ToolFinished() as call:
                self.calls.append(LiveCall(call.tool, call_status(call), call.seconds))
            case StepFinished(text=str(text)):
                self.answer = text
            case RunFinished() as finished:
                self.finished = finished
            case _:
                pass

    def close(self) -> None:
        """Nothing is held back."""


@slotted
class _ColumnComparison:
    """A comparison of a column while it is made; `other` is the column beside it, if it is one."""

    plan: ComparisonPlan
    model: str | None
    other: str | None = None
    decision: ComparisonDecision = UNDECIDED
    sides: Mapping[str, Sides] = field(default_factory=dict)


def run_live(
    session: LiveSession, tell: LiveListener, opening: Opening | None = None
) -> LiveResults:
    """Run each case on each model; the results are without the files that could not be loaded."""
    begun = monotonic()
    trial = _LiveTrial(session, tell, opening)
    anyio.run(trial.run)
    return replace(trial.results(), seconds=monotonic() - begun)


class _LiveTrial:
    def __init__(self, session: LiveSession, tell: LiveListener, opening: Opening | None) -> None:
        self._session = session
        self._opening = opening
        self._drafts = session.drafts
        self._settings = session.settings
        self._tell = tell
        self._signals = ShutdownRequests()
        self._runs: dict[CellKey, list[LiveRun]] = {draft.key: [] for draft in session.drafts}
        self._closed: set[CellKey] = set()
        against = session.settings.against
        other = None if against == ITSELF else against
        self._comparisons = tuple(
            _ColumnComparison(plan, model, other) for plan, model in comparison_plans(session)
        )
        self._total: RunMeter | None = None
        self._over: str | None = None
        self._first_failed = False
        # Shared by all runs: the user need not know which run asks.
        self._turns = Turns() if self._settings.ask else None

    async def run(self) -> None:
        """Run all of them, with limited concurrency."""
        if self._settings.max_cost_usd is not None:
            self._total = RunMeter(Budget(Limits(cost_usd=self._settings.max_cost_usd)), {})
        limiter = anyio.CapacityLimiter(self._session.width)
        with interruptible(self._signals.arrive), borrow_signals(self._signals.lend):
            async with anyio.create_task_group() as watch:
                if self._settings.timeout is not None:
                    watch.start_soon(self._end_in, self._settings.timeout)
                for number in range(1, self._session.rounds + 1):
                    due = self._due(number)
                    async with anyio.create_task_group() as cells:
                        for draft in due:
                            cells.start_soon(self._one, draft, number, limiter)
                    if self._is_over:
                        break
                    self._close(number)
                watch.cancel_scope.cancel()

    @property
    def _is_over(self) -> bool:
        return self._signals.code is not None or self._over is not None or self._first_failed

    def _due(self, number: int) -> Sequence[CellDraft]:
        """The cells of a round, shuffled if there are several."""
        due = [
            draft
            for draft in self._drafts
            if number <= draft.planned and draft.key not in self._closed
        ]
        if self._session.rounds > 1:
            Random(f"{self._session.seed} {number}").shuffle(due)  # ruff: ignore[suspicious-non-cryptographic-random-usage] - an order that can be had again
        return due

    async def _end_in(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        self._over = f"the time limit of {seconds:g} s for all cases is exceeded"
        self._signals.arrive(ExitCode.TERMINATED)

    async def _one(self, draft: CellDraft, number: int, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            if self._is_over:
                return
            run = await self._run(draft)
        runs = self._runs[draft.key]
        runs.append(run)
        if self._settings.stop_first and not self._session.is_compared(draft):
            broken = run.verdict not in {"passed", "failed", "not_run"}
            broken &= run.verdict != "left" or draft.planned == 1
            self._first_failed |= broken or self._is_lost(draft)
        self._tell.ended(draft, run, number)

    def _close(self, number: int) -> None:
        """Leave out, from the next round on, what would not change a verdict."""
        for one in self._comparisons:
            one.sides = self._sides(one)
            one.decision = judge(one.plan, one.sides, number, one.decision)
        for draft in self._drafts:
            runs = self._runs[draft.key]
            unasked = sum(run.verdict in {"unreachable", "left"} for run in runs)
            broken = any(run.verdict == "error" for run in runs)
            if broken or 2 * unasked > draft.planned or self._is_certain(draft):
                self._closed.add(draft.key)

    def _is_certain(self, draft: CellDraft) -> bool:
        """True if the rest of the runs of a case changes nothing."""
        if not self._settings.stops:
            return False
        if self._session.is_compared(draft):
            id, model = draft.key
            of_it = [one for one in self._comparisons if model in {one.model, one.other}]
            decisions = [one.decision for one in of_it if id in one.sides]
            return bool(decisions) and all(
                one.outcome != "undecided" and (one.open is not None and id not in one.open)
                for one in decisions
            )
        if not draft.has_share:
            return False
        passed = sum(run.verdict == "passed" for run in self._runs[draft.key])
        return passed >= draft.repeat.needed(draft.planned) or self._is_lost(draft)

    def _is_lost(self, draft: CellDraft) -> bool:
        failed = sum(run.verdict == "failed" for run in self._runs[draft.key])
        return failed > draft.planned - draft.repeat.needed(draft.planned)

    def _sides(self, comparison: _ColumnComparison) -> Mapping[str, Sides]:
        """The cases of a comparison that ran on both sides, by their ids."""
        sides: dict[str, Sides] = {}
        baseline = self._settings.baseline
        for draft in self._drafts:
            if draft.model != comparison.model or not self._session.is_compared(draft):
                continue
            runs, planned = self._runs[draft.key], draft.planned
            id, fixed = draft.job.id, draft.is_fixed
            if comparison.plan.against == ITSELF:
                before: tuple[Counts, ...] = (count_live(runs[::2], fixed=fixed),)
                runs, planned = runs[1::2], planned // 2
            elif baseline is not None:
                before = baseline.cells[draft.key].counts
            else:
                before = (count_live(self._runs[id, comparison.other], fixed=fixed),)
            now = count_live(runs, fixed=fixed)
            if now.runs and any(one.runs for one in before):
                sides[id] = Sides(before, now, planned)
        return sides

    async def _run(self, draft: CellDraft) -> LiveRun:
        begun = monotonic()
        if draft.plan is None:
            assert draft.error is not None
            return _error_run(draft.error)
        try:
            run = await self._execute(draft, draft.plan)
        except AishError as error:
            run = _error_run(error)
        except Exception as error:  # ruff: ignore[blind-except] - a bug met in one case must not hide how the others end
            message = f"this is a bug in aish: {type(error).__name__}: {error}"
            run = LiveRun("error", int(ExitCode.INTERNAL), message, reasons=(message,))
        return replace(run, seconds=monotonic() - begun)

    async def _execute(self, draft: CellDraft, plan: Plan) -> LiveRun:
        mask, clock, notes = plan.secrets.mask, SystemClock(), _RunNotes()
        launch = Launch(
            plan,
            draft.options,
            new_folder(plan, draft.options, clock),
            clock,
            approver=self._approver(plan),
            cassette=draft.cassette,
            staging="unkept",
            opening=self._opening,
        )
        share = None if self._total is None else _Share(self._total)
        examiner = Examiner(draft.job.case.expect, draft.job.case.names, update_snapshots=False)
        ending = ShutdownRequests()
        with (
            open_run(launch) as run,
            self._signals.lend(ending.arrive),
            borrow_signals(ending.lend),
        ):

            def lose(sink: Sink, error: OSError) -> None:
                """End a run that leaves no record of what it costs."""
                run.lose(sink, error)
                ending.arrive(ExitCode.TERMINATED)

            run.begin([notes], on_failure=lose)
            end = await run.execute(examiner, None, share)
        for reason in run.lost:
            raise AishError(reason)
        refused = share is not None and share.refused and end.code == ExitCode.BUDGET
        if refused and self._over is None:
            assert self._settings.max_cost_usd is not None
            self._over = _ALL_OVER.format(dollars(self._settings.max_cost_usd))
        outcome = self._outcome(end, examiner, mask, refused=refused)
        last = notes.finished
        if last is None:
            return outcome
        return replace(
            outcome,
            cost_usd=last.cost_usd,
            usage=last.usage,
            folder=last.folder,
            answer=notes.answer,
            served=tuple(notes.served),
            calls=tuple(notes.calls),
        )

    def _approver(self, plan: Plan) -> Approver:
        if self._turns is None:
            return Unattended()
        return TerminalApprover(secrets=plan.secrets, turns=self._turns)

    def _outcome(
        self, end: Exit, examiner: Examiner, mask: Callable[[str], str], *, refused: bool
    ) -> LiveRun:
        code, reason = ExitCode(end.code), mask(end.reason)
        verdict = live_verdict(code, ok=all(check.ok for check in examiner.checked))
        if refused or verdict == "not_run":
            verdict, code, reason = "not_run", self._left_code, self._over or "interrupted"
        outcome = CaseOutcome(
            verdict if verdict in {"passed", "failed"} else "error",
            code=code,
            reason=reason,
            hint=mask(end.hint) if end.hint and verdict != "left" else None,
            checked=tuple(replace(one, message=mask(one.message)) for one in examiner.checked),
        )
        return LiveRun(
            verdict,
            int(code),
            reason,
            outcome.hint,
            tuple(explanation(outcome, verbose=True)),
            expectations=tuple(_as_object(plain(check)) for check in outcome.checked),
        )

    @property
    def _left_code(self) -> ExitCode:
        """The exit code of the whole if a case has not been run to its end."""
        if self._over is not None:
            return ExitCode.BUDGET
        return self._signals.code or ExitCode.OK

    def results(self) -> LiveResults:
        """All results so far."""
        cases: dict[str, list[CellDraft]] = {}
        for draft in self._drafts:
            cases.setdefault(draft.job.id, []).append(draft)
        for one in self._comparisons:
            one.sides = self._sides(one)
        rows = tuple(
            _live_case(drafts, tuple(map(self._cell, drafts))) for drafts in cases.values()
        )
        models = self._session.models
        columns = tuple(
            self._column(model, [case.cells[number] for case in rows])
            for number, model in enumerate(models)
        )
        stopped = None if self._over is not None else self._signals.code
        baseline = self._settings.baseline
        results = LiveResults(
            columns,
            rows,
            interrupted=stopped is not None,
            limit=self._over or "",
            repeat=self._session.rounds,
            seed=self._session.seed if self._session.rounds > 1 else None,
            recorded_tools=self._settings.recorded_tools,
            baseline=None if baseline is None else str(baseline.file),
            gone=tuple(self._missing_cells()),
            pipelines={d.job.file: d.job.pipeline.digest for d in self._drafts},
        )
        codes = {code for cell in results.cells for code in _codes(cell)}
        codes |= {stopped} if stopped is not None else set()
        codes |= {ExitCode.BUDGET} if self._over is not None else set()
        codes |= {
            ExitCode.FAILED
            for one in columns
            if one.comparison is not None and one.comparison.fails
        }
        return replace(results, exit=int(next((c for c in PRECEDENCE if c in codes), ExitCode.OK)))

    def _cell(self, draft: CellDraft) -> LiveCell:
        runs = tuple(self._runs[draft.key]) or (self._run_left_out(),)
        tried = sum(run.verdict in TRIED for run in runs)
        stopped = draft.key in self._closed and len(runs) < draft.planned
        needed = draft.repeat.needed(tried)
        cell = LiveCell(draft.model, "passed", runs, draft.planned, needed, stopped=stopped)
        verdict = self._verdict(cell, tried)
        if self._first_failed and verdict == "unmeasured" and self._is_lost(draft):
            verdict = "failed"
        cell = replace(cell, verdict=verdict, fixed=draft.is_fixed)
        if tried > 1 and not stopped:
            cell = replace(cell, interval=wilson(cell.passed / tried, tried))
        return self._compare(cell, draft)

    @staticmethod
    def _verdict(cell: LiveCell, tried: int) -> CellVerdict:
        if any(run.verdict == "error" for run in cell.runs):
            return "error"
        verdict = cell.runs[-1].verdict
        if not cell.is_repeated and verdict != "left":
            return verdict
        # The runs that an early end saved would have been possible.
        saved = cell.planned - len(cell.runs) if cell.stopped else 0
        if not tried or 2 * (tried + saved) < cell.planned:
            return "unmeasured"
        return "passed" if cell.passed >= cell.needed else "failed"

    def _compare(self, cell: LiveCell, draft: CellDraft) -> LiveCell:
        """The cell with what has changed, and whether it makes the command fail."""
        session, baseline = self._session, self._settings.baseline
        failed = cell.verdict == "failed"
        if session.is_compared(draft):
            one = next((one for one in self._comparisons if one.model == draft.model), None)
            if one is None or cell.verdict not in TRIED:
                return cell
            side = one.sides.get(draft.job.id)
            before = None if side is None or one.plan.against == ITSELF else side.pair[0]
            falls = draft.job.id in one.decision.falls
            return replace(
                cell,
                change="worse" if falls else "same",
                before=None if before is None else (before.passed, before.runs),
                is_compared=True,
            )
        if baseline is None or cell.verdict not in TRIED:
            return replace(cell, fails=failed)
        runs = baseline.cells[draft.key].runs if draft.key in session.known else ()
        change = change_of_verdict(cell.verdict, runs)
        return replace(cell, change=change, fails=failed and change != "same")

    def _column(self, model: str | None, cells: Sequence[LiveCell]) -> LiveColumn:
        measured = [cell for cell in cells if cell.verdict in TRIED and cell.tried]
        drafts = [draft for draft in self._drafts if draft.model == model]
        baseline = self._settings.baseline
        cost = None if baseline is None else baseline.costs.get(model)
        before = () if baseline is None else baseline.names_before(model)
        column = LiveColumn(
            model, endpoints=_endpoints(drafts), cost_before=cost, served_before=before
        )
        one = next((one for one in self._comparisons if one.model == model), None)
        if one is not None:
            column = replace(column, comparison=conclude(one.plan, one.sides, one.decision))
        if not measured:
            return column
        counts = [count_live(cell.runs, fixed=False) for cell in measured]
        rate, interval = mean_rate(counts)
        least = min(one.runs for one in counts)
        ks = [k for k in sorted({1, self._session.rounds}) if k <= least]
        return replace(
            column,
            rate=rate,
            interval=None if any(cell.stopped for cell in measured) else interval,
            pass_power=tuple((k, pass_power(counts, k)) for k in ks),
            variances=variance_parts(counts) if len(counts) > 1 and least > 1 else None,
            median_seconds=median(run.seconds for cell in measured for run in cell.tried),
            served=tuple(dict.fromkeys(m for cell in cells for r in cell.runs for m in r.served)),
        )

    def _missing_cells(self) -> Iterator[CellKey]:
        """The cells of the baseline, on the models of now, that are not there any more."""
        baseline, models = self._settings.baseline, self._session.models
        for key in () if baseline is None else baseline.cells:
            if key not in self._runs and key[1] in models:
                yield key

    def _run_left_out(self) -> LiveRun:
        reason = self._over or ("interrupted" if self._signals.code is not None else "")
        return LiveRun("not_run", int(self._left_code), reason, reasons=(reason,) if reason else ())


def comparison_plans(session: LiveSession) -> Iterator[tuple[ComparisonPlan, str | None]]:
    """The comparisons of a session, each with the model of its column."""
    settings, baseline = session.settings, session.settings.baseline
    against = settings.against
    if baseline is not None and session.is_by_runs:
        models = [m for m in session.models if any(model == m for _, model in session.known)]
        for model in models:
            drafts = [d for d in session.drafts if d.key in session.known and d.model == model]
            spread = spread_of([baseline.cells[draft.key].counts for draft in drafts])
            rounds, alpha = max(draft.planned for draft in drafts), ALPHA / len(models)
            name = str(baseline.file)
            yield ComparisonPlan(name, rounds, alpha, settings.stops, spread), model
    elif against is not None:
        models = [model for model in session.models if model != against]
        plan = ComparisonPlan(against, session.rounds, ALPHA / len(models), settings.stops)
        yield from ((plan, model) for model in models)


def _codes(cell: LiveCell) -> Iterator[ExitCode]:
    """The exit codes that a cell calls for."""
    if cell.fails:
        yield ExitCode.FAILED
    if cell.verdict not in {"passed", "failed"}:
        yield from (ExitCode(r.code) for r in cell.runs if r.verdict not in {"passed", "failed"})


def _live_case(drafts: Sequence[CellDraft], cells: tuple[LiveCell, ...]) -> LiveCase:
    draft = next((one for one in drafts if one.plan is not None), drafts[0])
    job, plan = draft.job, draft.plan
    whole = next((one for one in job.case.expect if one.kind == "equals" and not one.path), None)
    text = None if whole is None else _expected_value(draft, job.case.expect.index(whole))
    return LiveCase(
        job.id,
        job.file,
        job.case.name,
        cells,
        inputs={}
        if plan is None
        else _as_object(plan.secrets.mask_json(dict(draft.options.inputs))),
        stdin=job.case.stdin
        if plan is None or not job.case.stdin
        else plan.secrets.mask(job.case.stdin),
        expected=tuple(_expected_line(draft, number) for number in range(len(job.case.expect))),
        expected_text=text if isinstance(text, str) else None,
        inputs_digest=draft.inputs_digest,
        expected_digest=draft.expected_digest,
    )


def _expected_line(draft: CellDraft, number: int) -> str:
    value = _expected_value(draft, number)
    text = value if isinstance(value, str) else json_text(value)
    return f"{draft.job.case.expect[number].kind}: {text}"


def _expected_value(draft: CellDraft, number: int) -> JsonValue:
    """The value that an expectation asks for, rendered as far as the row of the case tells it."""
    expectation = draft.job.case.expect[number]
    try:
        value = render_expectation(expectation, dict(draft.job.case.names)).value
    except (TemplateError, UnusableError):
        value = expectation.value
    if value is None:
        written = _expected_data(draft.job)
        entry = written[number] if number < len(written) else None
        value = entry.get(expectation.kind) if isinstance(entry, Mapping) else None
    return value if draft.plan is None else draft.plan.secrets.mask_json(value)


def _as_object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _endpoints(drafts: Sequence[CellDraft]) -> JsonObject:
    """The name and the parameters of each model that steps ask, by alias."""
    endpoints: dict[str, JsonValue] = {}
    for plan in (draft.plan for draft in drafts if draft.plan is not None):
        for alias, model in plan.models.items():
            entry = model.entry
            name = entry.model or entry.embedded
            endpoints[alias] = {"model": name, "params": dict(entry.params)}
    return endpoints


def live_verdict(code: ExitCode, *, ok: bool) -> RunVerdict:
    """The verdict on a run from its end and the expectations of its case."""
    match code:
        case ExitCode.OK:
            return "passed" if ok else "failed"
        case ExitCode.FAILED | ExitCode.DENIED | ExitCode.BUDGET | ExitCode.PAUSED:
            return "failed"
        case ExitCode.UNAVAILABLE:
            return "unreachable"
        case ExitCode.CASSETTE:
            return "left"
        case ExitCode.INTERRUPTED | ExitCode.TERMINATED:
            return "not_run"
        case _:
            return "error"


def _error_run(error: AishError) -> LiveRun:
    code = error.exit_code
    verdict: RunVerdict = "unreachable" if code is ExitCode.UNAVAILABLE else "error"
    outcome = CaseOutcome("error", code=code, reason=str(error), hint=error.hint)
    return LiveRun(verdict, int(code), str(error), error.hint, tuple(explanation(outcome)))
