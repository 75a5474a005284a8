"""The event log: each event of a run is numbered, dated, masked and passed to each sink.

Secrets are masked in events once, before any sink receives them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from aish.core.errors import JournalLostError
from aish.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BatchPlanned,
    Event,
    Place,
    ReasoningDelta,
    Stamped,
    TextDelta,
    TextWithdrawn,
    ToolDecided,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnFinished,
)
from aish.core.protocols import Clock
from aish.system.secrets.secrets import Secrets, StreamMask

Piece = TextDelta | ReasoningDelta | ToolOutput
Record = TypeVar("Record")

_PIECES = frozenset({TextDelta, ReasoningDelta, ToolOutput})
# Our own words from closed lists: never secret, and readers rely on them.
_CLOSED = frozenset(
    {
        *("digest", "finish", "kind", "level", "list", "state", "status", "stream"),
        *("structured_in", "verdict"),
    }
)


def mask_event(event: Event, secrets: Secrets) -> Event:
    """The event with every secret in any of its fields replaced by its tag."""
    return _mask_record(event, secrets)


class Pieces:
    """Masks answers and output as they stream: a secret may be split anywhere.

    What may be the beginning of a secret is held back until more arrives, or until its turn or call
    has ended.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._open: dict[Place, dict[str, tuple[Piece, StreamMask]]] = {}

    def feed(self, piece: Piece) -> Piece | None:
        """Return what can be shown now of the text held back and this piece."""
        here = self._open.setdefault(piece.place, {})
        kind = piece.stream if isinstance(piece, ToolOutput) else type(piece).__name__
        if kind not in here:
            first = _mask_record(replace(piece, text=""), self._secrets)
            here[kind] = first, StreamMask(self._secrets)
        part, mask = here[kind]
        text = mask.feed(piece.text)
        return replace(part, text=text) if text else None

    def release(self, place: Place) -> list[Piece]:
        """The text held back of the turn or call at `place`, which has ended."""
        ended = [(piece, mask.flush()) for piece, mask in self._open.pop(place, {}).values()]
        return [replace(piece, text=text) for piece, text in ended if text]

    def drop(self, place: Place) -> None:
        """Forget the turn at `place`, which was withdrawn."""
        self._open.pop(place, None)


def _mask_record(record: Record, secrets: Secrets) -> Record:
    changes = {}
    kind: type[Any] = type(record)
    names = _OPEN.get(kind)
    if names is None:
        names = tuple(field.name for field in fields(kind) if field.name not in _CLOSED)
        _OPEN[kind] = names
    for name in names:
        value = getattr(record, name)
        cleaned = _mask_value(value, secrets)
        if cleaned is not value:
            changes[name] = cleaned
    return replace(record, **changes) if changes else record  # type: ignore[type-var]  # is one


def _mask_value(value: Any, secrets: Secrets) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        cleaned = secrets.mask(value)
        return value if cleaned == value else cleaned
    if isinstance(value, tuple):
        return tuple(_mask_value(item, secrets) for item in value)
    if hasattr(value, "__dataclass_fields__"):
        return _mask_record(value, secrets)
    return secrets.mask_json(value)


_OPEN: dict[type, tuple[str, ...]] = {}


class Sink(Protocol):
    """A receiver of events, which shows or writes them."""

    @property
    def name(self) -> str:
        """The name in messages: `the journal`."""

    @property
    def deltas(self) -> bool:
        """True if it receives answers and output piece by piece, and not only whole."""
        return False

    def __call__(self, stamped: Stamped) -> None:
        """Take an event; after an `OSError` this sink receives no more events."""

    def close(self) -> None:  # ruff: ignore[no-self-use] - most sinks hold nothing back
        """Finish pending output; called once, and not after a failure."""
        return


OnFailure = Callable[[Sink, OSError], None]

# Answers of a person; that of a rule follows from the file, and the end of a question from its run.
_GIVEN = frozenset({"approve", "always", "deny"})
_MAY_NEED = frozenset(
    {ToolDecided, ToolStarted, ToolFinished, ApprovalAsked, ApprovalAnswered, BatchPlanned}
)


def _not_written(error: OSError) -> JournalLostError:
    return JournalLostError(f"the journal cannot be written: {error.strerror or error}")


