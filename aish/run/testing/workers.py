"""Cases in processes of their own (C12): forked, so that nothing is loaded twice.

The parent runs no case itself, not even where there is one process only. So a fork is safe (no
thread, no event loop), a case that takes its process down costs itself alone, and a signal to the
parent never meets an event loop that is being set up.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Self

from aish.core.errors import ExitCode
from aish.core.frozen import slotted
from aish.run.testing.outcome import Outcome

Run = Callable[[int], Outcome]
"""Runs the case of a number."""

_PATIENCE = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


@slotted
class _Worker:
    process: ForkProcess
    pipe: "Connection[int | None, Outcome]"
    busy: int | None = None


class Workers:
    """A pool; leaving it ends every process, and what runs in one."""

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
                # A run in progress ends in order, its children with it.
                worker.process.terminate()
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def outcomes(self, jobs: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
        """How each case ended, as they end."""
        waiting = list(reversed(jobs))
        for worker in self._workers:
            self._assign(worker, waiting)
        while busy := [worker for worker in self._workers if worker.busy is not None]:
            ready = connection.wait([worker.pipe for worker in busy])
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
        # One that has died meanwhile is found out when its answer is read.
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
    """Let a parent that is killed take along what waits for something in a case."""
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
