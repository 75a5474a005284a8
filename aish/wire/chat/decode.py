"""The answer of `/chat/completions`: bytes in, deltas out (L3, L5, L6, L7; quirks 1 to 60).

A status of 200 may carry an error as JSON (quirks 23 to 25); token counts and costs have many
spellings. `AnswerDecoder` reads the bytes, `Answer` builds the turn.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.messages import Delta, Extras, Finish, FinishReason, StreamNotice, TextPiece, Usage
from aish.core.patterns import lazy_pattern
from aish.core.tools import ToolCall
from aish.net.rate_limits import retry_advice
from aish.wire.chat.answer_text import (
    REASONING_FIELDS,
    Speech,
    content_pieces,
    mended,
    reasoning_text,
)
from aish.wire.chat.tool_calls import Slot, ToolCallSlots, is_whole, made_id, merge_field
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    IncompleteStreamError,
    LimitError,
    MalformedToolCallError,
    StreamError,
    TruncatedToolCallError,
    UnfinishedStreamError,
    UnreadableStreamError,
)
from aish.wire.json_text import (
    DONE,
    BrokenJsonError,
    Mask,
    dump,
    excerpt,
    is_cut,
    json_values,
    raw_decode,
)
from aish.wire.sse import MAX_EVENT, UNFRAMED, Frame, SseReader

_SHOWN: Final = 400
_RETRYABLE: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 525), 529})
_STATUSES: Final = frozenset(str(status) for status in range(100, 600))
# Words in codes and types that say that a retry would fail again.
_FINAL_WORDS: Final = (
    "quota", "billing", "credit", "payment", "balance", "insufficient_funds", "invalid",
    "context", "not_found", "authentication", "permission", "unauthorized", "forbidden",
    "content_filter", "content_policy", "moderation", "unsupported", "too_large",
)  # fmt: skip
_MONEY_WORDS: Final = _FINAL_WORDS[:6]
_WORD_FIELDS: Final = ("code", "type", "status", "error_type")
_TEXT_FIELDS: Final = ("message", "error_message", "detail", "msg", "error", "reason")


def find_error(value: dict[str, Any], mask: Mask) -> InBandError | None:
    """The error that an event or a body reports, or `None`; `mask` takes secrets out of it.

    An answer has `choices`; without them a message alone is an error too (quirk 24).
    """
    error = value.get("error")
    if error or value.get("object") == "error":
        return in_band_error(error or value, mask)
    choices = value.get("choices")
    if choices:
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and (inner := choice.get("error")):
                return in_band_error(inner, mask)
        return None
    if value.get("error_message") or value.get("error_type"):
        return in_band_error(value, mask)
    if choices is None and (isinstance(value.get("message"), str) or value.get("detail")):
        return in_band_error(value, mask)
    return None


def in_band_error(error: Any, mask: Mask) -> InBandError:
    """The typed error for whatever the endpoint put in place of one."""
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        text = excerpt(_text_of(error), mask, _SHOWN) or "unnamed error"
        return InBandError(text, advice=retry_advice(error))
    code = _code(error)
    text = excerpt(_message(error), mask, _SHOWN)
    status = f"HTTP {code}: " if isinstance(code, int) else ""
    return InBandError(
        f"{status}{text}", code=code, retryable=_is_retryable(code), advice=retry_advice(error)
    )


def _message(error: dict[str, Any]) -> str:
    for name in _TEXT_FIELDS:
        if found := error.get(name):
            return _text_of(found)
    return dump(error)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def _code(error: dict[str, Any]) -> str | int | None:
    """The status if there is one; the word instead if it says that credit is missing."""
    found = [error[name] for name in _WORD_FIELDS if isinstance(error.get(name), str | int)]
    words = [word for word in found if isinstance(word, str) and word and not word.isdigit()]
    for word in words:
        if any(part in word.lower() for part in _MONEY_WORDS):
            return word
    for number in found:
        if str(number) in _STATUSES:
            return int(number)
    return words[0] if words else None


def _is_retryable(code: str | int | None) -> bool:
    """Whether a retry may help; an unspecified error is taken for a temporary one."""
    if isinstance(code, int):
        return code in _RETRYABLE
    return code is None or not any(part in code.lower() for part in _FINAL_WORDS)


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
    "reasoning": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("reasoning_tokens",),
    ),
}
_USAGE_BELOW: Final = 2**53


def read_usage(value: Any) -> Usage:
    """The counts in a `usage` object. Unknown is not zero (quirk 34)."""
    return Usage(**{name: _first_count(value, paths) for name, paths in _COUNTS.items()})


def read_cost(value: Any) -> float | None:
    """US dollars in a `usage` object, from endpoints that report costs (B10).

    A number, or an object with the total in it.
    """
    cost = value.get("cost") if isinstance(value, Mapping) else None
    if isinstance(cost, Mapping):
        cost = cost.get("total_cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool):
        return float(cost) if 0 <= cost < _USAGE_BELOW and math.isfinite(cost) else None
    return None


def _first_count(value: Any, paths: tuple[tuple[str, ...], ...]) -> int | None:
    for path in paths:
        found = value
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if (
            isinstance(found, int | float)
            and not isinstance(found, bool)
            and 0 <= found < _USAGE_BELOW
        ):
            return int(found)
    return None


# `annotations` and `audio` are documented as output only: endpoints do not take them back.
_KNOWN_FIELDS: Final = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "annotations", "audio"}
    | set(REASONING_FIELDS)
)
# Content of these types is a call in the format of another API.
_CALLS_IN_CONTENT: Final = frozenset({"tool_use", "tool_call", "tool_calls", "function_call"})


class Choice:
    """One choice: its speech, calls, fields, and end."""

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
        """Whether there is anything in it besides calls."""
        return bool(self.speech.said or self.reasoning or self.refusal)

    def notice(self, code: str, text: str) -> None:
        """Report a tolerated oddity; once per stream."""
        if code not in self._noticed:
            self._noticed.add(code)
            self.speech.remark(StreamNotice(code, text))

    def count(self, usage: Any) -> bool:
        """Counts may come again and again; they are totals, the last one wins (quirk 33).

        Returns whether they are new.
        """
        if not isinstance(usage, dict) or usage == self.usage:
            return False
        is_counted = any(type(count) in {int, float} for count in usage.values())
        if is_counted:
            self.usage = usage
        return is_counted

    def take(self, choice: dict[str, Any]) -> bool:
        """Take an element of `choices`; returns whether it carries anything (L4).

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
                self._add_again(message)
            else:
                self._add(message, whole=True)
        finish = choice.get("finish_reason")
        self.has_finish_key = self.has_finish_key or "finish_reason" in choice
        if isinstance(finish, str) and finish:
            is_news = is_news or finish != self.finish
            self.finish = finish
        return is_news or is_filled(delta) or is_filled(message)

    def _add_again(self, message: dict[str, Any]) -> None:
        """A whole message after its pieces adds nothing new, except perhaps the calls."""
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


