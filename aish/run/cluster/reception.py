"""Who the workers of a run are, what they say, and when one of them is gone (B7)."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup
from distributed import Client, Queue

from aish import __version__
from aish.core.errors import UnavailableError
from aish.engine.plan.plan import Plan
from aish.run.cluster.clerk import Clerk
from aish.run.cluster.errand import Errand
from aish.run.cluster.letters import Close, Hello, Opening, Orders, Parcel, Scene
from aish.run.cluster.names import closed_of, desk_of, letters_of
from aish.run.cluster.pickles import packed, unpacked
from aish.run.cluster.scopes import Scopes
from aish.run.cluster.tasks import Tasks, unavailable
from aish.run.cluster.visit import Visit

_LOOK_SECONDS = 0.5
_PATIENCE = 60.0
_CLOSING = 5.0


@dataclass(slots=True)
class Reception:
    """The sessions of one run. `errands` are the items that were handed over, by ticket.

    `alive` says whether there can still be workers, `stopped` whether the run begins nothing new.
    """

    client: Client
    run: str
    plan: Plan
    keeps: bool
    clerk: Clerk
    tasks: Tasks
    errands: dict[int, Errand]
    alive: Callable[[], bool]
    stopped: Callable[[], bool]
    scenes: list[Scene] = field(default_factory=list)
    _visits: dict[str, Visit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tasks.lose = self.lose

    def announce(self, scene: Scene) -> None:
        """Tell every session, those to come too, what the items of a step have in common."""
        self.scenes.append(scene)
        for visit in self._visits.values():
            visit.order(scene)

    async def look(self) -> None:
        """See which workers are there, again and again.

        Raises:
            UnavailableError: there is none any more.
        """
        absent = 0.0
        while True:
            found = await self._addresses()
            for visit in tuple(self._visits.values()):
                if visit.alive and visit.address not in found:
                    self.lose(visit)
            self._share(len(found))
            absent = 0.0 if found else absent + _LOOK_SECONDS
            if not self.alive() or (self.errands and absent >= _PATIENCE):
                said = "the cluster has no worker any more"
                raise UnavailableError(said, where="--cluster", hint="`--resume` goes on from here")
            await anyio.sleep(_LOOK_SECONDS)

    async def receive(self, tasks: TaskGroup) -> None:
        """Take what the workers say, in its order.

        Raises:
            UnavailableError: the scheduler is gone, or a worker cannot do what is needed.
        """
        queue = await Queue(desk_of(self.run), client=self.client)
        while True:
            try:
                data = await queue.get()
            except OSError as error:
                raise unavailable(error) from error
            parcel: Parcel = unpacked(data)
            visit = self._visits.get(parcel.session) or self._welcome(parcel, tasks)
            if visit.alive:
                for letter in parcel.letters:
                    self.clerk.take(letter, visit, self, tasks)
                visit.heard = parcel.number
                visit.order()

    async def close(self) -> None:
        """Tell the workers that the run is over, and wait until they have closed what is open."""
        visits = [visit for visit in self._visits.values() if visit.alive]
        close = packed(Orders(0, stopped=True, letters=(Close(),)))
        with anyio.move_on_after(_CLOSING, shield=True), suppress(OSError):
            for visit in visits:
                queue = await Queue(letters_of(self.run, visit.id), client=self.client)
                await queue.put(close)
            closed = await Queue(closed_of(self.run), client=self.client)
            for _ in visits:
                await closed.get()

    def lose(self, visit: Visit) -> None:
        """A worker is gone: what it ran is not done, and nothing it says counts any more."""
        visit.lose()
        for errand in tuple(self.errands.values()):
            if errand.wanted_by is not None and errand.wanted_by[0] is visit:
                errand.wanted_by = None
            if errand.owner is visit and not errand.ended:
                errand.owner = None
                errand.lost += 1
                errand.answers.cancel()
                errand.answers = Scopes()
                self.tasks.lost(errand)
            errand.stir()

    def _welcome(self, parcel: Parcel, tasks: TaskGroup) -> Visit:
        """A session that was not known: the first letter says whose it is."""
        hello = parcel.letters[0]
        assert isinstance(hello, Hello)
        for other in tuple(self._visits.values()):
            if other.alive and other.address == hello.address:
                self.lose(other)
        if hello.version != __version__:
            said = f"a worker has aish {hello.version}, and this is {__version__}"
            raise UnavailableError(said, where=hello.address, hint="install the same on both")
        visit = Visit(parcel.session, hello.address, anyio.CapacityLimiter(self._part()))
        self._visits[visit.id] = visit
        tasks.start_soon(self._write, visit)
        visit.order(Opening(self.run, self.plan, self.keeps), *self.scenes)
        return visit

    async def _write(self, visit: Visit) -> None:
        queue = await Queue(letters_of(self.run, visit.id), client=self.client)
        with visit.work.held():
            await visit.send(queue.put, self.stopped)

    async def _addresses(self) -> frozenset[str]:
        try:
            told = await self.client.scheduler.identity(n_workers=-1)
        except OSError as error:
            raise unavailable(error) from error
        return frozenset(told["workers"])

    def _share(self, workers: int) -> None:
        """Each worker has its part of the slots."""
        self.tasks.workers = max(1, workers)
        for visit in self._visits.values():
            visit.places.total_tokens = self._part()

    def _part(self) -> int:
        here = sum(visit.alive for visit in self._visits.values())
        return max(1, math.ceil(self.tasks.slots / max(self.tasks.workers, here)))
