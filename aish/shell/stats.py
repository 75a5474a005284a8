"""Data that a session needs from its own events: usage, calls, text so far."""

from dataclasses import field

from aish.core.events import Event, RunStarted, TextDelta, TextWithdrawn, TurnFinished, TurnStarted
from aish.core.frozen import slotted
from aish.core.protocols import Emit
from aish.engine.limits import Spending


@slotted
class SessionStats:
    """An `Emit` that collects what a session needs. `said` is the text of an unfinished answer."""

    emit: Emit
    spending: Spending = field(default_factory=Spending)
    pieces: list[str] = field(default_factory=list)
    begun: bool = False
    """Whether `run.started` was told."""
    early: list[Event] = field(default_factory=list)

    def tell_when_begun(self, event: Event) -> None:
        """Process an event of somebody else, who may come before the session has begun."""
        if self.begun:
            self(event)
        else:
            self.early.append(event)

    def tell_early(self) -> None:
        """Process messages from before the session began."""
        early, self.early = self.early, []
        for event in early:
            self(event)

    @property
    def said(self) -> str:
        """The model's text since the last request, if its answer is not complete."""
        return "".join(self.pieces)

    def __call__(self, event: Event) -> None:
        match event:
            case TextDelta(_, text):
                self.pieces.append(text)
            case TurnStarted() | TurnFinished() | TextWithdrawn():
                self.pieces.clear()
            case RunStarted():
                self.begun = True
            case _:
                pass
        notice = self.spending.take(event)
        self.emit(event)
        if notice is not None:
            self.emit(notice)
