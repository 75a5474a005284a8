"""Records a conversation's turns as events: to continue it later, or to show what was sent."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

from aish.agent.runtime import AgentRuntime, Keep, Mask
from aish.agent.turn_json import SECRETS, SOURCES, turn_to_json
from aish.core.events import HistoryReplaced, MessagePurpose, Place, TurnAdded
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Turn
from aish.core.protocols import Emit
from aish.core.sources import NO_SOURCES, names_of

LONG: Final = 32 * 1024
"""A text of more characters is in a file of its own."""
REPEATED: Final = 1024
"""So is one of more than these that was told in this run before: the same system text may go out
with each of a hundred thousand items."""
_BEGINNING: Final = 2_000
_OF_REPEATED: Final = 200
_REMEMBERED: Final = 1000


class TurnRecorder:
    """`agent.conversation.TurnObserver` that emits events, currently at `place`.

    An image is stored once, however often its turn is recorded. If it cannot be stored, the turn is
    recorded anyway. `is_restorable` says of a turn whether its secrets, which the journal masks,
    can be put back: the turn then says so.
    """

    def __init__(
        self,
        emit: Emit,
        keep: Keep,
        place: Place,
        is_restorable: Callable[[JsonValue], bool] = lambda _: False,
    ) -> None:
        self.place = place
        self._is_restorable = is_restorable
        self._emit = emit
        self._keep = keep
        self._kept: dict[str, str | None] = {}
        self._sources = NO_SOURCES
        """Those of the turns so far: of each turn, what it adds to them is told."""

    def add_turn(self, turn: Turn, *, told: bool = False) -> None:
        """Add a turn at the end; all are needed to continue the conversation."""
        del told
        self._emit(TurnAdded(self.place, self._with_sources(turn)))

    def replace_turns(self, turns: Sequence[Turn], reason: str) -> None:
        self._sources = NO_SOURCES
        turns_data = tuple([self._with_sources(turn) for turn in turns])
        self._emit(HistoryReplaced(self.place, turns_data, reason))

    def to_json(self, turn: Turn) -> JsonObject:
        data = turn_to_json(turn, self._once)
        return {**data, SECRETS: True} if self._is_restorable(data) else data

    def _with_sources(self, turn: Turn) -> JsonObject:
        data, new = self.to_json(turn), turn.sources - self._sources
        self._sources |= new
        return {**data, SOURCES: names_of(new)} if new else data

    def _once(self, name: str, content: bytes) -> str | None:
        digest = sha256(content).hexdigest()
        if digest not in self._kept:
            self._kept[digest] = None
            with suppress(OSError):
                self._kept[digest] = self._keep(name, content)
        return self._kept[digest]


class RequestRecorder:
    """`agent.conversation.TurnObserver` that records what is sent, each message once.

    Content of other events is not repeated. A long text is stored in a file, which is referenced
    with the text's beginning; `long_texts` caches that for the whole run. Images are only named:
    those of tools are stored anyway, all others came from a file.
    """

    def __init__(
        self,
        emit: Emit,
        keep: Keep,
        place: Place,
        purpose: MessagePurpose,
        long_texts: dict[str, str],
        mask: Mask = str,
    ) -> None:
        self._emit = emit
        self._keep = keep
        self._place = place
        self._purpose: MessagePurpose = purpose
        self._long_texts = long_texts
        self._mask = mask
        self._turns: list[Turn] = []

    def add_turn(self, turn: Turn, *, told: bool) -> None:
        self._turns.append(turn)
        if not told:
            self._emit(TurnAdded(self._place, self._encode(turn), self._purpose))

    def replace_turns(self, turns: Sequence[Turn], reason: str) -> None:
        """Replace all previous turns by these; only new ones are recorded."""
        places = {id(turn): at for at, turn in enumerate(self._turns)}
        turns_data = tuple(
            {"at": places[id(turn)]} if id(turn) in places else self._encode(turn) for turn in turns
        )
        self._turns = list(turns)
        self._emit(HistoryReplaced(self._place, turns_data, reason, self._purpose))

    def _encode(self, turn: Turn) -> JsonObject:
        data = turn_to_json(turn, lambda *_: None)
        key = "content" if data["role"] == "tool" else "text"
        text = data[key]
        assert isinstance(text, str), "each turn has a text"
        file = self._file(text, str(data["role"])) if len(text) > REPEATED else ""
        if not file:
            return data
        # Masked before truncation: a truncated secret would not be recognized.
        beginning = self._mask(text)[: _BEGINNING if len(text) > LONG else _OF_REPEATED]
        return {**data, key: beginning, "file": file, "characters": len(text)}

    def _file(self, text: str, role: str) -> str:
        """The file of a long text; empty if it is stored inline."""
        content = text.encode("utf-8", "replace")
        digest = sha256(content).hexdigest()
        file = self._long_texts.pop(digest, None)
        if not file and (file is not None or len(text) > LONG):
            # A full disk loses the file, and the text is stored inline.
            with suppress(OSError):
                file = self._keep(f"{role}.txt", content)
        # Least recently used cache: the first one is evicted.
        self._long_texts[digest] = file or ""
        if len(self._long_texts) > _REMEMBERED:
            del self._long_texts[next(iter(self._long_texts))]
        return file or ""


def request_recorder(
    runtime: AgentRuntime, place: Place, purpose: MessagePurpose
) -> RequestRecorder | None:
    """The recorder of sent messages; `None` in a session, which records its conversation."""
    if runtime.long_texts is None:
        return None
    here = Place(place.step, place.item)
    return RequestRecorder(
        runtime.emit, runtime.keep, here, purpose, runtime.long_texts, runtime.mask
    )
