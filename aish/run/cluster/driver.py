"""The driver's side of a cluster: items go out, their records come back, once each (B7).

What workers say comes by a queue, in order; what they ask is answered the same way. So the
journal, the person, the limits and the lock are all here.
"""

import itertools
from dataclasses import dataclass, field, replace

from anyio.abc import TaskGroup

from aish.config.steps import Step
from aish.core.errors import InternalError
from aish.engine.records import StepRecord, without_histories
from aish.engine.steps.context import Entrance, StepContext
from aish.run.cluster.errand import Errand
from aish.run.cluster.letters import Answer, Cancel, Scene, Start, Unit
from aish.run.cluster.losses import after_loss, told_again
from aish.run.cluster.reception import Reception
from aish.run.cluster.tasks import Tasks
from aish.run.cluster.visit import Visit

AHEAD = 3
"""How many times the slots are handed over, so that no worker waits for its next item."""


@dataclass(slots=True)
class Driver:
    """`stage.Carrier` of one run."""

    tasks: Tasks
    reception: Reception
    retry_unknown: bool
    _scenes: dict[tuple[str, str | None], Scene] = field(default_factory=dict)
    _tickets: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def window(self, width: int) -> int:
        """How many items are handed over where `width` may be in flight."""
        return AHEAD * min(width, self.tasks.slots)

    async def carry(self, step: Step, stage: StepContext, entrance: Entrance) -> StepRecord | None:
        """The end of the item that `stage` is for; nothing if it was not begun."""
        assert stage.item is not None
        unit = Unit(next(self._tickets), self._scene(step, stage), stage.item)
        errand = self.reception.errands[unit.ticket] = Errand(unit)
        self.tasks.hand_over(errand)
        try:
            while True:
                record = await self._tried(errand, step, stage, entrance)
                if record is not None or errand.gone:
                    return record
        finally:
            self._forget(errand)

    async def serve(self, tasks: TaskGroup) -> None:
        """Be there for the workers until cancelled."""
        tasks.start_soon(self.reception.look)
        tasks.start_soon(self.reception.receive, tasks)
        await self.tasks.serve(tasks)

    async def close(self) -> None:
        """The run is over."""
        await self.reception.close()

    async def _tried(
        self, errand: Errand, step: Step, stage: StepContext, entrance: Entrance
    ) -> StepRecord | None:
        """One worker's try; nothing if the item was not begun, or its worker was lost."""
        while errand.wanted_by is None:
            await errand.changed()
        visit, number = wanted = errand.wanted_by
        async with visit.places, entrance.enter() as goes_on:
            if errand.wanted_by is not wanted or not visit.alive:
                return None
            errand.gone = not goes_on
            if errand.gone:
                return None
            self._begin(errand, step, stage, entrance)
            used = stage.spending.of(stage.place(step))
            visit.order(Answer(number, Start(used)))
            await _ended(errand, visit)
        if errand.broken is not None:
            raise InternalError(f"on a worker: {errand.broken.strip().splitlines()[-1]}")
        if errand.record is None:
            return after_loss(errand, step, stage, retry_unknown=self.retry_unknown)
        return errand.record

    def _begin(self, errand: Errand, step: Step, stage: StepContext, entrance: Entrance) -> None:
        assert errand.wanted_by is not None
        if errand.lost:
            told_again(errand, step, stage)
        else:
            entrance.begin()
        errand.owner, errand.wanted_by = errand.wanted_by[0], None
        self.tasks.begun()

    def _forget(self, errand: Errand) -> None:
        """It has ended, or nobody waits for it any more: its worker need not either."""
        del self.reception.errands[errand.unit.ticket]
        self.tasks.forget(errand)
        errand.answers.cancel()
        if errand.wanted_by is not None:
            visit, number = errand.wanted_by
            visit.order(Answer(number))
        if errand.owner is not None and errand.record is None:
            errand.owner.order(Cancel(errand.unit.ticket))

    def _scene(self, step: Step, stage: StepContext) -> int:
        """The number of what the items of `step` have in common."""
        key = stage.name(step), stage.within
        scene = self._scenes.get(key)
        if scene is None:
            scene = self._scenes[key] = Scene(
                len(self._scenes),
                step.id,
                stage.prefix,
                stage.within,
                replace(stage.options, environ={}),
                without_histories(stage.records),
                stage.needed,
            )
            self.reception.announce(scene)
        return scene.number


async def _ended(errand: Errand, visit: Visit) -> None:
    while not errand.ended and errand.owner is visit:
        await errand.changed()
