"""The items that run on a worker: begun when the driver says so, cancelled when it does (B7)."""

import traceback
from dataclasses import dataclass, field, replace

import anyio

from aish.engine.cancellation import Cancellation
from aish.engine.execution.step import run_unit
from aish.engine.limits.usage import Spending
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord
from aish.engine.resources.resources import Resources
from aish.engine.steps.context import Inner, StepContext
from aish.run.cluster.letters import Begin, Broken, Done, Load, Scene, Start, Unit
from aish.run.cluster.link import Link
from aish.run.cluster.proxies import Files, of_item


@dataclass(slots=True)
class ItemRuns:
    """All of them in one session, with what it has open."""

    run_id: str
    plan: Plan
    resources: Resources
    link: Link
    files: Files
    _course: Cancellation = field(default_factory=Cancellation)
    _scenes: dict[int, Scene] = field(default_factory=dict)
    _scopes: dict[int, anyio.CancelScope] = field(default_factory=dict)
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _over: bool = False

    def play(self, scene: Scene) -> None:
        """What the items of a step have in common."""
        self._scenes[scene.number] = scene
        self._stir()

    def stop(self) -> None:
        """Nothing new is begun: no other try of an item, no other step of a sub-pipeline."""
        self._course.stop("the run begins nothing new")

    def cancel(self, ticket: int) -> None:
        """Nobody waits for the item any more."""
        scope = self._scopes.get(ticket)
        if scope is not None:
            scope.cancel()

    async def close(self) -> None:
        """Cancel all there are, and wait for their end."""
        self._over = True
        for scope in tuple(self._scopes.values()):
            scope.cancel()
        while self._scopes:
            await self._changed.wait()

    async def run(self, load: Load) -> None:
        """Run items side by side; returns when the driver has recorded what came of them."""
        async with anyio.create_task_group() as tasks:
            for unit in load.units:
                tasks.start_soon(self._run, unit)

    async def _run(self, unit: Unit) -> None:
        if self._over:
            return
        with anyio.CancelScope() as scope:
            self._scopes[unit.ticket] = scope
            try:
                begun = await self.link.ask(Begin(), unit.ticket)
                if isinstance(begun, Start):
                    await self._begun(unit, begun)
                    await self.link.flushed()
            finally:
                del self._scopes[unit.ticket]
                self._stir()

    async def _begun(self, unit: Unit, begun: Start) -> None:
        while unit.scene not in self._scenes:
            await self._changed.wait()
        try:
            record = await self._record(unit, self._scenes[unit.scene], begun)
        except Exception:  # ruff: ignore[blind-except] - a bug: the driver tells of it and ends
            self.link.post(Broken(unit.ticket, traceback.format_exc()))
        else:
            self.link.post(Done(unit.ticket, record))

    async def _record(self, unit: Unit, scene: Scene, begun: Start) -> StepRecord:
        stage = self._stage(unit, scene, begun)
        step = next(step for step in stage.plan.steps if step.id == scene.step)
        record = await run_unit(step, stage)
        # Calls are for templates of later steps.
        return record if stage.name(step) in scene.needed else replace(record, calls=())

    def _stage(self, unit: Unit, scene: Scene, begun: Start) -> StepContext:
        spending = Spending()
        resources = of_item(
            self.resources, self.link, self.run_id, unit.ticket, spending, self.files
        )
        plan = self.plan
        for step in scene.prefix.split("/")[:-1]:
            plan, resources = plan.inner[step], resources.inner[step]
        inner: Inner | None = None
        if plan.inner:
            from aish.engine.execution.sub_pipeline import run_inner as inner
        stage = StepContext(
            plan,
            scene.options,
            resources,
            # The item has its place at the driver; what is within it needs none.
            anyio.CapacityLimiter(float("inf")),
            dict(scene.records),
            course=self._course,
            spending=spending,
            needed=scene.needed,
            prefix=scene.prefix,
            within=scene.within,
            inner=inner,
            item=unit.item,
            turn=begun.used.turns,
        )
        mine = next(one for one in plan.steps if one.id == scene.step)
        place = stage.place(mine)
        spending.items[place.step, place.item or ""] = begun.used
        return stage

    def _stir(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
