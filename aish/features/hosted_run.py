"""A run within a program that lives on after it: of `aish.api`, and of the MCP server (H6).

Opens the folder and the sinks of a run, executes it, and returns its result as an object. Signals
belong to the program around it, which ends a run through `Ending`.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aish.core.errors import ExitCode
from aish.core.events import Exit, RunFinished, Stamped
from aish.core.frozen import frozen
from aish.core.json import json_text
from aish.core.protocols import Clock
from aish.engine.cancellation import End, Interrupt, lent_by
from aish.engine.environment import Recorder, RunEnvironment
from aish.engine.execution.run import execute
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, most_patient, stages_calls
from aish.engine.resume_state import ResumeRefusedError, ResumeState
from aish.engine.run_folder import RunFolder, RunsPlace, open_folder
from aish.output.event_log import EventLog, Sink
from aish.output.items.results import ItemsFile, open_items_file, public
from aish.output.result import Fold
from aish.terminal.unattended import Unattended

Row = dict[str, Any]


class Ending:
    """Ends a run as a signal would; before the run has begun it ends it at its start."""

    def __init__(self) -> None:
        self._code: ExitCode | None = None
        self._end: End | None = None

    def arrive(self, code: ExitCode) -> None:
        """End the run; only the first time counts."""
        if self._code is None:
            self._code = code
            if self._end is not None:
                self._end(code)

    @contextmanager
    def lend(self, end: End) -> Generator[Interrupt]:
        """What the run has in the place of signals."""
        seen = Interrupt(self._code)

        def ended(code: ExitCode) -> None:
            seen.code = code
            end(code)

        seen.arrive = self.arrive
        self._end = ended
        if self._code is not None:
            ended(self._code)
        try:
            yield seen
        finally:
            self._end = None


@frozen
class EarlierPart:
    """What a resumed run takes over: its state, its open journal, and the events of that part."""

    state: ResumeState
    journal: Sink
    events: Callable[[], Iterable[Stamped]]


@frozen
class HostedRun:
    """A run that is about to begin.

    `sinks` get its events last. A run that `listens` can be answered from outside while it waits
    for an approval, over a socket of its own. Its result has the items of those steps that are
    `itemized`: of all if that is `None`.
    """

    plan: Plan
    options: RunOptions
    folder: RunFolder
    clock: Clock
    ending: Ending
    sinks: tuple[Sink, ...] = ()
    recorder: Recorder | None = None
    earlier: EarlierPart | None = None
    listens: bool = False
    itemized: frozenset[str] | None = None


def new_folder(
    plan: Plan,
    options: RunOptions,
    clock: Clock,
    wanted: Path | None = None,
    *,
    ephemeral: bool = False,
) -> RunFolder:
    """The folder of a new run, with the plan and the piped text in it.

    Raises:
        UsageError: it cannot be made.
    """
    pipeline, mask = plan.pipeline, plan.secrets.mask
    place = RunsPlace(pipeline.file.parent, wanted)
    folder = open_folder(pipeline.name, place, clock.now(), ephemeral=ephemeral, mask=mask)
    with folder.beginning():
        folder.write_plan(pipeline.data)
        if options.stdin:
            folder.keep_stdin(options.stdin)
    return folder


def resumed_run(
    plan: Plan, options: RunOptions, id: str, clock: Clock, ending: Ending, stack: ExitStack
) -> HostedRun | Row:
    """The run of this id, to go on where it was interrupted, or its result if it has succeeded.

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
    from aish.features.resume.replay_events import retold, retold_whole
    from aish.features.resume.scan import tags
    from aish.features.resume.state import read_resume_state

    past = hold_past(plan.pipeline, RunsPlace(plan.pipeline.file.parent), id, stack)
    stdin = past.stdin()
    masked = [name for name, value in past.inputs.items() if tags([json_text(value)])]
    if masked or tags([stdin]):
        what = f"`{masked[0]}`" if masked else "`stdin`"
        said = f"{what} had a secret in it, and secrets are not stored"
        raise ResumeRefusedError(said, where=past.id)
    options = replace(options, inputs=past.inputs, stdin=stdin)
    check_same(past.fingerprint, fingerprint(plan, options), plan.pipeline)
    with past.read() as reading:
        state = read_resume_state(reading, plan, past.id, read_file=past.kept)
    folder = reopen_folder(past.path, plan.secrets.mask)
    retell = retold_whole if state.ended else retold

    def events() -> Iterator[Stamped]:
        with past.read() as reading:
            yield from retell(reading, state)

    if state.ended:
        return past_result(past.id, folder, plan, events())
    earlier = EarlierPart(state, past.journal.go_on(), events)
    return HostedRun(plan, options, folder, clock, ending, earlier=earlier)


