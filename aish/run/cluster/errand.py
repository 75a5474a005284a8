"""An item that was handed over, as the driver sees it, and the tasks that items travel in."""

from dataclasses import dataclass, field

import anyio

from aish.engine.records import StepRecord
from aish.run.cluster.letters import Unit
from aish.run.cluster.scopes import Scopes
from aish.run.cluster.visit import Visit


@dataclass(slots=True, eq=False)
class Errand:
    """One item: which session asked to begin it, which one runs it, what came of it.

    `made` are the calls that were sent and may not be sent again just so. `lost` counts the
    workers that were lost while they ran it.
    """

    unit: Unit
    wanted_by: "tuple[Visit, int] | None" = None
    owner: Visit | None = None
    record: StepRecord | None = None
    broken: str | None = None
    gone: bool = False
    made: list[str] = field(default_factory=list)
    lost: int = 0
    group: "Group | None" = None
    answers: Scopes = field(default_factory=Scopes)
    _news: anyio.Event = field(default_factory=anyio.Event)

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come of it where it runs."""
        return self.record is not None or self.broken is not None or self.gone

    async def changed(self) -> None:
        """Wait for news."""
        await self._news.wait()

    def stir(self) -> None:
        """There are news."""
        self._news.set()
        self._news = anyio.Event()


@dataclass(slots=True, eq=False)
class Group:
    """The items of one task that have not ended; `dead` if Dask does not run it any more."""

    left: set[Errand]
    dead: bool = False
    over: anyio.Event = field(default_factory=anyio.Event)

    def drop(self, errand: Errand) -> None:
        """The item has ended, or travels elsewhere."""
        self.left.discard(errand)
        if not self.left:
            self.over.set()