def known_reason(raw: str) -> FinishReason:
    """The reason for an endpoint's own word; `stop` if it sends none (quirk 14)."""
    return _REASONS.get(raw.lower(), "other") if raw else "stop"


def is_error(raw: str) -> bool:
    """Whether the word means that the answer was aborted."""
    return raw.lower() in _ERRORS


# The maximum that endpoints send when several are requested.
_MOST_CHOICES: Final = 128


def plain_text(value: Any) -> str | None:
    """The text of a chunk that holds only a piece of text and an open end, else `None`."""
    try:
        choices = value["choices"]
        choice = choices[0]
        end = choice["finish_reason"]
        delta = choice["delta"]
        text = delta["content"]
    except (KeyError, TypeError, IndexError):
        return None
    if type(text) is not str or len(choices) > 1:
        return None
    if len(delta) > 1 + ("role" in delta) and _has_more(delta):
        return None
    more = end or choice.get("index") or choice.get("error")
    more = more or value.get("usage") or value.get("error") or value.get("x_groq")
    return None if more else text


_BESIDES: Final = frozenset({"role", "index", "id", "type"})


def is_filled(value: Any) -> bool:
    """Whether a delta has any value, at any depth, besides those that only name its place."""
    if isinstance(value, dict):
        return any(is_filled(inner) for name, inner in value.items() if name not in _BESIDES)
    if isinstance(value, list):
        return any(map(is_filled, value))
    return bool(value)


