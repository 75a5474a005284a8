"""One choice of an answer in the making: what the chunks of a stream have said so far (L5, L6)."""

from collections.abc import Collection
from typing import Any, Final

from aish.core.deltas import StreamNotice
from aish.wire.content import REASONING_FIELDS, content_pieces, reasoning_text
from aish.wire.errors import MalformedToolCallError
from aish.wire.extras import merge_field
from aish.wire.json_text import Mask, excerpt
from aish.wire.speech import Speech
from aish.wire.tool_call_slots import ToolCallSlots

# `annotations` and `audio` are documented as output only: endpoints do not take them back.
_KNOWN_FIELDS: Final = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "annotations", "audio"}
    | set(REASONING_FIELDS)
)
# Content of these types is a call in the words of another wire.
_CALLS_IN_CONTENT: Final = frozenset({"tool_use", "tool_call", "tool_calls", "function_call"})


class Choice:
    """What one choice says: its speech, its calls, its fields, its end."""

    __slots__ = (
        "_known", "_mask", "_noticed", "begun", "extras", "finish", "misplaced", "reasoning",
        "refusal", "slots", "speech", "usage", "whole",
    )  # fmt: skip

    def __init__(self, known_tools: Collection[str], mask: Mask) -> None:
        self.speech = Speech()
        self.slots = ToolCallSlots(known_tools)
        self.extras: dict[str, Any] = {}
        self.finish = ""
        """The endpoint's own word for the end, the last it sent."""
        self.usage: dict[str, Any] = {}
        """The last counts that came."""
        self.begun = False
        self.whole = False
        """Whether it came in one piece, not as a stream (quirk 18)."""
        self.misplaced = ""
        """Where a call was that is not among `tool_calls`."""
        self.reasoning: dict[str, list[str]] = {}
        self.refusal: list[str] = []
        self._known = known_tools
        self._mask = mask
        self._noticed: set[str] = set()

    @property
    def thought(self) -> bool:
        """Whether there is any thinking."""
        return bool(self.reasoning)

    @property
    def says_anything(self) -> bool:
        """Whether there is anything in it but calls."""
        return bool(self.speech.said or self.reasoning or self.refusal)

    def notice(self, code: str, text: str) -> None:
        """Say of an oddity that it was tolerated; once a stream."""
        if code not in self._noticed:
            self._noticed.add(code)
            self.speech.remark(StreamNotice(code, text))

    def count(self, usage: Any) -> None:
        """Counts may come again and again; they are totals, the last one wins (quirk 33)."""
        if isinstance(usage, dict) and any(type(count) in {int, float} for count in usage.values()):
            self.usage = usage

    def take(self, choice: dict[str, Any]) -> None:
        """Take an element of `choices`.

        Raises:
            MalformedToolCallError: what it says of calls is nothing that can be used.
        """
        self.begun = True
        if usage := choice.get("usage"):
            self.count(usage)
        delta, message = choice.get("delta"), choice.get("message")
        if isinstance(delta, dict):
            self._add(delta)
        elif isinstance(message, dict):
            self.whole = True
            self.speech.settle()
            if self.speech.said or self.slots.all:
                self._add_again(message)
            else:
                self._add(message, whole=True)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self.finish = finish

    def _add_again(self, message: dict[str, Any]) -> None:
        """A whole message behind its pieces says nothing new, but it may have the calls."""
        again = Choice(self._known, self._mask)
        again.take({"message": message})
        if not self.slots.all:
            self.slots.join(again.slots)
        elif again.slots.all and not again.slots.repeat(self.slots):
            raise MalformedToolCallError(
                "malformed tool call: the calls were sent again, and are not the same"
            )
        self.misplaced = self.misplaced or again.misplaced

    def _add(self, delta: dict[str, Any], *, whole: bool = False) -> None:
        self._add_reasoning(delta)
        if content := delta.get("content"):
            self._add_content(content)
        if isinstance(refusal := delta.get("refusal"), str):
            self.refusal.append(refusal)
        if calls := delta.get("tool_calls"):
            self._add_calls(calls, whole=whole)
        call = delta.get("function_call")
        if isinstance(call, dict) and (call.get("name") or call.get("arguments")):
            self.misplaced = "as `function_call`"
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
                self.refusal.append(text)
            elif text in _CALLS_IN_CONTENT:
                self.misplaced = f"as content of type `{text}`"
            else:
                said = excerpt(text, self._mask)
                self.notice("unknown_content", f"content of type `{said}` was left out")

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
                self.reasoning.setdefault(name, []).append(value)
            else:
                merge_field(self.extras, name, value)

    def _add_calls(self, calls: Any, *, whole: bool) -> None:
        add = self.slots.add_whole if whole else self.slots.add
        for item in calls if isinstance(calls, list) else (calls,):
            if isinstance(item, dict):
                add(item)
            elif item is not None:
                raise MalformedToolCallError(
                    f"malformed tool call: it is no object: {excerpt(str(item), self._mask)}"
                )
        if self.slots.guessed:
            self.notice("missing_index", "pieces of tool calls come without an index")
