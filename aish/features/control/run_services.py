"""The sockets and notifiers of a run.

`aish run` and `aish shell` both open these, and import this module only for a run that has any.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, TypeVar

from aish.core.events import Notice, Stamped
from aish.core.frozen import frozen
from aish.core.messages import Spent
from aish.core.protocols import Clock
from aish.engine.environment import RunHandle
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.net.listen.addresses import Exposure
from aish.output.event_log import Sink

if TYPE_CHECKING:
    from aish.features.control.notify import Notifier
    from aish.features.control.server import ControlServer
    from aish.net.listen.tokens import ClientToken

T = TypeVar("T")


@frozen
class ControlRequest:
    """The addresses and exposure of the command line; the file provides the rest."""

    addresses: tuple[str, ...] = ()
    exposure: Exposure = Exposure()


class RunServices:
    """The sockets and notifiers that are open during a run."""

    def __init__(self, control: "ControlServer | None", notifier: "Notifier | None") -> None:
        self._control = control
        self._notifier = notifier

    @property
    def notices(self) -> tuple[Notice, ...]:
        return () if self._control is None else self._control.notices

    @property
    def before_pause(self) -> Callable[[], Awaitable[None]] | None:
        """A callback for the end of a run that waits for answers."""
        return None if self._notifier is None else self._notifier.tell_the_rest

    @property
    def sinks(self) -> tuple[Sink, ...]:
        sinks = (None if self._control is None else self._control.state, self._notifier)
        return tuple(sink for sink in sinks if sink is not None)

    def begin_after(
        self, events: Callable[[frozenset[str], int], Iterable[Stamped]], last: int
    ) -> None:
        """Take over what is needed of earlier parts of the run, which end with the number `last`.

        `events` are those of these types, after no number higher than that.
        """
        if self._control is not None:
            from aish.features.control.run_state import BEFORE

            self._control.state.begin_after(events(BEFORE, last), last)

    def attach(self, handle: RunHandle) -> None:
        for service in (self._control, self._notifier):
            if service is not None:
                service.attach(handle)

    async def during(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run while the services run; errors of the run are raised unchanged."""
        failure: Exception | None = None
        ends: list[T] = []
        async with AsyncExitStack() as stack:
            for service in (self._control, self._notifier):
                if service is not None:
                    await stack.enter_async_context(service.serve())
            try:
                ends.append(await run())
            except Exception as error:  # ruff: ignore[blind-except] - raised below, not in a group
                failure = error
        if failure is not None:
            raise failure
        return ends[0]


def open_services(
    asked: ControlRequest | None,
    plan: Plan,
    options: RunOptions,
    folder: RunFolder,
    clock: Clock,
    spent: Spent | None,
    stack: ExitStack,
) -> RunServices:
    """Open the sockets of a run, if it has any, and its notifier.

    `spent` is what earlier parts of the run have used.

    Raises:
        UsageError: an address that was asked for cannot be opened, or a variable is not set.
    """
    with folder.unless_refused():
        control = None
        if asked is not None:
            control = _control(asked, plan, options, folder, clock, spent, stack)
        page = None if control is None else control.page
        notifier = _notifier(plan, options, folder, page)
    return RunServices(control, notifier)


def _control(
    asked: ControlRequest,
    plan: Plan,
    options: RunOptions,
    folder: RunFolder,
    clock: Clock,
    spent: Spent | None,
    stack: ExitStack,
) -> "ControlServer":
    from aish.features.control.run_state import ControlledRun, RunState
    from aish.features.control.server import OWN_SOCKET, ListenRequest, open_control

    steps = {step.id: None if step.flow.foreach is not None else 1 for step in plan.steps}
    state = RunState(folder.id, plan.pipeline.name, steps, clock, spent)
    settings = plan.pipeline.control
    addresses = asked.addresses or settings.listen
    has_port = any(one != OWN_SOCKET and not one.startswith("unix:") for one in addresses)
    listen = ListenRequest(
        addresses,
        "--control" if asked.addresses else "control.listen",
        asked.exposure,
        tuple(_tokens(plan, options)) if has_port else (),
        frozenset(settings.hosts),
        frozenset(settings.origins),
        next(iter(settings.origins), None),
    )
    run = ControlledRun(state, folder, plan.secrets, clock, plan.pipeline.data)
    return stack.enter_context(open_control(listen, run))


def _notifier(
    plan: Plan, options: RunOptions, folder: RunFolder, page: str | None
) -> "Notifier | None":
    pipeline = plan.pipeline
    settings = pipeline.control.notify
    if settings is None:
        return None
    from aish.features.control.notify import make_notifier

    cwd, environ = pipeline.file.parent, options.environ
    return make_notifier(settings, folder.id, cwd, environ, plan.secrets, page)


def _tokens(plan: Plan, options: RunOptions) -> "Iterator[ClientToken]":
    """The tokens that the file names; each is a secret of the run from here on."""
    from aish.net.listen.tokens import token_from_env, token_from_file

    for entry in plan.pipeline.control.tokens:
        if entry.env is not None:
            token = token_from_env(entry.name, entry.env, entry.scopes, options.environ)
        else:
            assert entry.path is not None, "the schema requires one of both"
            token = token_from_file(entry.name, entry.path, entry.scopes)
        plan.secrets.add(entry.env or f"control.{entry.name}", token.value)
        yield token
