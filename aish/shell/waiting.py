"""Output that waits for the next question, told to the journal and read back from it (L14, S6)."""

from typing import Any

from aish.loop.conversation import Buffer
from aish.vocab.event_parts import NOWHERE
from aish.vocab.protocols import Emit
from aish.vocab.turn_events import OutputWaits


class SessionBuffer(Buffer):
    """The buffer of a session: a session that is gone on with has what waited in it."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def add(self, output: str) -> None:
        """Keep `output` for the next user turn."""
        super().add(output)
        self._emit(OutputWaits(NOWHERE, output))

    def restore(self, output: str) -> None:
        """Keep what the journal tells of already."""
        super().add(output)


class Waiting:
    """What waits, from the records of a journal."""

    def __init__(self) -> None:
        self.texts: tuple[str, ...] = ()

    def take(self, record: Any) -> None:
        """One more record; a question takes all of it along, and a new conversation drops it."""
        match record.get("type"):
            case "output.waits":
                self.texts = (*self.texts, str(record.get("text")))
            case "turn.added" if record["added"].get("role") == "user":
                self.texts = ()
            case "history.replaced" if record.get("reason") == "cleared":
                self.texts = ()
            case _:
                pass
