"""Items travel as Dask tasks: several in one, some ahead of what is in flight (B7)."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup
from distributed import Client, Future, KilledWorker

from aish.core.errors import UnavailableError
from aish.run.cluster.errand import Errand, Group
from aish.run.cluster.letters import Load
from aish.run.cluster.names import task_of
from aish.run.cluster.pickles import packed
from aish.run.cluster.task import work
from aish.run.cluster.visit import Visit

_MOST_PER_TASK = 32


@dataclass(slots=True)
class Tasks:
    """The tasks of one run; `ahead` is how many items were handed over and are not begun.

    `lose` is told of a session that is not there any more.
    """

    client: Client
    run: str
    slots: int
    workers: int
    lose: Callable[[Visit], None] = field(init=False)
    ahead: int = 0
    _waiting: list[Errand] = field(default_factory=list)
    _stirred: anyio.Event = field(default_factory=anyio.Event)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def hand_over(self, errand: Errand) -> None:
        """The item is to be run somewhere."""
        self.ahead += 1
        self.again(errand)

    def begun(self) -> None:
        """One of the items that were ahead is in flight now."""
        self.ahead -= 1
        self._stirred.set()

    def lost(self, errand: Errand) -> None:
        """An item in flight is ahead again: Dask runs its task anew, unless it gave that up."""
        self.ahead += 1
        if errand.group is not None and errand.group.dead:
            self.again(errand)

    def forget(self, errand: Errand) -> None:
        """The item is recorded, or not wanted any more."""
        if errand.owner is None:
            self.ahead -= 1
        if errand in self._waiting:
            self._waiting.remove(errand)
        if errand.group is not None:
            errand.group.drop(errand)
        self._stirred.set()

    def again(self, errand: Errand) -> None:
        """The item travels in another task."""
        if errand.group is not None:
            errand.group.drop(errand)
            errand.group = None
        self._waiting.append(errand)
        self._stirred.set()

    async def serve(self, tasks: TaskGroup) -> None:
        """Full tasks as soon as there is one; what is left over when the workers run out."""
        while True:
            await self._stirred.wait()
            self._stirred = anyio.Event()
            size = min(_MOST_PER_TASK, max(1, math.ceil(self.slots / max(1, self.workers))))
            while self._waiting and (
                len(self._waiting) >= size or self.ahead - len(self._waiting) < self.slots
            ):
                group, load = self._next(size)
                tasks.start_soon(self._follow, group, load)

    def _next(self, size: int) -> tuple[Group, Load]:
        chosen, self._waiting = self._waiting[:size], self._waiting[size:]
        group = Group(set(chosen))
        for errand in chosen:
            errand.group = group
        return group, Load(tuple(errand.unit for errand in chosen))

    async def _follow(self, group: Group, load: Load) -> None:
        """A task, until all of its items are recorded: then its future is released."""
        name = task_of(self.run, next(self._numbers))
        future = self.client.submit(work, self.run, packed(load), key=name, pure=False)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, future, group)
                await group.over.wait()
                tasks.cancel_scope.cancel()
        finally:
            future.release()

    async def _watch(self, future: Future, group: Group) -> None:
        """What Dask gives up, or believes to be done, is handed over anew.

        A task that is done has told us of all its items: one that has not ended is nobody's.
        """
        error = await future.exception()
        if error is not None and not isinstance(error, KilledWorker):
            raise unavailable(error)
        group.dead = True
        for errand in tuple(group.left):
            if errand.owner is not None and not errand.ended:
                self.lose(errand.owner)
            elif not errand.ended:
                self.again(errand)


def unavailable(error: BaseException) -> UnavailableError:
    """What to say where Dask fails us."""
    said = str(error).strip() or type(error).__name__
    return UnavailableError(
        f"the cluster could not do its part: {said.splitlines()[0]}",
        where="--cluster",
        hint="workers need the same aish, Python and distributed as this machine",
    )
