"""`aish test --live`: cases on the real models, each case on each model.

All runs share one event loop: so one limit on cost holds over all of them, and a signal ends them
together. Cases that have not begun by then are left out, and the rest is reported.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from time import monotonic
from typing import Literal, Protocol

import anyio

from aish.config.model import Limits
from aish.core.errors import AishError, BudgetError, ExitCode, UsageError, did_you_mean
from aish.core.events import Exit, Place, RunFinished, Stamped, StepFinished
from aish.core.frozen import frozen, slotted
from aish.core.messages import Usage, sum_costs
from aish.core.phrases import backticked, dollars
from aish.core.protocols import Approver
from aish.engine.cancellation import ShutdownRequests, borrow_signals, interruptible
from aish.engine.environment import Opening
from aish.engine.limits import Budget, RequestHold, RunMeter
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import judges_of
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.run_folder import new_folder
from aish.features.launch import Launch, open_run
from aish.features.testing.case import Examiner, case_inputs
from aish.features.testing.outcome import CaseJob, CaseOutcome
from aish.models.pricing import Pricing
from aish.output.event_log import Sink
from aish.system.clock import SystemClock
from aish.terminal.approver import TerminalApprover
from aish.terminal.tty import Turns
from aish.terminal.unattended import Unattended

CellVerdict = Literal["passed", "failed", "error", "unreachable", "not_run"]
"""`unreachable`: a model or server could not be asked, which says nothing of the case; `not_run`:
the limit of all of them was reached, or it was interrupted before the case had ended."""

AS_IN_THE_FILE = None
"""The model of a column where none was named: each step has its own."""

USUAL_WIDTH = 4
"""Cases at a time; one where a model runs on this machine."""

_OUT_OF_REACH = 1_000_000.0
_ALL_OVER = "the limit of {} for all cases together is reached"


@frozen
class LiveSettings:
    """The options of the command line; `max_cost_usd` and `timeout` hold for all cases together.

    `options` has what holds for each run: rules, the lock, whether broad roots are allowed. `ask`
    asks the person at the terminal about calls that no rule decides, one question at a time.
    """

    models: tuple[str, ...] = ()
    options: RunOptions = RunOptions()
    width: int | None = None
    max_cost_usd: float | None = None
    timeout: float | None = None
    stop_first: bool = False
    ask: bool = False


@frozen
class Cell:
    """A case on a model: its outcome, and its usage.

    `cost_usd` of `None` is unknown. `folder` is that of the run, `None` where there was none.
    `answer` is the text of the last step that ended.
    """

    job: CaseJob
    model: str | None
    verdict: CellVerdict
    outcome: CaseOutcome
    cost_usd: float | None = 0.0
    usage: Usage = field(default_factory=Usage)
    folder: str | None = None
    answer: str | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        return self.job.id, self.model


@frozen
class Matrix:
    """All cases on all models, in the order of the files; `stopped` is the code of a signal."""

    cells: tuple[Cell, ...]
    models: tuple[str | None, ...]
    seconds: float = 0.0
    deselected: int = 0
    stopped: ExitCode | None = None

    @property
    def cost_usd(self) -> float | None:
        return cost_of(self.cells)


class LiveListener(Protocol):
    def ended(self, cell: Cell) -> None: ...


def cost_of(cells: Sequence[Cell]) -> float | None:
    """The total cost; `None` as soon as one part is unknown."""
    return sum_costs(cell.cost_usd for cell in cells)


def run_live(
    jobs: Sequence[CaseJob],
    settings: LiveSettings,
    tell: LiveListener,
    opening: Opening | None = None,
) -> Matrix:
    """Run each case on each model.

    Raises:
        UsageError: a file has no such model; nothing was contacted.
    """
    _check_models(jobs, settings.models)
    begun = monotonic()
    models = settings.models or (AS_IN_THE_FILE,)
    drafts = tuple(_draft(job, model, settings) for job in jobs for model in models)
    trial = _LiveTrial(drafts, settings, tell, opening)
    anyio.run(trial.run)
    return Matrix(trial.cells, models, monotonic() - begun, stopped=trial.stopped)


def live_exit(matrix: Matrix) -> tuple[ExitCode, ...]:
    """The exit codes that the end calls for, failures of cases aside."""
    codes = {cell.outcome.code for cell in matrix.cells if cell.verdict not in {"passed", "failed"}}
    if matrix.stopped is not None:
        codes.add(matrix.stopped)
    return tuple(codes)


@frozen
class _CellDraft:
    """A cell before it is run: its plan, or why there is none."""

    job: CaseJob
    model: str | None
    options: RunOptions = RunOptions()
    plan: Plan | None = None
    error: AishError | None = None


def _check_models(jobs: Sequence[CaseJob], models: Sequence[str]) -> None:
    for job in jobs:
        known = job.pipeline.models
        for model in models:
            if model not in known:
                named = backticked(known) or "none"
                hint = did_you_mean(model, known) or f"models: {named}"
                raise UsageError(f"no model `{model}` in {job.file}", hint=hint)


def _draft(job: CaseJob, model: str | None, settings: LiveSettings) -> _CellDraft:
    """The cell with its plan: all that is wrong with files and variables comes before any cost."""
    try:
        # The limit of one run is the file's own. Where only the whole has one, this is out
        # of reach. With it prices and the length of answers are known, which counting needs.
        own = job.pipeline.limits.cost_usd
        options = replace(
            settings.options,
            inputs=case_inputs(job),
            stdin=job.case.stdin,
            model=model,
            max_cost_usd=_OUT_OF_REACH
            if own is None and settings.max_cost_usd is not None
            else own,
            environ=dict(os.environ),
        )
        plan = make_plan(job.pipeline, options, judges=tuple(judges_of(job.case.expect)))
    except AishError as error:
        return _CellDraft(job, model, error=error)
    return _CellDraft(job, model, options, plan)


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
class _LastAnswer:
    """A sink that keeps the end of the run, and the last text before it."""

    name: str = "the table"
    deltas: bool = False
    finished: RunFinished | None = None
    answer: str | None = None

    def __call__(self, stamped: Stamped) -> None:
        match stamped.event:
            case StepFinished(text=str(text)):
                self.answer = text
            case RunFinished() as finished:
                self.finished = finished
            case _:
                pass

    def close(self) -> None:
        """Nothing is held back."""


class _LiveTrial:
    def __init__(
        self,
        drafts: Sequence[_CellDraft],
        settings: LiveSettings,
        tell: LiveListener,
        opening: Opening | None,
    ) -> None:
        self._opening = opening
        self._drafts = drafts
        self._settings = settings
        self._tell = tell
        self._signals = ShutdownRequests()
        self._ended: dict[int, Cell] = {}
        self._total: RunMeter | None = None
        self._over: str | None = None
        self._first_failed = False
        # Shared by all runs: the user need not know which run asks.
        self._turns = Turns() if settings.ask else None

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(
            self._ended.get(number) or self._cell_not_run(draft)
            for number, draft in enumerate(self._drafts)
        )

    @property
    def stopped(self) -> ExitCode | None:
        return None if self._over is not None else self._signals.code

    async def run(self) -> None:
        """Run all of them, with limited concurrency."""
        if self._settings.max_cost_usd is not None:
            self._total = RunMeter(Budget(Limits(cost_usd=self._settings.max_cost_usd)), {})
        limiter = anyio.CapacityLimiter(self._width())
        with interruptible(self._signals.arrive), borrow_signals(self._signals.lend):
            async with anyio.create_task_group() as watch:
                if self._settings.timeout is not None:
                    watch.start_soon(self._end_in, self._settings.timeout)
                async with anyio.create_task_group() as cells:
                    for number, draft in enumerate(self._drafts):
                        cells.start_soon(self._one, number, draft, limiter)
                watch.cancel_scope.cancel()

    def _width(self) -> int:
        if self._settings.width is not None:
            return self._settings.width
        plans = (draft.plan for draft in self._drafts if draft.plan is not None)
        local = any(model.entry.embedded for plan in plans for model in plan.models.values())
        return 1 if local else USUAL_WIDTH

    async def _end_in(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        self._over = f"the time limit of {seconds:g} s for all cases is exceeded"
        self._signals.arrive(ExitCode.TERMINATED)

    async def _one(self, number: int, draft: _CellDraft, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            if self._signals.code is not None or self._over is not None or self._first_failed:
                return
            cell = await self._cell(draft)
        self._ended[number] = cell
        self._first_failed |= self._settings.stop_first and cell.verdict not in {
            "passed",
            "not_run",
        }
        self._tell.ended(cell)

    async def _cell(self, draft: _CellDraft) -> Cell:
        begun = monotonic()
        if draft.plan is None:
            assert draft.error is not None
            return _error_cell(draft, draft.error)
        try:
            cell = await self._execute(draft, draft.plan)
        except AishError as error:
            cell = _error_cell(draft, error)
        except Exception as error:  # ruff: ignore[blind-except] - a bug met in one case must not hide how the others end
            message = f"this is a bug in aish: {type(error).__name__}: {error}"
            cell = Cell(
                draft.job, draft.model, "error", CaseOutcome("error", code=ExitCode.INTERNAL)
            )
            cell = replace(cell, outcome=replace(cell.outcome, reason=message))
        return replace(cell, outcome=replace(cell.outcome, seconds=monotonic() - begun))

    async def _execute(self, draft: _CellDraft, plan: Plan) -> Cell:
        mask, clock, heard = plan.secrets.mask, SystemClock(), _LastAnswer()
        launch = Launch(
            plan,
            draft.options,
            new_folder(plan, draft.options, clock),
            clock,
            approver=self._approver(plan),
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

            run.begin([heard], on_failure=lose)
            end = await run.execute(examiner, None, share)
        for reason in run.lost:
            raise AishError(reason)
        refused = share is not None and share.refused and end.code == ExitCode.BUDGET
        if refused and self._over is None:
            assert self._settings.max_cost_usd is not None
            self._over = _ALL_OVER.format(dollars(self._settings.max_cost_usd))
        outcome = self._outcome(end, examiner, mask, refused=refused)
        cell = Cell(draft.job, draft.model, *outcome)
        last = heard.finished
        if last is None:
            return cell
        cell = replace(cell, cost_usd=last.cost_usd, usage=last.usage, folder=last.folder)
        return replace(cell, answer=heard.answer)

    def _approver(self, plan: Plan) -> Approver:
        if self._turns is None:
            return Unattended()
        return TerminalApprover(secrets=plan.secrets, turns=self._turns)

    def _outcome(
        self, end: Exit, examiner: Examiner, mask: Callable[[str], str], *, refused: bool
    ) -> tuple[CellVerdict, CaseOutcome]:
        code, reason = ExitCode(end.code), mask(end.reason)
        verdict = live_verdict(code, ok=all(check.ok for check in examiner.checked))
        if refused or verdict == "not_run":
            verdict, code, reason = "not_run", self._left_code, self._over or "interrupted"
        outcome = CaseOutcome(
            verdict if verdict in {"passed", "failed"} else "error",
            code=code,
            reason=reason,
            hint=end.hint and mask(end.hint),
            checked=tuple(replace(one, message=mask(one.message)) for one in examiner.checked),
        )
        return verdict, outcome

    @property
    def _left_code(self) -> ExitCode:
        """The exit code of the whole if a case has not been run to its end."""
        if self._over is not None:
            return ExitCode.BUDGET
        return self._signals.code or ExitCode.OK

    def _cell_not_run(self, draft: _CellDraft) -> Cell:
        reason = self._over or ("interrupted" if self._signals.code is not None else "")
        outcome = CaseOutcome("error", code=self._left_code, reason=reason)
        return Cell(draft.job, draft.model, "not_run", outcome, folder=None)


def live_verdict(code: ExitCode, *, ok: bool) -> CellVerdict:
    """The verdict on a case from the end of a live run and its expectations."""
    match code:
        case ExitCode.OK:
            return "passed" if ok else "failed"
        case ExitCode.FAILED | ExitCode.DENIED | ExitCode.BUDGET | ExitCode.PAUSED:
            return "failed"
        case ExitCode.UNAVAILABLE:
            return "unreachable"
        case ExitCode.INTERRUPTED | ExitCode.TERMINATED:
            return "not_run"
        case _:
            return "error"


def _error_cell(draft: _CellDraft, error: AishError) -> Cell:
    code = error.exit_code
    outcome = CaseOutcome("error", code=code, reason=str(error), hint=error.hint)
    verdict: CellVerdict = "unreachable" if code is ExitCode.UNAVAILABLE else "error"
    return Cell(draft.job, draft.model, verdict, outcome)
