"""The answer that the pieces of `/chat/completions` make: choices, counts and the end of a turn.

Token counts and costs have many spellings, and an answer may have several choices. `decode` reads
the bytes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.messages import (
    Delta,
    Extras,
    Finish,
    FinishReason,
    StreamNotice,
    TextPiece,
    Usage,
)
from aish.core.tools import ToolCall
from aish.wire.calls import is_whole, looks_leaked, make_call_id
from aish.wire.chat.answer_text import REASONING_FIELDS, content_pieces, reasoning_text
from aish.wire.chat.tool_calls import ToolCallSlot, ToolCallSlots
from aish.wire.counts import ServedReader, first_count, read_cost, read_count, whole_input
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    IncompleteStreamError,
    LimitError,
    MalformedToolCallError,
    TruncatedToolCallError,
    UnfinishedStreamError,
)
from aish.wire.json_text import Mask, excerpt, is_cut, merge_field
from aish.wire.speech import Speech, repair_fields, repair_text

_COUNTS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "input": (("prompt_tokens",), ("input_tokens",)),
    "output": (("completion_tokens",), ("output_tokens",)),
    "cached": (
        ("prompt_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cached_tokens"),
        ("cached_tokens",),
        ("prompt_cache_hit_tokens",),
        ("cache_read_input_tokens",),
    ),
    "cache_written": (
        ("prompt_tokens_details", "cache_write_tokens"),
        ("prompt_tokens_details", "cache_creation_tokens"),
        ("input_tokens_details", "cache_write_tokens"),
        ("cache_creation_input_tokens",),
    ),
    "reasoning": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("reasoning_tokens",),
    ),
}


def read_usage(value: Any) -> Usage:
    """The counts in a `usage` object. Unknown is not zero, and 0 for all is unknown."""
    usage = Usage(**{name: first_count(value, paths) for name, paths in _COUNTS.items()})
    usage = whole_input(usage)
    return usage if usage.input or usage.output else Usage()


# `annotations` and `audio` are documented as output only: endpoints do not take them back.
_KNOWN_FIELDS: Final = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "annotations", "audio"}
    | set(REASONING_FIELDS)
)
# Content of these types is a call in the format of another API.
_CALLS_IN_CONTENT: Final = frozenset({"tool_use", "tool_call", "tool_calls", "function_call"})


class Choice:
    """Choice of an answer: its speech, calls, fields, and end."""

    __slots__ = (
        "_known", "_mask", "_noticed", "begun", "extras", "finish", "has_finish_key", "misplaced",
        "reasoning", "refusal", "slots", "speech", "usage", "whole",
    )  # fmt: skip

    def __init__(self, known_tools: Collection[str], mask: Mask) -> None:
        self.speech = Speech()
        self.slots = ToolCallSlots(known_tools)
        self.extras: dict[str, Any] = {}
        self.finish = ""
        """The endpoint's own word for the end, the last it sent."""
        self.has_finish_key = False
        """Whether the key of the finish reason came, with a value or without."""
        self.usage: dict[str, Any] = {}
        """The last counts that came."""
        self.begun = False
        self.whole = False
        """Whether it came in one piece, not as a stream."""
        self.misplaced = ""
        """Where a call was that is not among `tool_calls`."""
        self.reasoning: dict[str, list[str]] = {}
        self.refusal: list[str] = []
        self._known = known_tools
        self._mask = mask
        self._noticed: set[str] = set()

    @property
    def thought(self) -> bool:
        return bool(self.reasoning)

    @property
    def says_anything(self) -> bool:
        return bool(self.speech.said or self.reasoning or self.refusal)

    def notice(self, code: str, text: str) -> None:
        if code not in self._noticed:
            self._noticed.add(code)
            self.speech.remark(StreamNotice(code, text))

    def count(self, usage: Any) -> bool:
        """Counts may come again and again; they are totals, the last one wins.

        Returns whether they are new.
        """
        if not isinstance(usage, dict) or usage == self.usage:
            return False
        is_counted = any(read_count(count) is not None for count in usage.values())
        if is_counted:
            self.usage = usage
        return is_counted

    def take(self, choice: dict[str, Any]) -> bool:
        """Take an element of `choices`; returns whether it carries anything.

        Raises:
            MalformedToolCallError: what it says of calls is nothing that can be used.
        """
        self.begun = True
        is_news = self.count(choice.get("usage"))
        delta, message = choice.get("delta"), choice.get("message")
        if isinstance(delta, dict):
            self._add(delta)
        elif isinstance(message, dict):
            self.whole = True
            self.speech.settle()
            if self.speech.said or self.slots.all:
                # A whole message after its pieces adds nothing new, except perhaps the calls
                again = Choice(self._known, self._mask)
                again.take({"message": message})
                if not self.slots.all:
                    self.slots.join(again.slots)
                elif again.slots.all and not again.slots.repeat(self.slots):
                    raise MalformedToolCallError(
                        "malformed tool call: the calls were sent again, and are not the same"
                    )
                self.misplaced = self.misplaced or again.misplaced
            else:
                self._add(message, whole=True)
        finish = choice.get("finish_reason")
        self.has_finish_key = self.has_finish_key or "finish_reason" in choice
        if isinstance(finish, str) and finish:
            is_news = is_news or finish != self.finish
            self.finish = finish
        return is_news or is_filled(delta) or is_filled(message)

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
        """Thinking is kept by field name, and shown once if two fields are the same."""
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