def _has_more(delta: dict[str, Any]) -> bool:
    """Whether a delta has more than text and empty fields."""
    return any(value for name, value in delta.items() if name not in {"role", "content"})


class Answer:
    """The state of one turn: the first choice, and others if there are any.

    After `settle` the first holds everything that counts.
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
        """The endpoint's last finish reason, unchanged."""
        return self.first.finish

    @property
    def is_unfinished(self) -> bool:
        """Whether the endpoint sends finish reasons, and none came (quirk 14)."""
        choices = (self.first, *self._others.values())
        return not (self.finish or self.whole) and any(one.has_finish_key for one in choices)

    @property
    def whole(self) -> bool:
        """Whether it was received as a whole, not as a stream (quirk 18)."""
        return self.first.whole or any(other.whole for other in self._others.values())

    @property
    def usage(self) -> Usage:
        """The last counts received."""
        return read_usage(self.first.usage)

    @property
    def cost_usd(self) -> float | None:
        """The cost reported by the endpoint."""
        return read_cost(self.first.usage)

    @property
    def refusal(self) -> str | None:
        """The model's refusal to answer."""
        return "".join(self.first.refusal) or None

    def notice(self, code: str, text: str) -> None:
        """Report a tolerated oddity; once per stream."""
        self.first.notice(code, text)

    def take(self, value: dict[str, Any]) -> bool:
        """Add a chunk of a stream, or a whole completion; returns whether it carries anything.

        Raises:
            InBandError: the endpoint reports an error.
            MalformedToolCallError: what it says of calls is nothing that can be used.
            LimitError: there are too many choices.
        """
        if error := find_error(value, self._mask):
            raise error
        is_news = False
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
        """The choice of that name beside the first."""
        other = self._others.get(key)
        if other is None:
            if len(self._others) >= _MOST_CHOICES:
                raise LimitError(f"the answer has over {_MOST_CHOICES} choices")
            other = self._others[key] = Choice(self._known, self._mask)
        return other

    def _pass_over(self, others: Sequence[Choice]) -> None:
        """Leave choices out; reported if they are separate answers."""
        if any(other.speech.said and other.speech.heard != self.speech.heard for other in others):
            self.notice("other_choices", "the endpoint sends more than one answer")

    def _end_as(self, calling: Sequence[Choice]) -> None:
        """Use the end of the choices with the calls, the worst one first."""
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


_MARKS = lazy_pattern(
    r"<tool_call>|<\|tool_call|<\|channel\|>|<function[=_]|<invoke\b|\[TOOL_CALLS\]|<\uff5ctool"
    r"|\[call: \w"
)


def looks_leaked(text: str, known_tools: Collection[str]) -> bool:
    """Whether a text has the marks of a call, or names a tool as a call would."""
    if _MARKS.search(text):
        return True
    names = "|".join(re.escape(name) for name in known_tools)
    named = rf'"name"\s*:\s*"(?:{names})"|^\W*(?:functions\.)?(?:{names})\s*[({{]'
    return bool(names) and re.search(named, text, re.MULTILINE) is not None


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


def last_deltas(answer: Answer, setting: Setting, *, done: bool) -> list[Delta]:
    """The rest of an answer whose stream is over; `done` says that `[DONE]` was there.

    Raises:
        StreamError: there is no answer.
    """
    answer.settle()
    if is_error(answer.finish):
        raise InBandError(
            f"finish reason `{excerpt(answer.finish, setting.mask)}`", code=answer.finish
        )
    if not (answer.finish or done or answer.whole):
        raise IncompleteStreamError("the stream ended before the answer did")
    if answer.is_unfinished and not setting.finish_optional:
        raise UnfinishedStreamError(NO_FINISH)
    reason = _reason(answer)
    calls = [] if reason == "refusal" else _calls(answer, reason, setting)
    _check_content(answer, reason, calls, setting)
    _add_notices(answer, reason, calls, setting)
    fields = _mended_fields(answer.message_fields())
    return [
        *answer.speech.take(),
        *calls,
        *([Extras(fields)] if fields else []),
        Finish(
            "tool_calls" if calls else reason,
            answer.usage,
            raw=mended(answer.finish),
            refusal=answer.refusal and mended(answer.refusal),
            cost_usd=answer.cost_usd,
        ),
    ]