class EventLog:
    """Passes the events of a run to its sinks. `emit` is the `Emit` of all packages above.

    Numbers continue from `after`, for a resumed run.

    The failure of a sink (a closed pipe, a full disk) is reported once, through `on_failure`; the
    sink is left out from then on, and the others continue.

    A question that stays open, what somebody answered, the start of a call that they approved, and
    a batch that is about to be submitted count only if they are in the `journal`, where there is
    one: else a resumed run would not know of the answer, or call or submit again.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        clock: Clock,
        secrets: Secrets,
        on_failure: OnFailure | None = None,
        after: int = 0,
        journal: Sink | None = None,
    ) -> None:
        self._sinks = tuple(sinks)
        self._live = tuple(sink for sink in sinks if sink.deltas)
        self._clock = clock
        self._secrets = secrets
        self._pieces = Pieces(secrets)
        self._on_failure = on_failure
        self._seq = after
        self._journal = journal
        self._lost: OSError | None = None
        self._approved: set[Place] = set()
        self._readers: tuple[Callable[[Stamped], None], ...] = ()

    def is_followed(self) -> bool:
        """Tell whether somebody follows the events beside the sinks."""
        return bool(self._readers)

    def follow(self, reader: Callable[[Stamped], None]) -> Callable[[], None]:
        """Tell `reader` of each event after the sinks, piece by piece too, until it is stopped."""

        def stop() -> None:
            self._readers = tuple(other for other in self._readers if other is not reader)

        self._readers = (*self._readers, reader)
        return stop

    def emit(self, event: Event) -> None:
        """Pass an event to every sink.

        Raises:
            JournalLostError: it counts only in the journal, and cannot be written there.
        """
        if event.__class__ in _PIECES:
            if self._live or self._readers:
                public: Event | None = event
                if self._secrets and isinstance(event, Piece):
                    public = self._pieces.feed(event)
                if public is not None:
                    self._send(public, self._live)
            return
        if self._secrets:
            if isinstance(event, TurnFinished | ToolFinished):
                for piece in self._pieces.release(event.place):
                    self._send(piece, self._live)
            elif isinstance(event, TextWithdrawn):
                self._pieces.drop(event.place)
            event = mask_event(event, self._secrets)
        # Not for each event of a long batch: nearly none of them is such.
        may_need = self._journal is not None and event.__class__ in _MAY_NEED
        needed = may_need and self._needs_journal(event)
        if needed and self._lost is not None:
            raise _not_written(self._lost)
        self._send(event, self._sinks, needed=needed)

    def before(self, sink: Sink, show: Callable[[float], None]) -> None:
        """Let a sink show what comes before the first event; `show` takes the time."""
        if sink not in self._sinks:
            return
        try:
            show(self._clock.now())
        except OSError as error:
            self._fail(sink, error)

    def retell(self, earlier: Iterable[tuple[Sink, Stamped]]) -> None:
        """Pass events of an earlier part of the run to those sinks that need them."""
        for sink, stamped in earlier:
            if sink in self._sinks:
                try:
                    sink(stamped)
                except OSError as error:
                    self._fail(sink, error)

    def close(self) -> None:
        """Close every sink that still works."""
        for sink in self._sinks:
            try:
                sink.close()
            except OSError as error:
                self._fail(sink, error)
        self._sinks = self._live = ()
        self._readers = ()

    def _needs_journal(self, event: Event) -> bool:
        match event:
            case ToolDecided():
                if event.approval is not None and event.verdict in {"auto", "ask-yes"}:
                    self._approved.add(event.place)
            case ToolStarted():
                return event.place in self._approved
            case ToolFinished():
                self._approved.discard(event.place)
            case ApprovalAsked():
                return event.expires is not None
            case ApprovalAnswered():
                return event.answer in _GIVEN and event.way != "rule"
            case BatchPlanned():
                return True
            case _:
                pass
        return False

    def _send(self, event: Event, sinks: tuple[Sink, ...], *, needed: bool = False) -> None:
        self._seq += 1
        stamped = Stamped(self._seq, self._clock.now(), event)
        for sink in sinks:
            try:
                sink(stamped)
            except OSError as error:
                self._fail(sink, error)
                if needed and sink is self._journal:
                    raise _not_written(error) from error
        for reader in self._readers:
            reader(stamped)

    def _fail(self, sink: Sink, error: OSError) -> None:
        if sink not in self._sinks:
            return
        if sink is self._journal:
            self._lost = error
        self._sinks = tuple(other for other in self._sinks if other is not sink)
        self._live = tuple(other for other in self._live if other is not sink)
        if self._on_failure is not None:
            self._on_failure(sink, error)
