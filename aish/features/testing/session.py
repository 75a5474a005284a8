"""`aish test`: loads files, selects cases, runs them in forked processes, finds leftovers (C12)."""

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

from aish.cassettes.format.file import shown
from aish.core.errors import ExitCode, UsageError
from aish.core.frozen import frozen, slotted
from aish.core.phrases import counted
from aish.engine.plan.case_rows import with_rows
from aish.engine.plan.validation.validate import check_file, no_step, row_check
from aish.features.testing.case import run_case
from aish.features.testing.discovery import Search, may_have_tests, orphans
from aish.features.testing.outcome import Job, Outcome, PipelineFile, Session, Tried

Run = Callable[[int], Outcome]
"""Runs the case of a number."""

_PATIENCE = 5.0
_TURN = 0.5
"""Seconds of a wait for workers."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


@slotted
class _Worker:
    process: ForkProcess
    pipe: "Connection[int | None, Outcome]"
    busy: int | None = None


class Workers:
    """A pool; leaving it ends every process, and the runs in them."""

    def __init__(self, count: int, run: Run) -> None:
        self._run = run
        self._context = get_context("fork")
        self._workers: list[_Worker] = []
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

    def outcomes(self, jobs: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
        """The outcome of each case, in order of completion."""
        waiting = list(reversed(jobs))
        for worker in self._workers:
            self._assign(worker, waiting)
        while busy := [worker for worker in self._workers if worker.busy is not None]:
            # A signal just before the system call does not end it, and its handler would wait too.
            ready = connection.wait([worker.pipe for worker in busy], _TURN)
            for worker in busy:
                if worker.pipe in ready:
                    number, outcome = self._finished(worker)
                    self._assign(worker, waiting)
                    yield number, outcome

    def _finished(self, worker: _Worker) -> tuple[int, Outcome]:
        number = worker.busy
        assert number is not None
        worker.busy = None
        try:
            return number, worker.pipe.recv()
        except (EOFError, OSError):
            outcome = _crash(worker.process)
        fresh = self._fork()
        worker.pipe.close()
        worker.process, worker.pipe = fresh.process, fresh.pipe
        return number, outcome

    @staticmethod
    def _assign(worker: _Worker, waiting: list[int]) -> None:
        if not waiting:
            return
        worker.busy = waiting.pop()
        # A worker that has died meanwhile is detected when its answer is read.
        with suppress(OSError):
            worker.pipe.send(worker.busy)

    def _fork(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        others = [ours, *(worker.pipe for worker in self._workers)]
        arguments = (theirs, self._run, others)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        # Not before the child knows what to do with them.
        kept = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, kept)
        theirs.close()
        return _Worker(process, ours)


def _work(
    pipe: "Connection[Outcome, int]", run: Run, others: Sequence["Connection[int | None, Outcome]"]
) -> None:
    """What a worker does until the pipe is closed, which also happens when its parent is killed."""
    # A fork has the parent's ends too, and a pipe is closed when nobody holds its other end.
    for other in others:
        other.close()
    _end_with_parent()
    # Ctrl-C goes to every process of the terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(run(pipe.recv()))


def _end_with_parent() -> None:
    """Have the process signalled if its parent is killed, so that no waiting case survives it."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _crash(process: ForkProcess) -> Outcome:
    process.join(_PATIENCE)
    code = process.exitcode
    how = f"with exit code {code}"
    if code is None:
        how = "without a word"
    elif code < 0:
        how = f"by {signal.Signals(-code).name}"
    reason = f"the process that ran the case ended {how}"
    return Outcome("error", code=ExitCode.FAILED, reason=reason)


_ENDS = (signal.SIGTERM, signal.SIGHUP)
_STOPS = frozenset({ExitCode.INTERRUPTED, ExitCode.TERMINATED})


class StoppedError(BaseException):
    """SIGTERM or SIGHUP arrived; like `KeyboardInterrupt`, it is not handled on the way."""


class Renewal(StrEnum):
    """Which cassettes are recorded first: with the missing ones those that do not match, or all."""

    MISSING = "missing"
    CHANGED = "changed"
    ALL = "all"


@frozen
class Wish:
    """The options of the command line."""

    keyword: str = ""
    processes: int = 1
    stop_first: bool = False
    record: Renewal | None = None
    update_snapshots: bool = False
    allow_orphans: bool = False


class SessionListener(Protocol):
    """Reports progress to the user."""

    def recording(self, cassette: str) -> None:
        """A cassette is about to be recorded."""
        ...

    def ended(self, tried: Tried) -> None:
        """A case has ended."""
        ...