def _reason(answer: Answer) -> FinishReason:
    return "refusal" if answer.refusal else known_reason(answer.finish)


def _calls(answer: Answer, reason: FinishReason, setting: Setting) -> list[ToolCall]:
    """The calls, whole and with ids of their own (quirks 38, 40, 47, 53, 55)."""
    for slot in answer.slots.all:
        _check_call(slot, answer.finish, reason, setting)
    taken: set[str] = set()
    calls = []
    for index, slot in enumerate(answer.slots.all):
        id = mended(slot.id)
        if not id.strip() or id in taken:
            others = taken | {other.id for other in answer.slots.all}
            id = made_id(setting.place, index, others)
        taken.add(id)
        extras = _mended_fields(slot.extras)
        calls.append(ToolCall(id, mended(slot.name), mended(slot.arguments), extras))
    return calls


def _check_call(slot: Slot, raw: str, reason: FinishReason, setting: Setting) -> None:
    arguments = slot.arguments
    if reason == "length" and not (slot.name and is_whole(arguments)):
        raise TruncatedToolCallError("truncated tool call: the token limit came in its arguments")
    if not slot.name:
        raise MalformedToolCallError("malformed tool call: its name was never sent")
    if not raw and not _may_stand(slot.name, arguments, setting):
        raise IncompleteStreamError("the stream ended inside a tool call")
    if raw and reason != "tool_calls" and is_cut(arguments):
        raise MalformedToolCallError("malformed tool call: its arguments break off")


def _may_stand(name: str, arguments: str, setting: Setting) -> bool:
    """Whether a call counts without a finish reason: only if it is complete."""
    if arguments.strip():
        return is_whole(arguments)
    return setting.required.get(name) is False


def _check_content(
    answer: Answer, reason: FinishReason, calls: list[ToolCall], setting: Setting
) -> None:
    """Refuse an empty answer, unless the model reported that it was done."""
    if answer.first.misplaced and not calls and reason != "refusal":
        raise MalformedToolCallError(
            f"malformed tool call: it came {answer.first.misplaced}, not among `tool_calls`"
        )
    if calls or reason in {"refusal", "length"}:
        return
    if reason == "tool_calls":
        finish = excerpt(answer.finish, setting.mask)
        raise MalformedToolCallError(
            f"malformed tool call: finish reason `{finish}` without a call"
        )
    plainly_done = answer.finish and reason == "stop"
    if not (plainly_done or answer.speech.said or answer.first.thought):
        raise EmptyStreamError("the stream ended without an answer")


def _add_notices(
    answer: Answer, reason: FinishReason, calls: list[ToolCall], setting: Setting
) -> None:
    said = answer.speech.said
    if not (answer.finish or answer.whole):
        answer.notice("no_finish_reason", NO_FINISH)
    if calls and reason != "tool_calls" and said:
        answer.notice(
            "calls_despite_finish",
            f"text and tool calls under finish reason `{excerpt(answer.finish, setting.mask)}`",
        )
    if reason == "refusal" and answer.slots.all:
        answer.notice("calls_despite_refusal", "the tool calls of a refused answer were left out")
    if not calls and said and looks_leaked(answer.speech.heard, setting.known_tools):
        answer.notice("leaked_call", "the answer has a tool call as text; text is never executed")


