"""The event log: every event of a run is numbered, dated, masked and handed to each sink."""

from collections.abc import Callable, Sequence
from typing import Protocol

from aish.core.events import (
    Event,
    ReasoningDelta,
    Stamped,
    TextDelta,
    TextWithdrawn,
    ToolFinished,
    ToolOutput,
    TurnFinished,
)
from aish.core.protocols import Clock
from aish.sinks.masking import Piece, Pieces, masked
from aish.system.secrets.secrets import Secrets


class Sink(Protocol):
    """Something events are shown by or written to."""

    @property
    def name(self) -> str:
        """What a person calls it: `the journal`."""
        ...

    @property
    def deltas(self) -> bool:
        """Whether it wants answers, and output, piece by piece, and not only whole."""
        ...

    def __call__(self, stamped: Stamped) -> None:
        """Take an event; an `OSError` ends this sink's part in the run."""
        ...

    def close(self) -> None:
        """Finish what was begun; called once, and not after a failure."""
        ...


OnFailure = Callable[[Sink, OSError], None]


class EventLog:
    """Where a run's events go. `emit` is the `Emit` of all rooms above.

    Events are numbered from the one `after` which they come: a run that is gone on with counts on.

    A sink that fails (a closed pipe, a full disk) is told of once, through `on_failure`, and left
    out from then on; the others go on.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        clock: Clock,
        secrets: Secrets,
        on_failure: OnFailure | None = None,
        after: int = 0,
    ) -> None:
        self._sinks = tuple(sinks)
        self._live = tuple(sink for sink in sinks if sink.deltas)
        self._clock = clock
        self._secrets = secrets
        self._pieces = Pieces(secrets)
        self._on_failure = on_failure
        self._seq = after

    def emit(self, event: Event) -> None:
        """Hand an event to every sink."""
        if isinstance(event, (TextDelta, ReasoningDelta, ToolOutput)):
            if self._live:
                self._emit_piece(event)
            return
        if self._secrets:
            self._end_pieces(event)
            event = masked(event, self._secrets)
        self._send(event, self._sinks)

    def close(self) -> None:
        """Close every sink that still works."""
        for sink in self._sinks:
            try:
                sink.close()
            except OSError as error:
                self._fail(sink, error)
        self._sinks = self._live = ()

    def _emit_piece(self, piece: Piece) -> None:
        shown = self._pieces.feed(piece) if self._secrets else piece
        if shown is not None:
            self._send(shown, self._live)

    def _end_pieces(self, event: Event) -> None:
        """Show what was held back of what has ended; forget it of a turn withdrawn."""
        if isinstance(event, TurnFinished | ToolFinished):
            for piece in self._pieces.release(event.place):
                self._send(piece, self._live)
        elif isinstance(event, TextWithdrawn):
            self._pieces.drop(event.place)

    def _send(self, event: Event, sinks: tuple[Sink, ...]) -> None:
        self._seq += 1
        stamped = Stamped(self._seq, self._clock.now(), event)
        for sink in sinks:
            try:
                sink(stamped)
            except OSError as error:
                self._fail(sink, error)

    def _fail(self, sink: Sink, error: OSError) -> None:
        if sink not in self._sinks:
            return
        self._sinks = tuple(other for other in self._sinks if other is not sink)
        self._live = tuple(other for other in self._live if other is not sink)
        if self._on_failure is not None:
            self._on_failure(sink, error)
