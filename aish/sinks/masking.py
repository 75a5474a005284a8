"""Events without their secrets (X4): done once, before any sink sees them."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from aish.core.events import Event, Place, ReasoningDelta, TextDelta, ToolOutput
from aish.system.secrets.secrets import Secrets, StreamMask

Piece = TextDelta | ReasoningDelta | ToolOutput
Record = TypeVar("Record")

# Words of ours, out of closed lists: nobody's secret, and readers rely on them.
_CLOSED = frozenset(
    {"digest", "finish", "kind", "level", "list", "state", "status", "stream", "verdict"}
)


def masked(event: Event, secrets: Secrets) -> Event:
    """The event with every secret in any of its fields replaced by its tag."""
    return _masked_record(event, secrets)


class Pieces:
    """Masks answers and output as they stream: a secret may be cut in two anywhere.

    What may be the beginning of a secret is held back until more has come, or until the turn or
    the call it belongs to has ended.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._open: dict[Place, dict[str, tuple[Piece, StreamMask]]] = {}

    def feed(self, piece: Piece) -> Piece | None:
        """What of the piece can be shown now, together with what was held back before it."""
        here = self._open.setdefault(piece.place, {})
        kind = piece.stream if isinstance(piece, ToolOutput) else type(piece).__name__
        if kind not in here:
            first = _masked_record(replace(piece, text=""), self._secrets)
            here[kind] = first, StreamMask(self._secrets)
        shown, mask = here[kind]
        text = mask.feed(piece.text)
        return replace(shown, text=text) if text else None

    def release(self, place: Place) -> list[Piece]:
        """What was held back of the turn or the call at `place`, which has ended."""
        ended = [(shown, mask.flush()) for shown, mask in self._open.pop(place, {}).values()]
        return [replace(shown, text=text) for shown, text in ended if text]

    def drop(self, place: Place) -> None:
        """Forget the turn at `place`, which was withdrawn."""
        self._open.pop(place, None)


def masked_place(place: Place, secrets: Secrets) -> Place:
    """A place without secrets: item keys and call ids come from outside."""
    return _masked_record(place, secrets)


def _masked_record(record: Record, secrets: Secrets) -> Record:
    changes = {}
    for name in _open_fields(type(record)):
        value = getattr(record, name)
        cleaned = _masked_value(value, secrets)
        if cleaned is not value:
            changes[name] = cleaned
    return replace(record, **changes) if changes else record  # type: ignore[type-var]  # is one


def _masked_value(value: Any, secrets: Secrets) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        cleaned = secrets.mask(value)
        return value if cleaned == value else cleaned
    if isinstance(value, tuple):
        return tuple(_masked_value(item, secrets) for item in value)
    if hasattr(value, "__dataclass_fields__"):
        return _masked_record(value, secrets)
    return secrets.mask_json(value)


_OPEN: dict[type, tuple[str, ...]] = {}


def _open_fields(kind: type[Any]) -> tuple[str, ...]:
    names = _OPEN.get(kind)
    if names is None:
        names = tuple(field.name for field in fields(kind) if field.name not in _CLOSED)
        _OPEN[kind] = names
    return names
