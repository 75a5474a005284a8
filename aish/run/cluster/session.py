"""A worker's part in one run, in a thread and an event loop of its own (B7).

Begun by the first task of the run that comes to the worker, over at the end of the run, or when
the driver has not been heard of for a while.
"""

import asyncio
import os
import secrets
import threading
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

import anyio
from distributed import Client, Queue, Worker

from aish import __version__
from aish.core.errors import AishError
from aish.core.events import Event, Notice
from aish.engine.environment import RunEnvironment
from aish.engine.resources.resources import open_resources, parts, require_lock, require_servers
from aish.engine.run_folder import RunFolder
from aish.run.cluster.at_home import as_client, at_home
from aish.run.cluster.item_runs import ItemRuns
from aish.run.cluster.letters import (
    Cancel,
    Close,
    Hello,
    Load,
    Opened,
    Opening,
    Orders,
    Scene,
    Told,
)
from aish.run.cluster.link import Link
from aish.run.cluster.names import closed_of, desk_of, letters_of
from aish.run.cluster.pickles import unpacked
from aish.run.cluster.proxies import Files, meter_of
from aish.system.clock import SystemClock
from aish.terminal.unattended import Unattended

SILENCE = 30.0
"""Seconds without a word of the driver after which it is gone."""


class Session(threading.Thread):
    """One run on one worker."""

    def __init__(self, run: str, worker: Worker) -> None:
        super().__init__(name=f"aish {run}", daemon=True)
        self._scheduler = worker.scheduler.address
        self._security = as_client(worker)
        self._core = _Core(run, worker.address)
        self._loop: Future[asyncio.AbstractEventLoop] = Future()

    def run(self) -> None:
        """Be there until the run is over."""
        anyio.run(self._live)

    def work(self, load: Load) -> None:
        """Run the items of a task, all at the same time; returns when the driver has them all."""
        working = asyncio.run_coroutine_threadsafe(self._core.work(load), self._loop.result())
        try:
            working.result()
        except CancelledError:
            # The run is over, and with it this loop.
            return

    async def _live(self) -> None:
        client = Client(
            self._scheduler, security=self._security, asynchronous=True, set_as_default=False
        )
        self._loop.set_result(asyncio.get_running_loop())
        async with client:
            await self._core.live(client)


@dataclass(slots=True)
class _Core:
    """What lives in the session's event loop."""

    run: str
    address: str
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    opening: Opening | None = None
    runs: ItemRuns | None = None
    over: anyio.Event = field(default_factory=anyio.Event)
    ready: anyio.Event = field(default_factory=anyio.Event)
    came: anyio.Event = field(default_factory=anyio.Event)
    early: list[Scene] = field(default_factory=list)

    async def live(self, client: Client) -> None:
        """Say hello, open what the run needs, and be there for its items until it is over."""
        desk = await Queue(desk_of(self.run), client=client)
        letters = await Queue(letters_of(self.run, self.id), client=client)
        link = Link(self.id, desk.put)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.send)
            tasks.start_soon(self._listen, letters, link)
            link.post(Hello(self.address, __version__))
            await self._open(link)
            await self.over.wait()
            tasks.cancel_scope.cancel()
        closed = await Queue(closed_of(self.run), client=client)
        await closed.put(self.id)

    async def work(self, load: Load) -> None:
        """Run items side by side."""
        await self.ready.wait()
        if self.runs is not None:
            await self.runs.run(load)

    async def _open(self, link: Link) -> None:
        """Hold open what the run needs until it is over."""
        await self.came.wait()
        if self.opening is None:
            return
        try:
            await self._opened(self.opening, link)
        except AishError as error:
            link.post(Opened(error))

    async def _opened(self, opening: Opening, link: Link) -> None:
        plan = at_home(opening.plan)

        def tell(event: Event) -> None:
            # What servers say while they are opened, those of the driver have said.
            if self.ready.is_set() and isinstance(event, Notice):
                link.post(Told(None, event))

        folder = RunFolder(self.run, None)
        environment = RunEnvironment(tell, Unattended(), SystemClock(), folder, os.environ)
        async with open_resources(plan, environment, meter_of(plan, link)) as resources:
            for part, opened in parts(plan, resources):
                require_servers(part, opened.servers)
                require_lock(opened.tools)
            self.runs = ItemRuns(self.run, plan, resources, link, Files(opening.keeps, link))
            for scene in self.early:
                self.runs.play(scene)
            self.ready.set()
            link.post(Opened())
            await self.over.wait()
            await self.runs.close()

    async def _listen(self, queue: Queue, link: Link) -> None:
        """Take what the driver says, until it says that the run is over or says nothing more."""
        while not self.over.is_set():
            try:
                orders: Orders = unpacked(await queue.get(timeout=SILENCE))
            except (TimeoutError, OSError):
                break
            self._take(orders)
            link.heard(orders)
        self.over.set()
        self.came.set()

    def _take(self, orders: Orders) -> None:
        if orders.stopped and self.runs is not None:
            self.runs.stop()
        for letter in orders.letters:
            match letter:
                case Opening():
                    self.opening = letter
                    self.came.set()
                case Scene() if self.runs is None:
                    self.early.append(letter)
                case Scene() if self.runs is not None:
                    self.runs.play(letter)
                case Cancel(ticket) if self.runs is not None:
                    self.runs.cancel(ticket)
                case Close():
                    self.over.set()
                case _:
                    pass