_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "refusal",
    "safety": "refusal",
    "refusal": "refusal",
}
_ERRORS: Final = frozenset(
    {
        "error", "insufficient_system_resource", "cancel", "cancelled", "canceled",
        "abort", "aborted", "timeout", "malformed_function_call",
    }
)  # fmt: skip


NO_FINISH: Final = "the answer ended without a `finish_reason`"


def to_finish_reason(raw: str) -> FinishReason:
    """The reason for an endpoint's own word; `stop` if it sends none."""
    return _REASONS.get(raw.lower(), "other") if raw else "stop"


def is_error(raw: str) -> bool:
    """Return true if the word means that the answer was aborted."""
    return raw.lower() in _ERRORS


# The maximum that endpoints send when several are requested.
_MOST_CHOICES: Final = 128


_BESIDES: Final = frozenset({"role", "index", "id", "type"})


def is_filled(value: Any) -> bool:
    """Return true if a delta has any value, at any depth, besides those that name its place."""
    if isinstance(value, dict):
        return any(is_filled(inner) for name, inner in value.items() if name not in _BESIDES)
    if isinstance(value, list):
        return any(map(is_filled, value))
    return bool(value)


@frozen
class Setting:
    """The decoder's data about the request: its place, its tools, which need arguments.

    `mask` takes the secrets out of what is shown of an answer.
    """

    place: Place
    known_tools: Collection[str]
    required: Mapping[str, bool]
    mask: Mask
    finish_optional: bool