def _mended_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields as they came, unless they hold halves of characters."""
    text = dump(fields)
    whole = mended(text)
    if whole == text:
        return fields
    loaded: dict[str, Any] = json.loads(whole)
    return loaded


NOT_AN_ANSWER: Final = "not a chat completion: "
_MOST: Final = 4096
# The standard says to ignore unknown fields, but not errors.
_UNKNOWN_FIELD: Final = lazy_pattern(rb"(?!error:|fatal:)[a-z][a-z0-9_-]*:")
_FIELDS: Final = (b"data", b"event", b"id", b"retry")


class StrayLines:
    """Collects lines up to a size, and reports at the end what they were (quirks 21, 22)."""

    __slots__ = ("_lines", "_mask", "_odd", "_size")

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._lines: list[bytes] = []
        self._odd = False
        self._size = 0

    def add(self, line: bytes) -> None:
        """Add a line."""
        self._odd = self._odd or not _UNKNOWN_FIELD.match(line)
        if self._size < _MOST:
            self._lines.append(line[:_MOST])
            self._size += len(line)

    def error(self, *, begun: bool) -> StreamError | None:
        """The error for the lines; `begun` says that there was an answer around them."""
        if not self._lines or (begun and not self._odd):
            return None
        text = b"\n".join(self._lines).decode("utf-8", "replace")
        try:
            for value in json_values(text):
                if isinstance(value, dict) and (error := find_error(value, self._mask)):
                    return error
        except BrokenJsonError:
            pass
        if begun:
            return UnreadableStreamError(f"text inside the stream: {excerpt(text, self._mask)}")
        return not_a_stream(text, self._mask)


def not_a_stream(text: str, mask: Mask) -> UnreadableStreamError:
    """The error for a page or a text in place of an answer: most often the address is wrong."""
    return UnreadableStreamError(f"{NOT_AN_ANSWER}{excerpt(text, mask)}", retryable=False)


def is_cut_field(line: bytes) -> bool:
    """Whether a last line is the beginning of a field's name: the connection was cut there."""
    return any(field.startswith(line) for field in _FIELDS)


_BOM: Final = b"\xef\xbb\xbf"
_PINGS: Final = frozenset({b"ping", b"heartbeat", b"keepalive", b"keep-alive"})
_PINGED: Final = ("ping_as_data", "pings come framed as data")


