"""Units of work and their waits for answers: a run is paused when none can continue.

A tree: the run, its steps, their items, the steps of sub-pipelines. Each is a task, and works,
waits for its parts, or waits for an answer.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from aish.agent.runtime import PausedError
from aish.core.protocols import OnAsk, Signal
from aish.system.task_group import task_group

MOST_WAITING = 100
"""Items of one step that may wait for an answer; then no more are begun."""


class Activity:
    """A task of a run; `above` is what it is a part of.

    It waits while it waits for an answer itself, or all of its parts wait. `on_wait` is told when
    that begins (`True`), and when it goes on.
    """

    def __init__(self, above: "Activity | None" = None) -> None:
        self._above = above
        self.parts: set[Activity] = set()
        self.waits = False
        self._own: OnAsk | None = None
        self._slots: anyio.CapacityLimiter | None = None
        self._scopes: list[anyio.CancelScope] = []
        self._left: list[tuple[anyio.CancelScope, float]] = []
        self._waited = 0.0
        self._since = 0.0
        self.paused: anyio.Event = anyio.Event() if above is None else above.paused
        self.on_wait: Callable[[bool], None] = lambda _: None

    def begin(self) -> "Activity":
        """Begin a part of it; the caller ends the part."""
        part = Activity(self)
        self.parts.add(part)
        self.tell()
        return part

    def end(self) -> None:
        if self._above is not None:
            self._above.parts.discard(self)
            self._above.tell()
            self.root.look()

    async def take_slot(self, slots: anyio.CapacityLimiter) -> None:
        """Take a slot, which it gives up while it waits for an answer; it may do so at once."""
        await checkpoint_if_cancelled()
        try:
            slots.acquire_on_behalf_of_nowait(self)
        except anyio.WouldBlock:
            await slots.acquire_on_behalf_of(self)
        self._slots = slots

    def give_back_slot(self) -> None:
        if self._slots is not None:
            self._slots.release_on_behalf_of(self)
            self._slots = None

    @contextmanager
    def within(self, seconds: float | None) -> Generator[anyio.CancelScope]:
        """The block may take so many seconds, without those in which it waits."""
        if seconds is None:
            yield anyio.CancelScope()
            return
        with anyio.move_on_after(seconds) as scope:
            self._scopes.append(scope)
            try:
                yield scope
            finally:
                self._scopes.remove(scope)

    def allow(self, scope: anyio.CancelScope, seconds: float) -> None:
        """Give `scope`, in whose block it is, so many seconds from now."""
        if self.waits:
            self._left = [(one, seconds if one is scope else left) for one, left in self._left]
        else:
            scope.deadline = anyio.current_time() + seconds

    @property
    def waited(self) -> float:
        """Seconds waited so far."""
        return self._waited + (anyio.current_time() - self._since if self.waits else 0.0)

    async def wait(self, event: Signal, on_ask: OnAsk) -> None:
        """Wait for an answer, which sets `event`.

        Raises:
            PausedError: nothing of the run can go on before it, and `on_ask` is to pause then.
        """
        slots = self._slots
        self.give_back_slot()
        self._own = on_ask
        self.tell()
        try:
            if on_ask == "pause":
                await self._until_paused(event)
            else:
                await event.wait()
        finally:
            self._own = None
            self.tell()
        if slots is not None:
            await self.take_slot(slots)

    async def wait_for_request(self, event: Signal) -> None:
        """Wait for an answer of a model, which sets `event`; it keeps its slot, and its time runs.

        Raises:
            PausedError: nothing of the run can go on before it.
        """
        self._own = "pause"
        try:
            await self._until_paused(event)
        finally:
            self._own = None

    async def _until_paused(self, event: Signal) -> None:
        self.root.look()
        async with task_group() as tasks:

            async def until(one: Signal) -> None:
                await one.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until, event)
            tasks.start_soon(until, self.paused)
        if not event.is_set():
            raise PausedError

    def look(self) -> None:
        """Pause the run if nothing of it can go on."""
        if self.parts and self.is_stuck():
            self.paused.set()

    def is_stuck(self) -> bool:
        """Return true if the run is to pause for its answer, or for all that it waits for."""
        if self._own is not None:
            return self._own == "pause"
        return bool(self.parts) and all(part.is_stuck() for part in self.parts)

    @property
    def root(self) -> "Activity":
        return self if self._above is None else self._above.root

    def tell(self) -> None:
        """Its parts or its own state have changed: whether it waits now, and all above it."""
        waits = self._own is not None or (
            bool(self.parts) and all(part.waits for part in self.parts)
        )
        if waits == self.waits:
            return
        self.waits = waits
        now = anyio.current_time()
        if waits:
            self._since = now
            self._left = [(scope, scope.deadline - now) for scope in self._scopes]
        else:
            self._waited += now - self._since
        for scope, seconds in self._left:
            scope.deadline = float("inf") if waits else now + seconds
        self.on_wait(waits)
        if self._above is not None:
            self._above.tell()
