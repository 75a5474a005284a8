"""`aish test`: loads files, selects cases, runs them in forked processes, finds leftovers."""

import signal
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import NoReturn, Protocol, Self

from aish.cassettes.format.file import show_path
from aish.core.errors import ExitCode, UsageError
from aish.core.frozen import frozen, slotted
from aish.core.phrases import counted
from aish.engine.plan.case_rows import with_rows
from aish.engine.plan.validation.validate import check_file, no_step, row_check
from aish.features.testing.case import run_case
from aish.features.testing.discovery import FileSearch, may_have_tests, orphans
from aish.features.testing.outcome import AllOutcomes, CaseJob, CaseOutcome, TestedFile, Tried
from aish.system.platform.processes import end_with_parent

Run = Callable[[int], CaseOutcome]
"""Runs the case of a number."""

_PATIENCE = 5.0
_TURN = 0.5
"""Seconds of a wait for workers."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@slotted
class _CaseWorker:
    process: ForkProcess
    pipe: "Connection[int | None, CaseOutcome]"
    busy: int | None = None


class Workers:
    """A pool; leaving it ends every process, and the runs in them."""

    def __init__(self, count: int, run: Run) -> None:
        self._run = run
        self._context = get_context("fork")
        self._workers: list[_CaseWorker] = []
        for _ in range(count):
            self._workers.append(self._fork())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if worker.busy is not None:
                # A run in progress ends in order, including its child processes.
                worker.process.terminate()
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def outcomes(self, jobs: Sequence[int]) -> Iterator[tuple[int, CaseOutcome]]:
        """The outcome of each case, in order of completion."""
        waiting = list(reversed(jobs))
        for worker in self._workers:
            self._assign(worker, waiting)
        while busy := [worker for worker in self._workers if worker.busy is not None]:
            # A signal just before the system call does not end it, and its handler would wait too.
            ready = connection.wait([worker.pipe for worker in busy], _TURN)
            for worker in busy:
                if worker.pipe in ready:
                    number, outcome = self._receive_outcome(worker)
                    self._assign(worker, waiting)
                    yield number, outcome

    def _receive_outcome(self, worker: _CaseWorker) -> tuple[int, CaseOutcome]:
        number = worker.busy
        assert number is not None
        worker.busy = None
        try:
            return number, worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(_PATIENCE)
            code = worker.process.exitcode
            how = f"with exit code {code}"
            if code is None:
                how = "without a word"
            elif code < 0:
                how = f"by {signal.Signals(-code).name}"
            reason = f"the process that ran the case ended {how}"
            outcome = CaseOutcome("error", code=ExitCode.FAILED, reason=reason)
        fresh = self._fork()
        worker.pipe.close()
        worker.process, worker.pipe = fresh.process, fresh.pipe
        return number, outcome

    @staticmethod
    def _assign(worker: _CaseWorker, waiting: list[int]) -> None:
        if not waiting:
            return
        worker.busy = waiting.pop()
        # A worker that has died meanwhile is detected when its answer is read.
        with suppress(OSError):
            worker.pipe.send(worker.busy)

    def _fork(self) -> _CaseWorker:
        ours, theirs = self._context.Pipe()
        others = [ours, *(worker.pipe for worker in self._workers)]
        arguments = (theirs, self._run, others)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        # Not before the child knows what to do with them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        return _CaseWorker(process, ours)


def _work(
    pipe: "Connection[CaseOutcome, int]",
    run: Run,
    others: Sequence["Connection[int | None, CaseOutcome]"],
) -> None:
    """Serve jobs until the pipe is closed, which also happens when the parent is killed."""
    # A fork has the parent's ends too, and a pipe is closed when nobody holds its other end.
    for other in others:
        other.close()
    # Have the process signalled if its parent is killed, so that no waiting case survives it
    end_with_parent()
    # Ctrl-C goes to every process of the terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(run(pipe.recv()))


_ENDS = (signal.SIGTERM, signal.SIGHUP)
_STOPS = frozenset({ExitCode.INTERRUPTED, ExitCode.TERMINATED})


class StoppedError(BaseException):
    """SIGTERM or SIGHUP arrived; like `KeyboardInterrupt`, it is not handled on the way."""


class CassetteRenewal(StrEnum):
    """Which cassettes are recorded first: with the missing ones those that do not match, or all."""

    MISSING = "missing"
    CHANGED = "changed"
    ALL = "all"


@frozen
class SessionSettings:
    """The options of the command line."""

    keyword: str = ""
    processes: int = 1
    stop_first: bool = False
    record: CassetteRenewal | None = None
    update_snapshots: bool = False
    allow_orphans: bool = False


class SessionListener(Protocol):
    def recording(self, cassette: str) -> None:
        """A cassette is about to be recorded."""

    def ended(self, tried: Tried) -> None: ...


def run_session(
    search: FileSearch, settings: SessionSettings, tell: SessionListener
) -> AllOutcomes:
    begun = monotonic()
    cases = find_cases(search, settings.keyword)
    files, broken, jobs, chosen = cases.files, cases.broken, cases.jobs, cases.chosen
    trial = _CaseTrial(settings, tell, chosen)
    for file in broken:
        trial.end(Tried(file.name, "", _outcome_of_broken_file(file)))
    stopped = trial.run()
    whole = search.whole and not broken
    ended = stopped is None and not trial.left_out
    left = tuple(map(show_path, orphans(_cassettes_of(files)))) if whole and ended else ()
    return AllOutcomes(
        tried=trial.results(files),
        seconds=monotonic() - begun,
        deselected=len(jobs) - len(chosen),
        left_out=trial.left_out,
        untested=tuple(file.name for file in files if file not in broken and not _tests(file)),
        recorded=trial.recorded,
        orphans=left,
        orphans_fail=len(chosen) == len(jobs) and not settings.allow_orphans,
        stopped=stopped,
    )


@frozen
class FoundCases:
    """The files of a search, the broken ones, all their cases, and the selected ones."""

    files: tuple[TestedFile, ...]
    broken: tuple[TestedFile, ...]
    jobs: tuple[CaseJob, ...]
    chosen: tuple[CaseJob, ...]


def find_cases(search: FileSearch, keyword: str) -> FoundCases:
    """Load the files and select the cases whose names contain `keyword`."""
    files = tuple(load_file(path) for path in search.files)
    broken = tuple(file for file in files if file.problems and _counts(file, search))
    jobs = tuple(_jobs(files))
    text = keyword.casefold()
    chosen = tuple(job for job in jobs if text in job.id.casefold())
    if not broken:
        # Fail if nothing was tested, so that it does not look like a success
        if not jobs:
            message = f"no tests in {counted(len(search.files), 'pipeline file')}"
            raise UsageError(message, hint="cases are under `tests:` in a pipeline file")
        if not chosen:
            raise UsageError(f"none of {len(jobs)} cases is selected", where="-k")
    return FoundCases(files, broken, jobs, chosen)


class _CaseTrial:
    def __init__(
        self, settings: SessionSettings, tell: SessionListener, jobs: Sequence[CaseJob]
    ) -> None:
        self.recorded: tuple[str, ...] = ()
        self._settings = settings
        self._tell = tell
        self._jobs = jobs
        self._ended: dict[str, Tried] = {}
        self._over = False

    @property
    def left_out(self) -> int:
        return sum(job.id not in self._ended for job in self._jobs)

    def results(self, files: Iterable[TestedFile]) -> tuple[Tried, ...]:
        ids = (id for file in files for id in (file.name, *(job.id for job in _jobs([file]))))
        return tuple(self._ended[id] for id in ids if id in self._ended)

    def end(self, tried: Tried) -> None:
        self._ended[tried.id] = tried
        self._over = self._over or (self._settings.stop_first and tried.outcome.verdict != "passed")
        self._tell.ended(tried)

    def run(self) -> ExitCode | None:
        """Run all of them; the code of the signal that stopped it early, if any."""
        try:
            with _handle_signals(), ExitStack() as stack:
                for job, outcome in self._outcomes(stack):
                    if outcome.code in _STOPS:
                        return outcome.code
                    self.end(Tried(job.file, job.case.name, outcome))
                    if self._over:
                        break
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        except StoppedError:
            return ExitCode.TERMINATED
        return None

    def _outcomes(self, stack: ExitStack) -> Iterator[tuple[CaseJob, CaseOutcome]]:
        if self._over:
            return
        failed: Mapping[str, CaseOutcome] = {}
        if self._settings.record is not None:
            due = _due(self._jobs, self._settings.record, self._settings.processes)
            self.recorded, failed = record(due, self._tell)
        ready: list[CaseJob] = []
        for job in self._jobs:
            outcome = failed.get(show_path(job.cassette.path)) if job.cassette else None
            if outcome is None:
                ready.append(job)
            else:
                yield job, outcome
        count = min(self._settings.processes, len(ready))
        workers = stack.enter_context(Workers(count, lambda number: self._one(ready[number])))
        for number, outcome in workers.outcomes(range(len(ready))):
            yield ready[number], outcome

    def _one(self, job: CaseJob) -> CaseOutcome:
        return run_case(job, update_snapshots=self._settings.update_snapshots)


def _due(jobs: Sequence[CaseJob], which: CassetteRenewal, processes: int) -> dict[str, CaseJob]:
    """The cassettes to be recorded, each with the first case that names it."""
    firsts: dict[str, CaseJob] = {}
    for job in jobs:
        if job.cassette is not None:
            firsts.setdefault(show_path(job.cassette.path), job)
    if which is CassetteRenewal.ALL:
        return firsts
    due = {name for name in firsts if not Path(name).exists()}
    if which is CassetteRenewal.CHANGED:
        due |= _stale([job for job in jobs if job.cassette is not None], due, processes)
    return {name: job for name, job in firsts.items() if name in due}


def _stale(jobs: Sequence[CaseJob], missing: Collection[str], processes: int) -> set[str]:
    """The cassettes whose cases make other requests, or that cannot be read."""
    there = [job for job in jobs if job.cassette and show_path(job.cassette.path) not in missing]
    count = min(processes, len(there))
    with Workers(count, lambda number: run_case(there[number])) as workers:
        return {
            show_path(job.cassette.path)
            for job, outcome in ((there[n], o) for n, o in workers.outcomes(range(len(there))))
            if job.cassette is not None and outcome.is_stale
        }


def record(
    due: Mapping[str, CaseJob], tell: SessionListener
) -> tuple[tuple[str, ...], dict[str, CaseOutcome]]:
    """Record cassettes, each with its case.

    Returns which were recorded, and the errors of the others. A failed run is not a usable
    recording: it leaves none, and an older one is unchanged.
    """
    recorded: list[str] = []
    failed: dict[str, CaseOutcome] = {}
    waiting = list(due.items())
    with Workers(min(1, len(waiting)), lambda n: run_case(waiting[n][1], "all")) as workers:
        for number, (cassette, _) in enumerate(waiting):
            tell.recording(cassette)
            ((_, outcome),) = workers.outcomes([number])
            if outcome.code is ExitCode.OK:
                recorded.append(cassette)
            else:
                message = f"`{cassette}` could not be recorded: {outcome.reason}"
                failed[cassette] = replace(outcome, verdict="error", reason=message)
    return tuple(recorded), failed


@contextmanager
def _handle_signals() -> Generator[None]:
    """While cases run, the signals that end a process end them in order."""
    # What whoever started us had ignored (`nohup`) stays so.
    kinds = [kind for kind in _ENDS if signal.getsignal(kind) is not signal.SIG_IGN]
    handlers = [(kind, signal.signal(kind, _stop)) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in handlers:
            signal.signal(kind, handler)


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise StoppedError


def load_file(path: Path) -> TestedFile:
    pipeline, problems = check_file(path)
    wrong = [problem for problem in problems if not problem.warning]
    if pipeline is not None and not wrong:
        wrong += no_step(pipeline)
    if pipeline is not None and not wrong:
        wrong += row_check(pipeline)
    if pipeline is not None and not wrong:
        return TestedFile(show_path(path), path, with_rows(pipeline))
    reasons = tuple(f"{one}\n  hint: {one.hint}" if one.hint else str(one) for one in wrong)
    own = pipeline.cassette if pipeline is not None else None
    return TestedFile(show_path(path), path, None, reasons, None if own is None else own.path)


def _counts(file: TestedFile, search: FileSearch) -> bool:
    """Return true if a broken file is an error: one found in a folder may be a base of others."""
    return file.path not in search.searched or may_have_tests(file.path)


def _outcome_of_broken_file(file: TestedFile) -> CaseOutcome:
    return CaseOutcome("error", code=ExitCode.USAGE, reason="\n".join(file.problems))


def _tests(file: TestedFile) -> bool:
    return file.pipeline is not None and bool(file.pipeline.tests)


def _jobs(files: Iterable[TestedFile]) -> Iterator[CaseJob]:
    for file in files:
        if file.pipeline is not None:
            yield from (CaseJob(file.name, file.pipeline, case) for case in file.pipeline.tests)


def _cassettes_of(files: Iterable[TestedFile]) -> Iterator[Path]:
    """The cassettes that the files refer to."""
    for file in files:
        if file.pipeline is not None:
            settings = (file.pipeline.cassette, *(case.cassette for case in file.pipeline.tests))
            yield from (cassette.path for cassette in settings if cassette is not None)
        elif file.cassette is not None:
            yield file.cassette