class ChatAnswer:
    """The state of one turn: the first choice, and others if there are any.

    After `settle` the first holds everything that counts.
    """

    __slots__ = ("_others", "begun", "first", "served", "setting", "slots", "speech")

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.first = Choice(setting.known_tools, setting.mask)
        self.speech = self.first.speech
        self.slots = self.first.slots
        self.begun = False
        """Whether a choice has come."""
        self.served = ServedReader()
        self._others: dict[str, Choice] = {}

    @property
    def over(self) -> bool:
        """True if every choice that counts has its finish reason."""
        others = self._others.values()
        if any(other.slots.all and not other.finish for other in others):
            return False
        first = self.first
        return bool(first.finish) or (not first.begun and any(other.finish for other in others))

    @property
    def finish(self) -> str:
        return self.first.finish

    @property
    def shown_finish(self) -> str:
        return excerpt(self.finish, self.setting.mask)

    @property
    def is_unfinished(self) -> bool:
        """True if the endpoint sends finish reasons, and none came."""
        choices = (self.first, *self._others.values())
        return not self.finish and any(one.has_finish_key for one in choices)

    @property
    def whole(self) -> bool:
        """True if it was received as a whole, not as a stream."""
        return self.first.whole or any(other.whole for other in self._others.values())

    @property
    def usage(self) -> Usage:
        return read_usage(self.first.usage)

    @property
    def cost_usd(self) -> float | None:
        return read_cost(self.first.usage)

    @property
    def refusal(self) -> str | None:
        return "".join(self.first.refusal) or None

    def notice(self, code: str, text: str) -> None:
        self.first.notice(code, text)

    def read_served(self, value: dict[str, Any]) -> None:
        """Read what a chunk says of the model that answers."""
        if (changed := self.served.take(value)) is not None:
            self.notice("served_changed", changed)

    def take(self, value: dict[str, Any]) -> bool:
        """Add a chunk of a stream, or a whole completion; returns whether it carries anything.

        Raises:
            MalformedToolCallError: what it says of calls is nothing that can be used.
            LimitError: there are too many choices.
        """
        is_news = False
        self.read_served(value)
        if usage := value.get("usage"):
            is_news = self.first.count(usage)
        elif isinstance(other := value.get("x_groq"), dict) and not self.first.usage:
            is_news = self.first.count(other.get("usage"))
        choices = value.get("choices")
        first_taken = False
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            self.begun = True
            index = choice.get("index")
            if index or (first_taken and "message" in choice):
                key = str(index or f"another {len(self._others)}")
                is_news = self._other(key).take(choice) or is_news
            else:
                is_news = self.first.take(choice) or is_news
                first_taken = True
        return is_news

    def message_fields(self) -> dict[str, Any]:
        """The fields that are sent back to the same endpoint, under their original names."""
        reasoning = self.first.reasoning.items()
        spoken = {name: "".join(parts) for name, parts in reasoning if any(parts)}
        return {**spoken, **self.first.extras}

    def settle(self) -> None:
        """The end of the answer: merge the choices into one turn.

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
        other = self._others.get(key)
        if other is None:
            if len(self._others) >= _MOST_CHOICES:
                raise LimitError(f"the answer has over {_MOST_CHOICES} choices")
            other = self._others[key] = Choice(self.setting.known_tools, self.setting.mask)
        return other

    def _pass_over(self, others: Sequence[Choice]) -> None:
        """Leave choices out; reported if they are separate answers."""
        if any(other.speech.said and other.speech.heard != self.speech.heard for other in others):
            self.notice("other_choices", "the endpoint sends more than one answer")

    def _end_as(self, calling: Sequence[Choice]) -> None:
        """Use the end of the choices with the calls, the worst one first."""
        ends = [other.finish for other in calling]
        failed = [end for end in (self.finish, *ends) if is_error(end)]
        odd = [end for end in ends if to_finish_reason(end) != "tool_calls"]
        if failed:
            self.first.finish = failed[0]
        elif all(ends):
            self.first.finish = (odd or ends)[0]
        elif to_finish_reason(self.finish) != "tool_calls":
            self.first.finish = ""

    def _join(self, others: Sequence[Choice]) -> None:
        """Add the text of other choices to the first, without repeating any."""
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


def last_deltas(answer: ChatAnswer, *, done: bool) -> list[Delta]:
    """The rest of an answer whose stream is over; `done` says that `[DONE]` was there.

    Raises:
        StreamError: there is no answer.
    """
    answer.settle()
    if is_error(answer.finish):
        raise InBandError(f"finish reason `{answer.shown_finish}`", code=answer.finish)
    if not (answer.finish or done or answer.whole):
        raise IncompleteStreamError("the stream ended before the answer did")
    if answer.is_unfinished and not answer.setting.finish_optional:
        raise UnfinishedStreamError(NO_FINISH)
    reason = "refusal" if answer.refusal else to_finish_reason(answer.finish)
    calls = [] if reason == "refusal" else _calls(answer, reason)
    _check_content(answer, reason, calls)
    _add_notices(answer, reason, calls)
    fields = repair_fields(answer.message_fields())
    return [
        *answer.speech.take(),
        *calls,
        *([Extras(fields)] if fields else []),
        Finish(
            "tool_calls" if calls else reason,
            answer.usage,
            raw=repair_text(answer.finish),
            refusal=answer.refusal and repair_text(answer.refusal),
            cost_usd=answer.cost_usd,
            served=answer.served.served,
        ),
    ]


def _calls(answer: ChatAnswer, reason: FinishReason) -> list[ToolCall]:
    """The calls, whole and with ids of their own."""
    for slot in answer.slots.all:
        _check_call(slot, answer, reason)
    taken: set[str] = set()
    calls = []
    for index, slot in enumerate(answer.slots.all):
        id = repair_text(slot.id)
        if not id.strip() or id in taken:
            others = taken | {other.id for other in answer.slots.all}
            id = make_call_id(answer.setting.place, index, others)
        taken.add(id)
        extras = repair_fields(slot.extras)
        calls.append(ToolCall(id, repair_text(slot.name), repair_text(slot.arguments), extras))
    return calls


def _check_call(slot: ToolCallSlot, answer: ChatAnswer, reason: FinishReason) -> None:
    arguments, raw = slot.arguments, answer.finish
    if reason == "length" and not (slot.name and is_whole(arguments)):
        raise TruncatedToolCallError("truncated tool call: the token limit came in its arguments")
    if not slot.name:
        raise MalformedToolCallError("malformed tool call: its name was never sent")
    # Without a finish reason, only a complete call is accepted.
    needed = arguments.strip() or answer.setting.required.get(slot.name) is not False
    if not raw and needed and not is_whole(arguments):
        raise IncompleteStreamError("the stream ended inside a tool call")
    if raw and reason != "tool_calls" and is_cut(arguments):
        raise MalformedToolCallError("malformed tool call: its arguments break off")


def _check_content(answer: ChatAnswer, reason: FinishReason, calls: list[ToolCall]) -> None:
    """Refuse an empty answer, unless the model reported that it was done."""
    if answer.first.misplaced and not calls and reason != "refusal":
        raise MalformedToolCallError(
            f"malformed tool call: it came {answer.first.misplaced}, not among `tool_calls`"
        )
    if calls or reason in {"refusal", "length"}:
        return
    if reason == "tool_calls":
        said = f"finish reason `{answer.shown_finish}` without a call"
        raise MalformedToolCallError(f"malformed tool call: {said}")
    plainly_done = answer.finish and reason == "stop"
    if not (plainly_done or answer.speech.said or answer.first.thought):
        raise EmptyStreamError("the stream ended without an answer")


def _add_notices(answer: ChatAnswer, reason: FinishReason, calls: list[ToolCall]) -> None:
    said = answer.speech.said
    if not (answer.finish or answer.whole):
        answer.notice("no_finish_reason", NO_FINISH)
    if calls and reason != "tool_calls" and said:
        text = f"text and tool calls under finish reason `{answer.shown_finish}`"
        answer.notice("calls_despite_finish", text)
    if reason == "refusal" and answer.slots.all:
        answer.notice("calls_despite_refusal", "the tool calls of a refused answer were left out")
    if not calls and said and looks_leaked(answer.speech.heard, answer.setting.known_tools):
        answer.notice("leaked_call", "the answer has a tool call as text; text is never executed")
