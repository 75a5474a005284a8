"""Opens what a run writes and listens to, whoever starts it, and closes it again.

`aish run`, `aish.api`, `aish serve`, `aish apply`, `aish test` and `:run` say in a `Launch` what
differs. A start that is refused leaves nothing open. The package of a cassette, of staged calls or
of the control API is imported only by a run that needs it.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from aish.core.events import Exit, Stamped
from aish.core.frozen import frozen
from aish.core.protocols import Approver, Clock
from aish.engine.environment import Opening, Recorder, RunEnvironment, mask_opening
from aish.engine.execution.run import execute
from aish.engine.limits import RunMeter
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, stages_calls
from aish.engine.run_folder import RunFolder
from aish.engine.steps.context import Examine, OpenCarrier
from aish.output.event_log import EventLog, OnFailure, Sink
from aish.terminal.unattended import Unattended

if TYPE_CHECKING:
    from aish.engine.resume_state import ResumeState
    from aish.features.control.run_services import ControlRequest, RunServices
    from aish.features.recording.session import CassetteSession
    from aish.features.staging.queue import StagingQueue
    from aish.output.items.results import ItemsFile
    from aish.policy.flow import RunFlow

T = TypeVar("T")

_OF_ITEMS = frozenset({"item.started", "item.finished", "item.moved"})

Retold = Callable[[frozenset[str] | None, int], Iterator[Stamped]]
"""Events of some types, or `None` for all; of items only those that ended after a number."""


class LaunchConsole(Sink, Protocol):
    """A sink for people, which can show what is done before the run has started."""

    def opening(self, pipeline: str, doing: Sequence[str], now: float, /) -> None: ...


@frozen
class EarlierPart:
    """The part of a run that is resumed; `go_on` opens its journal, except for a completed run."""

    state: "ResumeState"
    events: Retold
    go_on: Callable[[], Sink] | None = None

    def events_for(
        self, items: "ItemsFile | None", result: Sink | None, wanted: frozenset[str] | None
    ) -> Iterator[tuple[Sink, Stamped]]:
        """Each sink with the earlier events that it needs; few even for a million items.

        The result needs those of the types `wanted`, or all if that is `None`.
        """
        done = self.state.items
        if items is not None and any(items.count(step) < len(done[step]) for step in done):
            # Lines were removed from the file: it is rebuilt from the journal.
            items.clear()
        last = max((item.last for item in done.values()), default=0)
        behind = items is not None and items.last < last
        kinds = None if wanted is None else wanted | (_OF_ITEMS if behind else frozenset())
        known = 0 if items is None or kinds is None else items.last
        for stamped in () if kinds == frozenset() else self.events(kinds, known):
            if items is not None and behind:
                yield items, stamped
            if result is not None and wanted != frozenset():
                yield result, stamped


@frozen
class Launch:
    """A run that is about to start.

    `cassette` is opened for it, while a `recorder` is open already. Staged calls are written to the
    folder or to the file `staged`; `unkept` ones only count, and without `staging` a rule that
    stages calls denies them. `control` says where the run listens, `notifies` whether the program
    that the file names is told of questions. `around` are the sources that the server
    which executes it follows.
    """

    plan: Plan
    options: RunOptions
    folder: RunFolder
    clock: Clock
    approver: Approver = field(default_factory=Unattended)
    cassette: "CassetteSession | None" = None
    recorder: Recorder | None = None
    earlier: EarlierPart | None = None
    staging: Literal["kept", "unkept"] | None = "kept"
    staged: Path | None = None
    control: "ControlRequest | None" = None
    notifies: bool = False
    opening: Opening | None = None
    around: "RunFlow | None" = None


class OpenRun:
    """A run whose folder, cassette and sockets are open.

    `begin` opens its journal and gives it its sinks. `lost` tells what could not be written, unless
    `begin` got something else that is told.
    """

    log: EventLog
    environment: RunEnvironment

    def __init__(
        self,
        launch: Launch,
        recorder: Recorder | None,
        queue: "StagingQueue | None",
        services: "RunServices | None",
        opening: ExitStack,
    ) -> None:
        self.launch = launch
        self.recorder = recorder
        self.queue = queue
        self.journal: Sink | None = None
        self.lost: list[str] = []
        self._services = services
        self._opening = opening
        # Staged calls are written before the journal records them: a killed run leaves no gap.
        self._first = [] if queue is None or launch.staging == "unkept" else [queue]
        self._open_log(self._first)

    def begin(
        self,
        sinks: Iterable[Sink | None] = (),
        *,
        items: "ItemsFile | None" = None,
        console: LaunchConsole | None = None,
        wanted: frozenset[str] | None = frozenset(),
        journal_folder: Path | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Open the journal, and pass the events of earlier parts to the sinks of the whole run.

        Those are `items` and the first of `sinks`, the result, for `wanted` see `EarlierPart`.
        """
        launch, services, earlier = self.launch, self._services, self.launch.earlier
        result, *others = (*sinks, None)
        self._open_log([*self._first, items])
        journal = self.journal = self._open_journal(journal_folder or launch.folder.path)
        after = 0
        if earlier is not None and earlier.go_on is not None:
            after = max(earlier.state.last_seq, 0 if items is None else items.last)
        # The last ones: what is seen from outside is written already.
        watching = () if services is None else services.sinks
        every = [*self._first, journal, items, console, result, *others, *watching]
        self._open_log(every, journal, after, on_failure or self.lose)
        self._opening.close()
        if earlier is not None:
            self.log.retell(earlier.events_for(items, result, wanted))
        self.environment = RunEnvironment(
            emit=self.log.emit,
            approver=launch.approver,
            clock=launch.clock,
            folder=launch.folder,
            environ=launch.options.environ,
            recorder=self.recorder,
            resume_state=None if earlier is None else earlier.state,
            batches=[] if earlier is None else [*earlier.state.batches],
            staging=self.queue,
            notices=() if services is None else services.notices,
            attach=None if services is None else services.attach,
            before_pause=None if services is None else services.before_pause,
            follow=self.log.follow,
            around=launch.around,
            opening=self._opening_with_mask(console),
        )

    async def execute(
        self,
        examine: Examine | None = None,
        carriers: OpenCarrier | None = None,
        above: RunMeter | None = None,
    ) -> Exit:
        plan, options = self.launch.plan, self.launch.options
        run = partial(execute, plan, options, self.environment, examine, carriers, above)
        return await (run() if self._services is None else self._services.during(run))

    def close(self) -> None:
        self.log.close()

    def _open_log(
        self,
        sinks: Iterable[Sink | None],
        journal: Sink | None = None,
        after: int = 0,
        on_failure: OnFailure | None = None,
    ) -> None:
        self.log = EventLog(
            [sink for sink in sinks if sink is not None],
            clock=self.launch.clock,
            secrets=self.launch.plan.secrets,
            on_failure=on_failure,
            after=after,
            journal=journal,
        )

    def _open_journal(self, path: Path | None) -> Sink | None:
        if self.launch.earlier is not None:
            return None if self.launch.earlier.go_on is None else self.launch.earlier.go_on()
        if path is None:
            return None
        from aish.journal.writer import open_journal

        return open_journal(path)

    def lose(self, sink: Sink, error: OSError) -> None:
        """Take down what cannot be written any more."""
        self.lost.append(f"cannot write {sink.name}: {error.strerror or error}")

    def _opening_with_mask(self, console: LaunchConsole | None) -> Opening | None:
        log, mask, name = self.log, self.launch.plan.secrets.mask, self.launch.plan.pipeline.name
        if console is None:
            return mask_opening(self.launch.opening, mask)

        def mask_and_show(doing: Sequence[str]) -> None:
            lines = [mask(line) for line in doing]
            log.before(console, lambda now: console.opening(mask(name), lines, now))

        return mask_and_show


