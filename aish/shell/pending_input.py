"""Input that waits for the next question or was sent with one, journaled and read back.

(L14, S5, S6)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from aish.agent.conversation import Buffer
from aish.agent.turn_json import Lost, ReadFile, turn_from_json
from aish.agent.wording import is_shortened
from aish.core.errors import UsageError
from aish.core.events import NOWHERE, AttachmentsWait, OutputWaits, WaitingAttachment
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.messages import Turn, UserTurn
from aish.core.phrases import counted
from aish.core.protocols import Emit
from aish.core.tools import Media


@frozen
class Enclosure:
    """What `:attach` adds before a question: its name, its text and its pictures."""

    name: str
    text: str
    media: tuple[Media, ...] = ()


@frozen
class Asked:
    """A question, and what was sent with it: output that `waited` (L14), and what was attached."""

    text: str
    waited: str = ""
    attached: tuple[Enclosure, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the attachments."""
        return tuple(one.name for one in self.attached)

    @property
    def whole(self) -> str:
        """Its whole text, as sent to the model."""
        parts = (*(one.text for one in self.attached), self.waited, self.text)
        return "\n\n".join(part for part in parts if part)

    @property
    def media(self) -> tuple[Media, ...]:
        """All of its pictures."""
        return tuple(media for one in self.attached for media in one.media)


class SessionBuffer(Buffer):
    """The buffer of a session; in a resumed session it contains what waited before."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def add(self, output: str) -> None:
        """Keep `output` for the next user turn."""
        super().add(output)
        self._emit(OutputWaits(NOWHERE, output))

    def put_first(self, output: str) -> None:
        """Put `output`, which was sent before, in front of everything that waits."""
        self._waiting.insert(0, output)
        self._emit(OutputWaits(NOWHERE, output, again=True))

    def restore(self, output: str) -> None:
        """Restore output that the journal contains already."""
        super().add(output)


class Attached:
    """Attachments for the next question; a resumed session has those of before."""

    def __init__(self, emit: Emit, told: Callable[[UserTurn], JsonObject]) -> None:
        self._emit = emit
        self._told = told
        self._waiting: tuple[Enclosure, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the attachments."""
        return tuple(one.name for one in self._waiting)

    def add(self, one: Enclosure) -> None:
        """Add an attachment."""
        self._now((*self._waiting, one))

    def put_first(self, gone: Iterable[Enclosure]) -> None:
        """Attach again what was sent before, in front of everything else."""
        self._now((*gone, *self._waiting))

    def drop(self, name: str) -> None:
        """Remove the attachments of this name."""
        self._now(tuple(one for one in self._waiting if one.name != name))

    def clear(self) -> None:
        """Remove all attachments."""
        self._now(())

    def take(self) -> tuple[Enclosure, ...]:
        """Remove and return all attachments: the turn that contains them is journaled."""
        taken, self._waiting = self._waiting, ()
        return taken

    def restore(self, waiting: Iterable[Enclosure]) -> None:
        """Restore attachments that the journal contains already."""
        self._waiting = tuple(waiting)

    def _now(self, waiting: tuple[Enclosure, ...]) -> None:
        if waiting == self._waiting:
            return
        self._waiting = waiting
        self._emit(AttachmentsWait(NOWHERE, tuple([self._one_told(one) for one in waiting])))

    def _one_told(self, one: Enclosure) -> WaitingAttachment:
        return WaitingAttachment(one.name, self._told(UserTurn(one.text, one.media)))


class Waiting:
    """Waiting input, from the records of a journal: `texts` of commands, and `attached` items."""

    def __init__(self) -> None:
        self.texts: tuple[str, ...] = ()
        self.attached: tuple[Any, ...] = ()

    def take(self, record: Any) -> None:
        """Add a record; a question uses all waiting input, and a new conversation drops it."""
        match record.get("type"):
            case "output.waits" if record.get("again"):
                self.texts = (str(record.get("text")), *self.texts)
            case "output.waits":
                self.texts = (*self.texts, str(record.get("text")))
            case "attachments.wait":
                self.attached = tuple(record["attachments"])
            case "turn.added" if record["added"].get("role") == "user":
                self.texts = self.attached = ()
            case "history.replaced" if record.get("reason") in {"cleared", "given"}:
                self.texts = self.attached = ()
            case _:
                pass


