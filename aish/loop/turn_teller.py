"""Tells of a conversation's turns as events, so that it can be gone on with later."""

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

from aish.loop.equipment import Keep
from aish.loop.turn_json import turn_to_json
from aish.vocab.event_parts import Place
from aish.vocab.json import JsonObject
from aish.vocab.messages import Turn
from aish.vocab.protocols import Emit
from aish.vocab.turn_events import HistoryReplaced, TurnAdded


class TurnTeller:
    """`loop.conversation.Heard` that emits events; those of now are at `place`.

    An image is kept once, however often its turn is told. One that cannot be kept is told of all
    the same: the conversation itself goes on.
    """

    def __init__(self, emit: Emit, keep: Keep, place: Place) -> None:
        self.place = place
        self._emit = emit
        self._keep = keep
        self._kept: dict[str, str | None] = {}

    def added(self, turn: Turn) -> None:
        """A turn was added at the end."""
        self._emit(TurnAdded(self.place, self.told(turn)))

    def replaced(self, turns: Sequence[Turn], reason: str) -> None:
        """These turns stand in the place of all there were."""
        told = tuple([self.told(turn) for turn in turns])
        self._emit(HistoryReplaced(self.place, told, reason))

    def told(self, turn: Turn) -> JsonObject:
        """The turn as events tell of it."""
        return turn_to_json(turn, self._once)

    def _once(self, name: str, content: bytes) -> str | None:
        digest = sha256(content).hexdigest()
        if digest not in self._kept:
            self._kept[digest] = None
            with suppress(OSError):
                self._kept[digest] = self._keep(name, content)
        return self._kept[digest]
