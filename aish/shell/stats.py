"""What a session has to know of its own events: what was used, said so far, denied (B8)."""

from dataclasses import field

from aish.core.events import (
    Event,
    PipelineSpent,
    RunStarted,
    TextDelta,
    TextWithdrawn,
    ToolDecided,
    TurnFinished,
    TurnStarted,
    Verdict,
)
from aish.core.frozen import slotted
from aish.core.messages import Spent
from aish.core.protocols import Emit
from aish.engine.limits import Spending

_REFUSED: frozenset[Verdict] = frozenset({"ask-no", "deny"})


@slotted
class Following:
    """An `Emit` that keeps what a session needs. `said` is the text of an unfinished answer."""

    emit: Emit
    spending: Spending = field(default_factory=Spending)
    denials: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    begun: bool = False
    """Whether `run.started` was told."""

    @property
    def said(self) -> str:
        """What the model has said since it was last asked, if its answer is not whole."""
        return "".join(self.pieces)

    def __call__(self, event: Event) -> None:
        """Take an event, and hand it on."""
        match event:
            case TextDelta(_, text):
                self.pieces.append(text)
            case TurnStarted() | TurnFinished() | TextWithdrawn():
                self.pieces.clear()
            case RunStarted():
                self.begun = True
            case ToolDecided() if event.verdict in _REFUSED:
                self.denials.append(event.tool)
            case _:
                pass
        self.spending.take(event)
        if isinstance(event, PipelineSpent):
            self.spending.add(Spent(event.turns, event.usage, event.cost_usd))
        self.emit(event)