def run_session(search: Search, wish: Wish, tell: SessionListener) -> Session:
    """Run the cases of the files that were found.

    Raises:
        UsageError: there is no case at all, or none that is selected.
    """
    begun = monotonic()
    found = find_cases(search, wish.keyword)
    files, broken, jobs, chosen = found.files, found.broken, found.jobs, found.chosen
    trial = _Trial(wish, tell, chosen)
    for file in broken:
        trial.end(Tried(file.name, "", _broken(file)))
    stopped = trial.run()
    whole = search.whole and not broken
    ended = stopped is None and not trial.left_out
    left = tuple(map(shown, orphans(_used(files)))) if whole and ended else ()
    return Session(
        tried=trial.tried(files),
        seconds=monotonic() - begun,
        deselected=len(jobs) - len(chosen),
        left_out=trial.left_out,
        untested=tuple(file.name for file in files if file not in broken and not _tests(file)),
        recorded=trial.recorded,
        orphans=left,
        orphans_fail=len(chosen) == len(jobs) and not wish.allow_orphans,
        stopped=stopped,
    )


@frozen
class Found:
    """The files of a search, the broken ones, all their cases, and the selected ones."""

    files: tuple[PipelineFile, ...]
    broken: tuple[PipelineFile, ...]
    jobs: tuple[Job, ...]
    chosen: tuple[Job, ...]


def find_cases(search: Search, keyword: str) -> Found:
    """Load the files and select the cases whose names contain `keyword`.

    Raises:
        UsageError: no file is broken, and there is no case at all, or none that is selected.
    """
    files = tuple(load_file(path) for path in search.files)
    broken = tuple(file for file in files if file.problems and _counts(file, search))
    jobs = tuple(_jobs(files))
    wanted = keyword.casefold()
    chosen = tuple(job for job in jobs if wanted in job.id.casefold())
    if not broken:
        _demand(jobs, chosen, search)
    return Found(files, broken, jobs, chosen)


class _Trial:
    """The cases while they are run."""

    def __init__(self, wish: Wish, tell: SessionListener, jobs: Sequence[Job]) -> None:
        self.recorded: tuple[str, ...] = ()
        self._wish = wish
        self._tell = tell
        self._jobs = jobs
        self._ended: dict[str, Tried] = {}
        self._over = False

    @property
    def left_out(self) -> int:
        """How many cases were not reached."""
        return sum(job.id not in self._ended for job in self._jobs)

    def tried(self, files: Iterable[PipelineFile]) -> tuple[Tried, ...]:
        """The results so far, in the order of the files."""
        ids = (id for file in files for id in (file.name, *(job.id for job in _jobs([file]))))
        return tuple(self._ended[id] for id in ids if id in self._ended)

    def end(self, tried: Tried) -> None:
        """Record that a case has ended."""
        self._ended[tried.id] = tried
        self._over = self._over or (self._wish.stop_first and tried.outcome.verdict != "passed")
        self._tell.ended(tried)

    def run(self) -> ExitCode | None:
        """Run all of them; the code of the signal that stopped it early, if any."""
        try:
            with _armed(), ExitStack() as stack:
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

    def _outcomes(self, stack: ExitStack) -> Iterator[tuple[Job, Outcome]]:
        if self._over:
            return
        failed: Mapping[str, Outcome] = {}
        if self._wish.record is not None:
            due = _due(self._jobs, self._wish.record, self._wish.processes)
            self.recorded, failed = record(due, self._tell)
        ready: list[Job] = []
        for job in self._jobs:
            outcome = failed.get(shown(job.cassette.path)) if job.cassette else None
            if outcome is None:
                ready.append(job)
            else:
                yield job, outcome
        count = min(self._wish.processes, len(ready))
        workers = stack.enter_context(Workers(count, lambda number: self._one(ready[number])))
        for number, outcome in workers.outcomes(range(len(ready))):
            yield ready[number], outcome

    def _one(self, job: Job) -> Outcome:
        return run_case(job, update_snapshots=self._wish.update_snapshots)


def _due(jobs: Sequence[Job], which: Renewal, processes: int) -> dict[str, Job]:
    """The cassettes to be recorded, each with the first case that names it."""
    firsts: dict[str, Job] = {}
    for job in jobs:
        if job.cassette is not None:
            firsts.setdefault(shown(job.cassette.path), job)
    if which is Renewal.ALL:
        return firsts
    due = {name for name in firsts if not Path(name).exists()}
    if which is Renewal.CHANGED:
        due |= _stale([job for job in jobs if job.cassette is not None], due, processes)
    return {name: job for name, job in firsts.items() if name in due}


