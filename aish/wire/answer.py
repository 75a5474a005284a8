"""One answer in the making: what the chunks of a stream have said so far (L5, L6)."""

from collections.abc import Collection
from typing import Any, Final

from aish.vocab.deltas import StreamNotice, Usage
from aish.wire.content import REASONING_FIELDS, content_pieces, reasoning_text
from aish.wire.error_body import find_error
from aish.wire.extras import merge_field
from aish.wire.json_text import excerpt
from aish.wire.speech import Speech
from aish.wire.tool_call_slots import ToolCallSlots
from aish.wire.usage import read_cost, read_usage

# `annotations` and `audio` are documented as output only: endpoints do not take them back.
_KNOWN_FIELDS: Final = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "annotations", "audio"}
    | set(REASONING_FIELDS)
)


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
    """The state of one turn."""

    __slots__ = (
        "_noticed", "_reasoning", "_refusal", "_usage", "begun", "extras", "finish", "slots",
        "speech", "whole",
    )  # fmt: skip

    def __init__(self, known_tools: Collection[str]) -> None:
        self.speech = Speech(remember=bool(known_tools))
        self.slots = ToolCallSlots(known_tools)
        self.extras: dict[str, Any] = {}
        self.finish = ""
        """The endpoint's own word for the end, the last it sent."""
        self._usage: dict[str, Any] = {}
        self.begun = False
        """Whether a choice has come that `take` was given."""
        self.whole = False
        """Whether it came in one piece, not as a stream (quirk 18)."""
        self._reasoning: dict[str, list[str]] = {}
        self._refusal: list[str] = []
        self._noticed: set[str] = set()

    @property
    def usage(self) -> Usage:
        """The last counts that came."""
        return read_usage(self._usage)

    @property
    def cost_usd(self) -> float | None:
        """What the endpoint says that it costs."""
        return read_cost(self._usage)

    @property
    def refusal(self) -> str | None:
        """What the model says instead of an answer."""
        return "".join(self._refusal) or None

    @property
    def thought(self) -> bool:
        """Whether there is any thinking."""
        return bool(self._reasoning)

    def notice(self, code: str, text: str) -> None:
        """Say of an oddity that it was tolerated; once a stream."""
        if code not in self._noticed:
            self._noticed.add(code)
            self.speech.remark(StreamNotice(code, text))

    def take(self, value: dict[str, Any]) -> None:
        """Take a chunk of a stream, or a whole completion.

        Raises:
            InBandError: the endpoint reports an error.
        """
        if error := find_error(value):
            raise error
        if usage := value.get("usage"):
            self._count(usage)
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            if choice.get("index"):
                self.notice("other_choices", "the endpoint sends more than one answer")
            else:
                self._choice(choice)

    def message_fields(self) -> dict[str, Any]:
        """The fields that go back to the same endpoint, under the names they came with."""
        spoken = {name: "".join(parts) for name, parts in self._reasoning.items() if any(parts)}
        return {**spoken, **self.extras}

    def _count(self, usage: Any) -> None:
        """Counts may come again and again; they are totals, the last one wins (quirk 33)."""
        if isinstance(usage, dict) and any(type(count) in {int, float} for count in usage.values()):
            self._usage = usage

    def _choice(self, choice: dict[str, Any]) -> None:
        self.begun = True
        if usage := choice.get("usage"):
            self._count(usage)
        delta, message = choice.get("delta"), choice.get("message")
        if isinstance(delta, dict):
            self._add(delta)
        elif isinstance(message, dict):
            self.whole = True
            if not (self.speech.said or self.slots.all):
                self._add(message, whole=True)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self.finish = finish

    def _add(self, delta: dict[str, Any], *, whole: bool = False) -> None:
        self._add_reasoning(delta)
        if content := delta.get("content"):
            self._add_content(content)
        if isinstance(refusal := delta.get("refusal"), str):
            self._refusal.append(refusal)
        if calls := delta.get("tool_calls"):
            self._add_calls(calls, whole=whole)
        for name, value in delta.items():
            if name not in _KNOWN_FIELDS:
                merge_field(self.extras, name, value)

    def _add_content(self, content: Any) -> None:
        for kind, text in content_pieces(content):
            if kind == "text":
                self.speech.say(text)
            elif kind == "reasoning":
                self.speech.think(text)
            elif kind == "refusal":
                self._refusal.append(text)
            else:
                self.notice("unknown_content", f"content of type `{excerpt(text)}` was left out")

    def _add_reasoning(self, delta: dict[str, Any]) -> None:
        """Thinking is kept by name, and shown once where two fields say the same."""
        shown = False
        for name in REASONING_FIELDS:
            value = delta.get(name)
            if not value:
                continue
            if not shown and (text := reasoning_text(value)):
                self.speech.think(text)
                shown = True
            if isinstance(value, str):
                self._reasoning.setdefault(name, []).append(value)
            else:
                merge_field(self.extras, name, value)

    def _add_calls(self, calls: Any, *, whole: bool) -> None:
        add = self.slots.add_whole if whole else self.slots.add
        if isinstance(calls, dict):
            calls = [calls]
        for item in calls if isinstance(calls, list) else ():
            if isinstance(item, dict):
                add(item)
        if self.slots.guessed:
            self.notice("missing_index", "pieces of tool calls come without an index")
