"""What a session has to know of its own events: what was used, said so far, denied (B8)."""

from dataclasses import field
from typing import TYPE_CHECKING

from aish.agent.runtime import add_cost, add_usage
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
from aish.core.messages import Usage
from aish.core.protocols import Emit
from aish.engine.limits import Spending, Used

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
            self.spending.add(Used(event.turns, event.usage, event.cost_usd))
        self.emit(event)


if TYPE_CHECKING:
    from aish.engine.resume_state import ResumeState


def with_earlier(carried: "ResumeState | None", used: Used) -> Used:
    """What this part has used, with what the parts before it had."""
    if carried is None or not carried.spent.turns:
        return used
    before = carried.spent
    usage = Usage(before.tokens_in, before.tokens_out)
    return Used(
        used.turns + before.turns,
        # Where nothing was asked yet, nothing is unknown.
        usage if used.usage is None and not used.turns else add_usage(usage, used.usage or Usage()),
        add_cost(before.cost_usd, used.cost_usd),
    )