def _stale(jobs: Sequence[Job], missing: Collection[str], processes: int) -> set[str]:
    """The cassettes whose cases make other requests, or that cannot be read."""
    there = [job for job in jobs if job.cassette and shown(job.cassette.path) not in missing]
    count = min(processes, len(there))
    with Workers(count, lambda number: run_case(there[number])) as workers:
        return {
            shown(job.cassette.path)
            for job, outcome in ((there[n], o) for n, o in workers.outcomes(range(len(there))))
            if job.cassette is not None and outcome.is_stale
        }


def record(
    due: Mapping[str, Job], tell: SessionListener
) -> tuple[tuple[str, ...], dict[str, Outcome]]:
    """Record cassettes, each with its case.

    Returns which were recorded, and the errors of the others. A failed run is not a usable
    recording: it leaves none, and an older one is unchanged.
    """
    recorded: list[str] = []
    failed: dict[str, Outcome] = {}
    waiting = list(due.items())
    with Workers(min(1, len(waiting)), lambda n: run_case(waiting[n][1], "all")) as workers:
        for number, (cassette, _) in enumerate(waiting):
            tell.recording(cassette)
            ((_, outcome),) = workers.outcomes([number])
            if outcome.code is ExitCode.OK:
                recorded.append(cassette)
            else:
                failed[cassette] = _not_recorded(cassette, outcome)
    return tuple(recorded), failed


def _not_recorded(cassette: str, outcome: Outcome) -> Outcome:
    said = f"`{cassette}` could not be recorded: {outcome.reason}"
    return replace(outcome, verdict="error", reason=said)


@contextmanager
def _armed() -> Generator[None]:
    """While cases run, the signals that end a process end them in order."""
    # What whoever started us had ignored (`nohup`) stays so.
    kinds = [kind for kind in _ENDS if signal.getsignal(kind) is not signal.SIG_IGN]
    kept = [(kind, signal.signal(kind, _stop)) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in kept:
            signal.signal(kind, handler)


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise StoppedError


def load_file(path: Path) -> PipelineFile:
    """A pipeline file with its cases, or with the problems that prevent them."""
    pipeline, problems = check_file(path)
    wrong = [problem for problem in problems if not problem.warning]
    if pipeline is not None and not wrong:
        wrong += no_step(pipeline)
    if pipeline is not None and not wrong:
        wrong += row_check(pipeline)
    if pipeline is not None and not wrong:
        return PipelineFile(shown(path), path, with_rows(pipeline))
    said = tuple(f"{one}\n  hint: {one.hint}" if one.hint else str(one) for one in wrong)
    own = pipeline.cassette if pipeline is not None else None
    return PipelineFile(shown(path), path, None, said, None if own is None else own.path)


def _counts(file: PipelineFile, search: Search) -> bool:
    """Whether a broken file is an error: one found in a folder may be a base of others."""
    return file.path not in search.searched or may_have_tests(file.path)


def _broken(file: PipelineFile) -> Outcome:
    return Outcome("error", code=ExitCode.USAGE, reason="\n".join(file.problems))


def _tests(file: PipelineFile) -> bool:
    return file.pipeline is not None and bool(file.pipeline.tests)


def _jobs(files: Iterable[PipelineFile]) -> Iterator[Job]:
    for file in files:
        if file.pipeline is not None:
            yield from (Job(file.name, file.pipeline, case) for case in file.pipeline.tests)


def _demand(jobs: Sequence[Job], chosen: Sequence[Job], search: Search) -> None:
    """Fail if nothing was tested, so that it does not look like a success."""
    if not jobs:
        said = f"no tests in {counted(len(search.files), 'pipeline file')}"
        raise UsageError(said, hint="cases are under `tests:` in a pipeline file")
    if not chosen:
        raise UsageError(f"none of {len(jobs)} cases is selected", where="-k")


def _used(files: Iterable[PipelineFile]) -> Iterator[Path]:
    """The cassettes that the files refer to."""
    for file in files:
        if file.pipeline is not None:
            settings = (file.pipeline.cassette, *(case.cassette for case in file.pipeline.tests))
            yield from (one.path for one in settings if one is not None)
        elif file.cassette is not None:
            yield file.cassette
