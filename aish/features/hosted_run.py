"""A run within a program that lives on after it: of `aish.api`, and of the MCP server.

Executes a run and returns its result as an object. Signals belong to the program around it, which
ends a run through `ShutdownRequests`.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from aish.core.errors import ExitCode
from aish.core.events import (
    Exit,
    RunFinished,
    Stamped,
    StepFinished,
    ToolFinished,
    TurnStarted,
)
from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.engine.cancellation import ShutdownRequests, borrow_signals
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.resume_state import ResumeRefusedError
from aish.engine.run_folder import RunFolder, RunsPlace
from aish.engine.steps.context import has_items
from aish.features.launch import Launch, open_run
from aish.output.event_log import Sink
from aish.output.items.results import ItemsFile, open_items_file, public
from aish.output.result import ResultFold

Row = dict[str, Any]


@frozen
class HostedRun:
    """A run that is about to begin; `sinks` get its events last.

    Its result has the items of those steps that are `itemized`: of all if that is `None`.
    """

    launch: Launch
    ending: ShutdownRequests
    sinks: tuple[Sink, ...] = ()
    itemized: frozenset[str] | None = None


def resume_run(
    plan: Plan, options: RunOptions, id: str, clock: Clock, stack: ExitStack
) -> Launch | Row:
    """Resume the run with this id, or return its result if it has succeeded.

    It is locked until `stack` is left. Its inputs and its piped text are those of its beginning.

    Raises:
        ResumeRefusedError: it cannot be resumed without a person who says how.
        UsageError: there is no such run, or another process writes it.
        JournalError: its journal is damaged.
    """
    from aish.engine.execution.fingerprint import fingerprint
    from aish.engine.run_folder import reopen_folder
    from aish.features.resume.differences import check_same
    from aish.features.resume.find import hold_past
    from aish.features.resume.replay_events import earlier_part
    from aish.features.resume.scan import tags
    from aish.features.resume.state import read_resume_state

    past = hold_past(plan.pipeline, RunsPlace(plan.pipeline.file.parent), id, stack)
    stdin = past.stdin()
    if past.masked_inputs or tags([stdin]):
        what = f"`{past.masked_inputs[0]}`" if past.masked_inputs else "`stdin`"
        message = f"{what} had a secret in it, and secrets are not stored"
        raise ResumeRefusedError(message, where=past.id)
    options = replace(options, inputs=past.inputs, stdin=stdin)
    check_same(past.fingerprint, fingerprint(plan, options), plan.pipeline)
    with past.read() as reading:
        state = read_resume_state(reading, plan, past.id, read_file=past.kept)
    folder, earlier = reopen_folder(past.path, plan.secrets.mask), earlier_part(past, state)
    if state.ended:
        return past_result(past.id, folder, plan, earlier.events(None, 0))
    return Launch(plan, options, folder, clock, earlier=earlier)


async def run_hosted(run: HostedRun) -> Row:
    """Run to the end; the object of `aish run --format json`, with an `Exit` under `exit`."""
    plan, folder = run.launch.plan, run.launch.folder
    with open_run(run.launch) as opened:
        items = open_items_file(folder.path) if has_items(plan) else None
        gathered = _ResultSink(folder.id, items, run.itemized)
        opened.begin([gathered, *run.sinks], items=items, wanted=None)
        with borrow_signals(run.ending.lend):
            await opened.execute()
        return gathered.result(opened.lost)


def past_result(run: str, folder: RunFolder, plan: Plan, events: Iterable[Stamped]) -> Row:
    """The result of a run that has succeeded before, from the events of its journal."""
    items = open_items_file(folder.path) if has_items(plan) else None
    gathered = _ResultSink(run, items)
    try:
        for stamped in events:
            gathered(stamped)
        return gathered.result(())
    finally:
        if items is not None:
            items.close()


class _ResultSink(Sink):
    """A sink that builds the result from the events, with the `sources` of all that was read."""

    name = "the result"

    def __init__(
        self, run: str, items: ItemsFile | None, itemized: frozenset[str] | None = None
    ) -> None:
        self._fold = ResultFold(run)
        self._items = items
        self._itemized = itemized
        self._finished: RunFinished | None = None
        self._sources: set[str] | None = None

    def __call__(self, stamped: Stamped) -> None:
        self._fold.take(stamped)
        match stamped.event:
            case RunFinished():
                self._finished = stamped.event
            case TurnStarted() | ToolFinished() | StepFinished() as read:
                if read.sources is not None:
                    self._sources = {*(self._sources or ()), *read.sources}
            case _:
                pass

    def result(self, lost: Sequence[str]) -> Row:
        """The result of the run that has ended; the items' file is still open.

        A run that succeeded and whose record is `lost` has failed, as with `aish run`.
        """
        assert self._finished is not None, "a run ends with `run.finished`"
        row: Row = dict(self._fold.result(self._finished))
        row["exit"] = self._finished.exit
        row["sources"] = self._sources
        if lost and self._finished.exit.code == ExitCode.OK:
            row["status"] = "failed"
            row["exit"] = Exit(int(ExitCode.FAILED), "failed", retryable=False, reason=lost[0])
        if self._items is not None:
            for step in self._items.steps():
                if step in row["steps"] and (self._itemized is None or step in self._itemized):
                    rows = [public(one) for one in self._items.rows(step)]
                    row["steps"][step]["items"] = rows
        return row
