"""Input that waits for the next question or was sent with one, journaled and read back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from aish.agent.conversation import Buffer
from aish.agent.result_limit import media_count
from aish.agent.turn_json import Lost, ReadFile, turn_from_json
from aish.agent.wording import is_shortened
from aish.core.errors import UsageError
from aish.core.events import (
    NOWHERE,
    AttachmentsWait,
    Event,
    HistoryReplaced,
    OutputWaits,
    QuestionAsked,
    TurnAdded,
    WaitingAttachment,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.messages import Turn, UserTurn
from aish.core.protocols import Emit
from aish.core.sources import NO_SOURCES, UNKNOWN, Sources, names_of
from aish.core.tools import Media


@frozen
class Enclosure:
    """An attachment of a question (`:attach`): its name, its text and its pictures."""

    name: str
    text: str
    media: tuple[Media, ...] = ()
    sources: Sources = frozenset({UNKNOWN})
    """Those of one of an earlier part of the session are not known."""


@frozen
class QuestionInput:
    """A question, the output that `waited` for it, and its attachments.

    `sources` are those of its text, which is not always typed, and `printed` those of the output.
    """

    text: str
    waited: str = ""
    attached: tuple[Enclosure, ...] = ()
    sources: Sources = frozenset({UNKNOWN})
    printed: Sources = frozenset({UNKNOWN})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(enclosure.name for enclosure in self.attached)

    @property
    def whole(self) -> str:
        parts = (*(enclosure.text for enclosure in self.attached), self.waited, self.text)
        return "\n\n".join(part for part in parts if part)

    @property
    def media(self) -> tuple[Media, ...]:
        return tuple(media for enclosure in self.attached for media in enclosure.media)


class SessionBuffer(Buffer):
    """The buffer of a session; in a resumed session it contains what waited before."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def add(self, output: str, sources: Sources = NO_SOURCES) -> None:
        super().add(output, sources)
        self._emit(OutputWaits(NOWHERE, output, sources=names_of(sources) or None))

    def put_first(self, output: str, sources: Sources) -> None:
        """Put `output`, which was sent before, in front of everything that waits."""
        self._waiting.insert(0, output)
        self._sources |= sources
        self._emit(OutputWaits(NOWHERE, output, again=True, sources=names_of(sources) or None))

    def restore(self, waits: OutputWaits) -> None:
        """Restore output that the journal contains already."""
        sources = (UNKNOWN,) if waits.sources is None else waits.sources
        super().add(waits.text, frozenset(sources))


class PendingAttachments:
    """Attachments for the next question; a resumed session has those of before."""

    def __init__(self, emit: Emit, told: Callable[[UserTurn], JsonObject]) -> None:
        self._emit = emit
        self._told = told
        self._waiting: tuple[Enclosure, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(enclosure.name for enclosure in self._waiting)

    def add(self, one: Enclosure) -> None:
        self._now((*self._waiting, one))

    def put_first(self, gone: Iterable[Enclosure]) -> None:
        """Attach again what was sent before, in front of everything else."""
        self._now((*gone, *self._waiting))

    def drop(self, name: str) -> None:
        self._now(tuple(enclosure for enclosure in self._waiting if enclosure.name != name))

    def clear(self) -> None:
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
        attachments = [
            WaitingAttachment(enclosure.name, self._told(UserTurn(enclosure.text, enclosure.media)))
            for enclosure in waiting
        ]
        self._emit(AttachmentsWait(NOWHERE, tuple(attachments)))


# The reasons by which `session.replace` records that the last question can be repeated.
_TAKEN_BACK = frozenset({"taken back", "asked again", "asked another way"})


@frozen
class _SentQuestion:
    """A question that became a turn; `attached` has names, texts, and numbers of pictures."""

    text: str
    waited: str
    attached: tuple[tuple[str, str, int], ...]

    def question_of(self, turn: UserTurn) -> QuestionInput:
        """The question of this turn with what was sent with it."""
        media = iter(turn.media)
        attached = [
            Enclosure(name, text, tuple(islice(media, count)))
            for name, text, count in self.attached
        ]
        known = turn.sources
        return QuestionInput(self.text, self.waited, tuple(attached), known, known)


class AskedBefore:
    """The questions of a session, and what waits for the next one, from its events so far.

    `outputs` are those of local commands that were not sent with a question yet.
    """

    def __init__(self) -> None:
        self.outputs: tuple[OutputWaits, ...] = ()
        self._attached: tuple[WaitingAttachment, ...] = ()
        self._question: str | None = None
        self._sent: dict[str, _SentQuestion] = {}
        self._last: str | None = None
        self._taken_back: str | None = None

    def take(self, event: Event) -> None:
        """Follow an event: a question uses all waiting input, and a new conversation drops it."""
        match event:
            case OutputWaits(again=True):
                self.outputs = (event, *self.outputs)
            case OutputWaits():
                self.outputs = (*self.outputs, event)
            case AttachmentsWait():
                self._attached = event.attachments
            case QuestionAsked():
                self._question = event.text
            case TurnAdded() if event.turn.get("role") == "user":
                self._send(str(event.turn.get("text")))
                self.outputs, self._attached = (), ()
            case HistoryReplaced():
                self._taken_back = self._last if event.reason in _TAKEN_BACK else None
                if event.reason in {"cleared", "given"}:
                    self.outputs, self._attached = (), ()
            case _:
                pass

    def _send(self, whole: str) -> None:
        if self._question is None:
            return
        text, self._question = self._question, None
        attached: list[tuple[str, str, int]] = []
        for attachment in self._attached:
            media: Any = attachment.turn.get("media", ())
            attached.append((attachment.name, str(attachment.turn.get("text")), len(media)))
        self._sent[whole] = _SentQuestion(
            text, "\n\n".join(one.text for one in self.outputs), tuple(attached)
        )
        self._last, self._taken_back = text, None

    @property
    def taken_back(self) -> QuestionInput | None:
        """The last question, if it was removed from the conversation and can be repeated."""
        return None if self._taken_back is None else QuestionInput(self._taken_back)

    def read_attachments(self, read_file: ReadFile, lost: Lost) -> tuple[Enclosure, ...]:
        """Attachments that were not sent yet; `lost` is called for a missing picture.

        Raises:
            UsageError: the journal was changed.
        """
        try:
            return tuple([_enclosure(attachment, read_file, lost) for attachment in self._attached])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"what the journal says to be attached is not what was written: {error}"
            raise UsageError(message) from error

    def questions(self, turns: Sequence[Turn]) -> Iterator[tuple[UserTurn, QuestionInput]]:
        """The questions of a conversation as they were asked, without summarised ones."""
        for turn in turns:
            if not isinstance(turn, UserTurn):
                continue
            sent = self._sent.get(turn.text)
            if sent is not None:
                yield turn, sent.question_of(turn)
            elif not is_shortened(turn.text):
                # A picture of it is missing, so it is not the original question.
                name = media_count(turn.media)
                pictures = (Enclosure(name, "", turn.media),) if turn.media else ()
                yield turn, QuestionInput(turn.text, attached=pictures)


def _enclosure(waiting: WaitingAttachment, read_file: ReadFile, lost: Lost) -> Enclosure:
    turn = turn_from_json(waiting.turn, read_file, lost)
    if not isinstance(turn, UserTurn):
        raise TypeError("it is no part of a question")
    return Enclosure(waiting.name, turn.text, turn.media)