async def run_hosted(run: HostedRun) -> Row:
    """Run to the end; the object of `aish run --format json`, with an `Exit` under `exit`.

    Raises:
        UsageError: the run could not begin.
    """
    plan, folder, earlier = run.plan, run.folder, run.earlier
    with ExitStack() as stack:
        opening = stack.enter_context(ExitStack())
        with folder.beginning():
            items = open_items_file(folder.path) if has_items(plan) else None
            if items is not None:
                opening.callback(items.close)
            journal = _journal(folder) if earlier is None else earlier.journal
            if journal is not None:
                opening.callback(journal.close)
        gathered = _Gathered(folder.id, items, run.itemized)
        book = None
        if stages_calls(plan):
            from aish.features.staging.queue import open_queue

            book = open_queue(plan, folder, None)
        services = None
        if run.listens and most_patient(plan) != "deny":
            from aish.features.control.run_services import ControlRequest, open_services

            spent = None if earlier is None else earlier.state.spent
            request = ControlRequest()
            services = open_services(request, plan, run.options, folder, run.clock, spent, stack)
        if earlier is not None:
            _retell(earlier, gathered, items)
        sinks: list[Sink | None] = [book, journal, items, gathered, *run.sinks]
        sinks += () if services is None else services.sinks
        lost: list[str] = []
        log = EventLog(
            [one for one in sinks if one is not None],
            clock=run.clock,
            secrets=plan.secrets,
            on_failure=lambda sink, error: lost.append(
                f"cannot write {sink.name}: {error.strerror or error}"
            ),
            journal=journal,
            after=0
            if earlier is None
            else max(earlier.state.last_seq, items.last if items is not None else 0),
        )
        stack.callback(log.close)
        opening.pop_all()
        environment = RunEnvironment(
            emit=log.emit,
            approver=Unattended(),
            clock=run.clock,
            folder=folder,
            environ=run.options.environ,
            recorder=run.recorder,
            resume_state=None if earlier is None else earlier.state,
            staging=book,
            notices=() if services is None else services.notices,
            attach=None if services is None else services.attach,
            before_pause=None if services is None else services.before_pause,
            follow=log.follow,
        )

        async def executed() -> Exit:
            with lent_by(run.ending.lend):
                return await execute(plan, run.options, environment)

        await (executed() if services is None else services.during(executed))
        return gathered.result(lost)


def _retell(earlier: EarlierPart, gathered: "_Gathered", items: ItemsFile | None) -> None:
    """Give the sinks that cover the whole run what came before."""
    state = earlier.state
    last = max((one.last for one in state.items.values()), default=0)
    counts = {step: len(one) for step, one in state.items.items()}
    if items is not None and any(items.count(id) < count for id, count in counts.items()):
        # Lines were removed from the file: it is rebuilt from the journal.
        items.clear()
    is_behind = items is not None and items.last < last
    for stamped in earlier.events():
        if items is not None and is_behind:
            items(stamped)
        gathered(stamped)


def past_result(run: str, folder: RunFolder, plan: Plan, events: Iterable[Stamped]) -> Row:
    """The result of a run that has succeeded before, from the events of its journal."""
    items = open_items_file(folder.path) if has_items(plan) else None
    gathered = _Gathered(run, items)
    try:
        for stamped in events:
            gathered(stamped)
        return gathered.result(())
    finally:
        if items is not None:
            items.close()


def _journal(folder: RunFolder) -> Sink | None:
    if folder.path is None:
        return None
    from aish.journal.writer import open_journal

    return open_journal(folder.path)


def has_items(plan: Plan) -> bool:
    """Whether any step of the plan, or of its sub-pipelines, has items."""
    own = any(step.flow.foreach is not None for step in plan.steps)
    return own or any(map(has_items, plan.inner.values()))


class _Gathered:
    """A sink that builds the result from the events."""

    name = "the result"
    deltas = False

    def __init__(
        self, run: str, items: ItemsFile | None, itemized: frozenset[str] | None = None
    ) -> None:
        self._fold = Fold(run)
        self._items = items
        self._itemized = itemized
        self._finished: RunFinished | None = None

    def __call__(self, stamped: Stamped) -> None:
        self._fold.take(stamped)
        if isinstance(stamped.event, RunFinished):
            self._finished = stamped.event

    def close(self) -> None:
        """Nothing is buffered."""

    def result(self, lost: Sequence[str]) -> Row:
        """The result of the run that has ended; the items' file is still open.

        A run that succeeded and whose record is `lost` has failed, as with `aish run`.
        """
        assert self._finished is not None, "a run ends with `run.finished`"
        row: Row = dict(self._fold.result(self._finished))
        row["exit"] = self._finished.exit
        if lost and self._finished.exit.code == ExitCode.OK:
            row["status"] = "failed"
            row["exit"] = Exit(int(ExitCode.FAILED), "failed", retryable=False, reason=lost[0])
        if self._items is not None:
            for step in self._items.steps():
                if step in row["steps"] and (self._itemized is None or step in self._itemized):
                    found = [public(one) for one in self._items.rows(step)]
                    row["steps"][step]["items"] = found
        return row
