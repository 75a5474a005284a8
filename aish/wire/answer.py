"""An answer in the making: its choices, and how they become one turn (L5, quirk 28).

An answer has one choice, as far as we ask. Some endpoints put the text into one and the calls
into others.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from aish.core.deltas import StreamNotice, TextPiece, Usage
from aish.wire.choice import Choice
from aish.wire.error_body import find_error
from aish.wire.errors import LimitError, MalformedToolCallError
from aish.wire.extras import merge_field
from aish.wire.finish import is_error, known_reason
from aish.wire.json_text import Mask
from aish.wire.usage import read_cost, read_usage

# As many as endpoints send at most where they are asked for several.
_MOST_CHOICES: Final = 128


def plain_text(value: Any) -> str | None:
    """The text of a chunk that holds a piece of text and nothing else to look at, else `None`."""
    try:
        choices = value["choices"]
        choice = choices[0]
        delta = choice["delta"]
        text = delta["content"]
    except (KeyError, TypeError, IndexError):
        return None
    if type(text) is not str or len(choices) > 1:
        return None
    if len(delta) > 1 + ("role" in delta) and _has_more(delta):
        return None
    more = choice.get("finish_reason") or choice.get("index") or choice.get("error")
    return None if more or value.get("usage") or value.get("error") else text


def _has_more(delta: dict[str, Any]) -> bool:
    """Whether a delta has anything beside text and fields that are there but empty."""
    return any(value for name, value in delta.items() if name not in {"role", "content"})


class Answer:
    """The state of one turn: the first choice, and others where they come.

    After `settle` the first holds all that counts.
    """

    __slots__ = ("_known", "_mask", "_others", "begun", "first", "slots", "speech")

    def __init__(self, known_tools: Collection[str], mask: Mask) -> None:
        self.first = Choice(known_tools, mask)
        self.speech = self.first.speech
        self.slots = self.first.slots
        self.begun = False
        """Whether a choice has come."""
        self._known = known_tools
        self._mask = mask
        self._others: dict[str, Choice] = {}

    @property
    def over(self) -> bool:
        """Whether every choice that counts has its finish reason."""
        others = self._others.values()
        if any(other.slots.all and not other.finish for other in others):
            return False
        first = self.first
        return bool(first.finish) or (not first.begun and any(other.finish for other in others))

    @property
    def finish(self) -> str:
        """The endpoint's own word for the end, the last it sent."""
        return self.first.finish

    @property
    def whole(self) -> bool:
        """Whether it came in one piece, not as a stream (quirk 18)."""
        return self.first.whole or any(other.whole for other in self._others.values())

    @property
    def usage(self) -> Usage:
        """The last counts that came."""
        return read_usage(self.first.usage)

    @property
    def cost_usd(self) -> float | None:
        """What the endpoint says that it costs."""
        return read_cost(self.first.usage)

    @property
    def refusal(self) -> str | None:
        """What the model says instead of an answer."""
        return "".join(self.first.refusal) or None

    def notice(self, code: str, text: str) -> None:
        """Say of an oddity that it was tolerated; once a stream."""
        self.first.notice(code, text)

    def take(self, value: dict[str, Any]) -> None:
        """Take a chunk of a stream, or a whole completion.

        Raises:
            InBandError: the endpoint reports an error.
            MalformedToolCallError: what it says of calls is nothing that can be used.
            LimitError: there are too many choices.
        """
        if error := find_error(value, self._mask):
            raise error
        if usage := value.get("usage"):
            self.first.count(usage)
        choices = value.get("choices")
        first_taken = False
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            self.begun = True
            index = choice.get("index")
            if index or (first_taken and "message" in choice):
                self._other(str(index or f"another {len(self._others)}")).take(choice)
            else:
                self.first.take(choice)
                first_taken = True

    def message_fields(self) -> dict[str, Any]:
        """The fields that go back to the same endpoint, under the names they came with."""
        reasoning = self.first.reasoning.items()
        spoken = {name: "".join(parts) for name, parts in reasoning if any(parts)}
        return {**spoken, **self.first.extras}

    def settle(self) -> None:
        """Nothing more will come: make one turn of what the choices say.

        Raises:
            MalformedToolCallError: calls in several choices, of which each is a turn of its own.
        """
        first, others = self.first, list(self._others.values())
        for choice in (first, *others):
            choice.speech.finish()
            choice.slots.settle()
        calling = [other for other in others if other.slots.all]
        if first.slots.all:
            if any(not other.slots.repeat(first.slots) for other in calling):
                raise MalformedToolCallError(
                    "malformed tool call: the endpoint sends more than one answer,"
                    " each with calls of its own"
                )
            self._pass_over(others)
        elif calling:
            self._end_as(calling)
            self._join(others)
        elif first.says_anything:
            self._pass_over(others)
        else:
            speaking = [other for other in others if other.says_anything]
            for chosen in speaking[:1]:
                first.finish = first.finish or chosen.finish
                self._join([chosen])
            self._pass_over(speaking[1:])

    def _other(self, key: str) -> Choice:
        """The choice of that name beside the first."""
        other = self._others.get(key)
        if other is None:
            if len(self._others) >= _MOST_CHOICES:
                raise LimitError(f"the answer has over {_MOST_CHOICES} choices")
            other = self._others[key] = Choice(self._known, self._mask)
        return other

    def _pass_over(self, others: Sequence[Choice]) -> None:
        """Leave choices out, which is told where they are answers of their own."""
        if any(other.speech.said and other.speech.heard != self.speech.heard for other in others):
            self.notice("other_choices", "the endpoint sends more than one answer")

    def _end_as(self, calling: Sequence[Choice]) -> None:
        """End as the choices with the calls do, the worst end first."""
        ends = [other.finish for other in calling]
        failed = [end for end in (self.finish, *ends) if is_error(end)]
        odd = [end for end in ends if known_reason(end) != "tool_calls"]
        if failed:
            self.first.finish = failed[0]
        elif all(ends):
            self.first.finish = (odd or ends)[0]
        elif known_reason(self.finish) != "tool_calls":
            self.first.finish = ""

    def _join(self, others: Sequence[Choice]) -> None:
        """Add what other choices say to the first, but no text a second time."""
        first = self.first
        heard = {first.speech.heard.strip()}
        for other in others:
            text = other.speech.heard.strip()
            spoken = other.speech.take()
            for delta in spoken:
                if isinstance(delta, StreamNotice):
                    first.notice(delta.code, delta.text)
            left_out = (TextPiece, StreamNotice) if text in heard else StreamNotice
            first.speech.adopt(delta for delta in spoken if not isinstance(delta, left_out))
            heard.add(text)
            first.slots.join(other.slots)
            for name, parts in other.reasoning.items():
                first.reasoning.setdefault(name, []).extend(parts)
            for name, value in other.extras.items():
                merge_field(first.extras, name, value)
            first.refusal.extend(other.refusal)
            first.usage = first.usage or other.usage
            first.misplaced = first.misplaced or other.misplaced