def with_key_surveys(plan: Plan, options: RunOptions) -> RunOptions:
    """The options with surveys of the items' keys, if the plan has keys that are known before."""
    if not plan.has_keys:
        return options
    from aish.engine.execution.item_source import with_surveys

    return with_surveys(plan, options)


@contextmanager
def open_run(launch: Launch) -> Generator[OpenRun]:
    """Open what a run needs before its sinks; the caller makes these, and begins it.

    A new folder is deleted if the run is refused.

    Raises:
        UsageError: the folder was replaced meanwhile, or something cannot be opened or used.
        CassetteFileError: the cassette cannot be written there, or is being recorded.
    """
    plan, folder = launch.plan, launch.folder
    with ExitStack() as stack:
        opening = stack.enter_context(ExitStack())
        opening.enter_context(folder.require_in_place())
        recorder, queue, services = launch.recorder, None, None
        with folder.unless_refused():
            if launch.cassette is not None:
                opened = launch.cassette.open_recorder(plan, launch.options, folder, launch.clock)
                recorder = stack.enter_context(opened)
            queue = _open_queue(launch)
            services = _open_services(launch, stack)
        run = OpenRun(launch, recorder, queue, services, opening)
        stack.callback(run.close)
        yield run


def _open_queue(launch: Launch) -> "StagingQueue | None":
    plan, folder = launch.plan, launch.folder
    if launch.staging is None or (launch.staged is None and not stages_calls(plan)):
        return None
    from aish.features.staging.queue import open_queue, unkept_queue

    if launch.staging == "unkept":
        return unkept_queue(plan, folder.id)
    return open_queue(plan, folder, launch.staged)


def _open_services(launch: Launch, stack: ExitStack) -> "RunServices | None":
    plan, earlier = launch.plan, launch.earlier
    notifies = launch.notifies and plan.pipeline.control.notify is not None
    if launch.control is None and not notifies:
        return None
    from aish.features.control.run_services import open_services

    spent = None if earlier is None else earlier.state.spent
    services = open_services(
        launch.control, plan, launch.options, launch.folder, launch.clock, spent, stack
    )
    if earlier is not None:
        services.begin_after(earlier.events, earlier.state.last_seq)
    return services
