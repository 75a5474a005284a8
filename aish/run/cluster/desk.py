"""What the driver does with what workers say and ask: it alone decides, counts and tells (P10)."""

from dataclasses import dataclass, field

from aish.core.errors import AishError
from aish.core.events import NOWHERE, Notice, Place, ToolStarted
from aish.core.protocols import Meter
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import Resources
from aish.engine.run_folder import RunFolder
from aish.policy.gate import Decision, Proposal
from aish.run.cluster.errand import Errand
from aish.run.cluster.letters import (
    Answer,
    Asked,
    CountCall,
    Decide,
    HoldEnded,
    Kept,
    Path,
    PutDown,
    Redeemed,
    Reserve,
    Told,
)
from aish.run.cluster.visit import Visit
from aish.run.resuming.repeatable import RepeatableTools


@dataclass(slots=True)
class Desk:
    """The run's own gates, meters, journal and folder, to who asks from elsewhere."""

    plan: Plan
    resources: Resources
    folder: RunFolder
    _granted: dict[tuple[Path, int], tuple[Decision, Proposal]] = field(default_factory=dict)
    _repeatable: dict[Path, RepeatableTools] = field(default_factory=dict)

    def tell(self, letter: Told, errand: Errand | None) -> None:
        """Emit an event of a worker."""
        event = letter.event
        match event:
            case ToolStarted(place, tool) if errand and not self._may_repeat(place, tool):
                errand.made.append(tool)
        self.resources.runtime.emit(event)

    def redeem(self, letter: Redeemed) -> None:
        """Use up an approval that was given to a worker.

        Raises:
            ApprovalError: it was not given, or was used before.
        """
        decision, proposal = self._granted.pop((letter.path, letter.number))
        self._opened(letter.path).runtime.gate.redeem(decision, proposal)

    def keep(self, letter: Kept) -> None:
        """Put a file of a worker into the run's folder; a full disk costs the file, not the run."""
        try:
            self.folder.keep_as(letter.name, letter.data)
        except OSError as error:
            said = f"{letter.name} could not be kept: {error.strerror or error}"
            self.resources.runtime.emit(Notice(NOWHERE, "warning", "not_kept", said))

    async def answer(self, asked: Asked, visit: Visit) -> None:
        """Answer a question, which may take a person's time."""
        try:
            value = await self._value(asked, visit)
        except AishError as error:
            visit.order(Answer(asked.number, error=error))
        else:
            visit.order(Answer(asked.number, value))

    async def _value(self, asked: Asked, visit: Visit) -> object:
        match asked.question:
            case Decide(path, proposal):
                return await self._decide(path, proposal)
            case PutDown(path, decision):
                return await self._opened(path).runtime.gate.is_put_down(decision)
            case Reserve(path, place, alias, size, max_tokens):
                hold = await self._meter(path).reserve(place, alias, size, max_tokens)
                return visit.lend(hold)
            case CountCall(path, place):
                await self._meter(path).count_call(place)
        return None

    async def _decide(self, path: Path, proposal: Proposal) -> Decision:
        decision = await self._opened(path).runtime.gate.decide(proposal)
        if decision.allowed:
            self._granted[path, decision.number] = decision, proposal
        return decision

    def _opened(self, path: Path) -> Resources:
        found = self.resources
        for step in path:
            found = found.inner[step]
        return found

    def _meter(self, path: Path) -> Meter:
        meter = self._opened(path).runtime.meter
        assert meter is not None, "a run has a meter"
        return meter

    def _may_repeat(self, place: Place, tool: str) -> bool:
        path = tuple((place.step or "").split("/")[:-1])
        if path not in self._repeatable:
            plan = self.plan
            for step in path:
                plan = plan.inner[step]
            self._repeatable[path] = RepeatableTools(plan)
        return self._repeatable[path](tool)


def end_hold(letter: HoldEnded, visit: Visit) -> None:
    """A request of a worker is over."""
    hold = visit.holds.pop(letter.hold, None)
    if hold is None:
        return
    if letter.finish is not None:
        hold.settle(letter.finish)
    hold.close(begun=letter.begun)
