"""A conversation taken apart for shortening: what always stays, and rounds (L19). Pure."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from aish.core.frozen import frozen
from aish.core.messages import AssistantTurn, ToolTurn, Turn, UserTurn
from aish.loop.wording import is_left_out, left_out

Round = tuple[Turn, ...]
"""An answer of a model, the replies to its calls, and what a person said to that.

Each begins with an assistant turn, so that roles still take turns when some of them are gone.
"""


@frozen
class Parted:
    """`head` is everything before the first answer."""

    head: Round
    rounds: tuple[Round, ...]

    @property
    def turns(self) -> list[Turn]:
        """All of it in one list."""
        return [*self.head, *(turn for one in self.rounds for turn in one)]


def part(turns: Sequence[Turn]) -> Parted:
    """The turns of a history in which every call has its reply."""
    begins = [at for at, turn in enumerate(turns) if isinstance(turn, AssistantTurn)]
    bounds = [*begins, len(turns)]
    rounds = (tuple(turns[begin:end]) for begin, end in pairwise(bounds))
    return Parted(tuple(turns[: bounds[0]]), tuple(rounds))


def stub(turn: Turn) -> ToolTurn | None:
    """A line that stands for a tool's result; `None` where nothing would be shorter.

    A line that stands for one already stays: it tells how long the result was, and an endpoint
    has it in its cache.
    """
    if not isinstance(turn, ToolTurn) or (is_left_out(turn.content) and not turn.media):
        return None
    line = left_out(turn.tool, len(turn.content))
    if len(line) >= len(turn.content) and not turn.media:
        return None
    return replace(turn, content=line, media=())


def last_question(turns: Sequence[Turn]) -> UserTurn | None:
    """What was asked last."""
    return next((turn for turn in reversed(turns) if isinstance(turn, UserTurn)), None)


def with_note(head: Round, note: str, question: UserTurn | None) -> Round:
    """The head, with a note and a later question in its last turn.

    In that turn and not after it: some endpoints take no two user messages in a row.
    """
    *before, first = head
    assert isinstance(first, UserTurn), "an answer follows a question"
    texts = [first.text, note, question.text if question else ""]
    media = (*first.media, *(question.media if question else ()))
    return (*before, UserTurn("\n\n".join(text for text in texts if text), media))
