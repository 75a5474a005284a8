"""What was asked in a session, and what goes out next, from the records of its journal (S6)."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from aish.agent.turn_json import Lost, ReadFile, turn_from_json
from aish.agent.wording import is_shortened
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.messages import Turn, UserTurn
from aish.core.text import counted
from aish.shell.outgoing import Asked, Enclosure
from aish.shell.waiting import Waiting

# How `session.replace` says that the last question may be asked again.
_TAKEN_BACK = frozenset({"taken back", "asked again", "asked another way"})


@frozen
class _Sent:
    """A question that became a turn; `attached` are names, texts, and how many pictures."""

    text: str
    waited: str
    attached: tuple[tuple[str, str, int], ...]

    def asked(self, turn: UserTurn) -> Asked:
        """What went out as this turn."""
        media = iter(turn.media)
        attached = [
            Enclosure(name, text, tuple(islice(media, count)))
            for name, text, count in self.attached
        ]
        return Asked(self.text, self.waited, tuple(attached))


class AskedBefore:
    """What is known of questions after the records so far."""

    def __init__(self) -> None:
        self._waiting = Waiting()
        self._question: str | None = None
        self._sent: dict[str, _Sent] = {}
        self._last: str | None = None
        self._taken_back: str | None = None

    def take(self, record: Any) -> None:
        """One more record."""
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
        """The last question, where it is not in the conversation, and can be asked again."""
        return None if self._taken_back is None else Asked(self._taken_back)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Output of local commands that no question has taken along yet (L14)."""
        return self._waiting.texts

    def attached(self, read_file: ReadFile, lost: Lost) -> tuple[Enclosure, ...]:
        """What is attached and has not gone out; `lost` is told of a picture that is not there.

        Raises:
            UsageError: it is not what was written.
        """
        try:
            return tuple([_enclosure(one, read_file, lost) for one in self._waiting.attached])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            said = f"what the journal says to be attached is not what was written: {error}"
            raise UsageError(said) from error

    def questions(self, turns: Sequence[Turn]) -> Iterator[tuple[UserTurn, Asked]]:
        """The questions of a conversation as they were asked; none that was summarised."""
        for turn in turns:
            if not isinstance(turn, UserTurn):
                continue
            sent = self._sent.get(turn.text)
            if sent is not None:
                yield turn, sent.asked(turn)
            elif not is_shortened(turn.text):
                # A picture of it is gone, so that it is not what it was.
                yield turn, Asked(turn.text, attached=_pictures(turn))


def _enclosure(told: Any, read_file: ReadFile, lost: Lost) -> Enclosure:
    turn = turn_from_json(told["turn"], read_file, lost)
    if not isinstance(turn, UserTurn):
        raise TypeError("it is no part of a question")
    return Enclosure(str(told["name"]), turn.text, turn.media)


def _pictures(turn: UserTurn) -> tuple[Enclosure, ...]:
    count = len(turn.media)
    return (Enclosure(counted(count, "picture"), "", turn.media),) if count else ()