# The reasons by which `session.replace` records that the last question can be repeated.
_TAKEN_BACK = frozenset({"taken back", "asked again", "asked another way"})


@frozen
class _Sent:
    """A question that became a turn; `attached` has names, texts, and numbers of pictures."""

    text: str
    waited: str
    attached: tuple[tuple[str, str, int], ...]

    def asked(self, turn: UserTurn) -> Asked:
        """The question of this turn with what was sent with it."""
        media = iter(turn.media)
        attached = [
            Enclosure(name, text, tuple(islice(media, count)))
            for name, text, count in self.attached
        ]
        return Asked(self.text, self.waited, tuple(attached))


class AskedBefore:
    """The state of questions after the records so far."""

    def __init__(self) -> None:
        self._waiting = Waiting()
        self._question: str | None = None
        self._sent: dict[str, _Sent] = {}
        self._last: str | None = None
        self._taken_back: str | None = None

    def take(self, record: Any) -> None:
        """Add a record."""
        match record.get("type"):
            case "question.asked":
                self._question = str(record.get("text"))
            case "turn.added" if record["added"].get("role") == "user":
                self._goes_out(str(record["added"].get("text")))
            case "history.replaced":
                back = record.get("reason") in _TAKEN_BACK
                self._taken_back = self._last if back else None
            case _:
                pass
        self._waiting.take(record)

    def _goes_out(self, whole: str) -> None:
        if self._question is None:
            return
        text, self._question = self._question, None
        attached = [
            (str(one["name"]), str(one["turn"].get("text")), len(one["turn"].get("media", ())))
            for one in self._waiting.attached
        ]
        self._sent[whole] = _Sent(text, "\n\n".join(self._waiting.texts), tuple(attached))
        self._last, self._taken_back = text, None

    @property
    def taken_back(self) -> Asked | None:
        """The last question, if it was removed from the conversation and can be repeated."""
        return None if self._taken_back is None else Asked(self._taken_back)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Output of local commands that was not sent with a question yet (L14)."""
        return self._waiting.texts

    def attached(self, read_file: ReadFile, lost: Lost) -> tuple[Enclosure, ...]:
        """Attachments that were not sent yet; `lost` is called for a missing picture.

        Raises:
            UsageError: the journal was changed.
        """
        try:
            return tuple([_enclosure(one, read_file, lost) for one in self._waiting.attached])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            said = f"what the journal says to be attached is not what was written: {error}"
            raise UsageError(said) from error

    def questions(self, turns: Sequence[Turn]) -> Iterator[tuple[UserTurn, Asked]]:
        """The questions of a conversation as they were asked, without summarised ones."""
        for turn in turns:
            if not isinstance(turn, UserTurn):
                continue
            sent = self._sent.get(turn.text)
            if sent is not None:
                yield turn, sent.asked(turn)
            elif not is_shortened(turn.text):
                # A picture of it is missing, so it is not the original question.
                yield turn, Asked(turn.text, attached=_pictures(turn))


def _enclosure(told: Any, read_file: ReadFile, lost: Lost) -> Enclosure:
    turn = turn_from_json(told["turn"], read_file, lost)
    if not isinstance(turn, UserTurn):
        raise TypeError("it is no part of a question")
    return Enclosure(str(told["name"]), turn.text, turn.media)


def _pictures(turn: UserTurn) -> tuple[Enclosure, ...]:
    count = len(turn.media)
    return (Enclosure(counted(count, "picture"), "", turn.media),) if count else ()