class ChatDecoder:
    """Decodes one response with status 200; use one decoder for each try.

    `known_tools` are the wire names of the tools in the request, `required` says which of them
    have required arguments. `finish_optional` accepts an answer whose finish reason stays null.
    `mask` takes the secrets out of what errors and notices
    show of an answer, before it is cut.
    """

    __slots__ = (
        "_answer", "_begun", "_body", "_closing", "_head", "_kind", "_reader", "_setting", "_stray",
        "done", "progress",
    )  # fmt: skip

    def __init__(
        self,
        *,
        place: Place,
        known_tools: Collection[str] = (),
        required: Mapping[str, bool] | None = None,
        mask: Mask = str,
        finish_optional: bool = False,
    ) -> None:
        self.progress = 0
        """How often something of the answer has come: a text, a call, counts or the end (L4)."""
        self.done = False
        """Whether `[DONE]` was seen: what follows is not worth waiting for."""
        self._setting = Setting(
            place, frozenset(known_tools), required or {}, mask, finish_optional
        )
        self._answer = Answer(self._setting.known_tools, mask)
        self._reader = SseReader()
        self._stray = StrayLines(mask)
        self._begun = False
        self._kind: Literal["unknown", "events", "json"] = "unknown"
        self._closing = False
        self._head = b""
        self._body = bytearray()

    @property
    def complete(self) -> bool:
        """Whether the answer is complete, so that the end of the connection is no loss."""
        return self.done or self._answer.over

    @property
    def counted(self) -> bool:
        """Whether token counts have come."""
        return bool(self._answer.first.usage)

    def feed(self, chunk: bytes) -> list[Delta]:
        """The deltas in a piece of the body, with text merged.

        Raises:
            StreamError: the endpoint reports an error, or sends something other than an answer.
        """
        if self.done:
            return []
        if self._kind != "events":
            chunk = self._look(chunk) if self._kind == "unknown" else chunk
            if self._kind == "json":
                self._keep(chunk)
                return []
        try:
            self._take_frames(self._reader.frames(chunk))
        except RecursionError:
            raise UnreadableStreamError("the answer has too many levels") from None
        return self._answer.speech.take()

    def close(self) -> list[Delta]:
        """The end of the body: the rest of the answer, `Finish` last.

        Raises:
            StreamError: the answer is incomplete.
        """
        try:
            if self._kind == "json":
                self._end_json(self._body.decode("utf-8", "replace"))
            else:
                self._end_events()
            return last_deltas(self._answer, self._setting, done=self.done)
        except RecursionError:
            raise UnreadableStreamError("the answer has too many levels") from None

    def _look(self, chunk: bytes) -> bytes:
        """Determine the type of the body by its first byte that is not a space (quirks 17, 18)."""
        head = self._head + chunk
        text = b"" if _BOM.startswith(head) else head.removeprefix(_BOM).lstrip()
        if text:
            self._kind = "json" if text[:1] in {b"{", b"["} else "events"
        else:
            self._head = head[: len(_BOM)]
        return text

    def _keep(self, chunk: bytes) -> None:
        """Collect a body that is one JSON text."""
        self.progress += bool(chunk.strip())
        self._body += chunk
        if len(self._body) > MAX_EVENT:
            raise LimitError(f"the answer is over {MAX_EVENT >> 20} MiB")

    def _take_frames(self, frames: list[Frame]) -> None:
        """Process events; nearly all are a piece of text without a name."""
        first, speech = self._answer.first, self._answer.speech
        for data, event in frames:
            if event is not None or (value := _parsed(data)) is None:
                self._take_odd(data, event)
                if self.done:
                    return
            elif (text := plain_text(value)) is None:
                self._take_value(value)
            else:
                self.progress += bool(text)
                first.has_finish_key = True
                if speech.thoughts:
                    speech.settle()
                speech.texts.append(text)

    def _take_value(self, value: Any) -> None:
        if value == DONE:
            self.done = True
        elif isinstance(value, dict):
            self._begun = self._begun or "choices" in value or "usage" in value
            self.progress += self._answer.take(value)
        elif value is None:
            self._answer.notice(*_PINGED)
        elif isinstance(value, list):  # Gemini wraps an error in one
            for inner in value:
                self._take_value(inner)
        else:
            self._refuse(f"an event is no object: {excerpt(str(value), self._setting.mask)}")

    def _take_odd(self, data: bytes, event: bytes | None) -> None:
        """Process an event that is named, or is not one JSON value (quirks 2, 9, 21, 25)."""
        if event is UNFRAMED:
            self._take_stray(data)
            return
        text = data.decode("utf-8", "replace").strip()
        if event == b"error":
            raise in_band_error(_parsed(data) or text, self._setting.mask)
        if not text or event in _PINGS:
            return
        if text.startswith(":"):
            self._answer.notice("comment_as_data", "comments come framed as data")
            return
        if text.lower().encode() in _PINGS:
            self._answer.notice(*_PINGED)
            return
        try:
            for value in json_values(text):
                self._take_value(value)
        except BrokenJsonError:
            self._refuse(f"an event is no JSON: {excerpt(text, self._setting.mask)}")

    def _take_stray(self, line: bytes) -> None:
        if self._closing and is_cut_field(line):
            return
        if self.complete:
            self._answer.notice("unframed_text", "text without a frame after the answer")
        else:
            self._stray.add(line)

    def _refuse(self, message: str) -> None:
        """Unreadable data is an error, but only a notice after the answer."""
        if not self.complete:
            raise UnreadableStreamError(message)
        self._answer.notice("unreadable_event", message)

    def _end_events(self) -> None:
        if not self.done:
            self._take_frames(self._reader.settled_frames())
        if not self.done:
            self._closing = True
            try:
                self._take_frames(self._reader.last_frames())
            except UnreadableStreamError:
                raise IncompleteStreamError("the stream ended inside an event") from None
        begun = self._begun or self._answer.first.has_finish_key
        if error := self._stray.error(begun=begun):
            raise error
        if not (self.done or begun):
            raise EmptyStreamError("the answer is empty")

    def _end_json(self, text: str) -> None:
        """Read a body that is one completion, whatever follows it (quirks 18, 19)."""
        try:
            for value in json_values(text):
                self._take_value(value)
        except BrokenJsonError as error:
            if self.complete or self._answer.whole:
                self._answer.notice("unframed_text", "text without a frame after the answer")
            elif is_cut(error.rest):
                raise IncompleteStreamError("the answer ended inside its JSON") from None
            else:
                raise not_a_stream(text, self._setting.mask) from None
        if not (self._answer.begun or self.done):
            raise not_a_stream(text, self._setting.mask)


def _parsed(data: bytes) -> Any:
    """The one JSON value that the data is, else `None`."""
    try:
        text = data.decode()
        value, end = raw_decode(text)
    except ValueError:
        return None
    return value if end == len(text) else None
