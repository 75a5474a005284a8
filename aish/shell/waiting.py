"""What waits for the next question, told to the journal and read back from it (L14, S5, S6)."""

from collections.abc import Callable, Iterable
from typing import Any

from aish.agent.conversation import Buffer
from aish.core.events import NOWHERE, AttachmentsWait, OutputWaits, WaitingAttachment
from aish.core.json import JsonObject
from aish.core.messages import UserTurn
from aish.core.protocols import Emit
from aish.shell.outgoing import Enclosure


class SessionBuffer(Buffer):
    """The buffer of a session: a session that is gone on with has what waited in it."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def add(self, output: str) -> None:
        """Keep `output` for the next user turn."""
        super().add(output)
        self._emit(OutputWaits(NOWHERE, output))

    def put_first(self, output: str) -> None:
        """Keep `output`, which has gone out before, in front of all that waits."""
        self._waiting.insert(0, output)
        self._emit(OutputWaits(NOWHERE, output, again=True))

    def restore(self, output: str) -> None:
        """Keep what the journal tells of already."""
        super().add(output)


class Attached:
    """What `:attach` has put before the next question; a session that is gone on with has it."""

    def __init__(self, emit: Emit, told: Callable[[UserTurn], JsonObject]) -> None:
        self._emit = emit
        self._told = told
        self._waiting: tuple[Enclosure, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What goes out, by name."""
        return tuple(one.name for one in self._waiting)

    def add(self, one: Enclosure) -> None:
        """One more goes out."""
        self._now((*self._waiting, one))

    def put_first(self, gone: Iterable[Enclosure]) -> None:
        """What has gone out goes out once more, before all else."""
        self._now((*gone, *self._waiting))

    def clear(self) -> None:
        """Nothing goes out."""
        self._now(())

    def take(self) -> tuple[Enclosure, ...]:
        """All of it goes out: the turn that it becomes part of tells of that."""
        taken, self._waiting = self._waiting, ()
        return taken

    def restore(self, waiting: Iterable[Enclosure]) -> None:
        """Have what the journal tells of already."""
        self._waiting = tuple(waiting)

    def _now(self, waiting: tuple[Enclosure, ...]) -> None:
        if waiting == self._waiting:
            return
        self._waiting = waiting
        self._emit(AttachmentsWait(NOWHERE, tuple([self._one_told(one) for one in waiting])))

    def _one_told(self, one: Enclosure) -> WaitingAttachment:
        return WaitingAttachment(one.name, self._told(UserTurn(one.text, one.media)))


class Waiting:
    """What waits, from the records of a journal: `texts` of commands, and what is `attached`."""

    def __init__(self) -> None:
        self.texts: tuple[str, ...] = ()
        self.attached: tuple[Any, ...] = ()

    def take(self, record: Any) -> None:
        """One more record; a question takes all of it along, and a new conversation drops it."""
        match record.get("type"):
            case "output.waits" if record.get("again"):
                self.texts = (str(record.get("text")), *self.texts)
            case "output.waits":
                self.texts = (*self.texts, str(record.get("text")))
            case "attachments.wait":
                self.attached = tuple(record["attachments"])
            case "turn.added" if record["added"].get("role") == "user":
                self.texts = self.attached = ()
            case "history.replaced" if record.get("reason") == "cleared":
                self.texts = self.attached = ()
            case _:
                pass
