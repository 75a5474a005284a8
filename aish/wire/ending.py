"""What a finished stream came to: calls, extras and the reason, or why it is no answer.

The order of the questions matters: an answer that is not complete is never anything else (L7).
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from aish.core.deltas import Delta, Extras, Finish, FinishReason
from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.tools import ToolCall
from aish.wire.answer import Answer
from aish.wire.arguments import is_whole
from aish.wire.call_ids import made_id
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    IncompleteStreamError,
    MalformedToolCallError,
    TruncatedToolCallError,
)
from aish.wire.finish import is_error, known_reason
from aish.wire.json_text import Mask, dump, excerpt, is_cut
from aish.wire.leaked_call import looks_leaked
from aish.wire.speech import mended
from aish.wire.tool_call_slots import Slot


@frozen
class Setting:
    """What the decoder knows of the request: its place, its tools, which need arguments.

    `mask` takes the secrets out of what is shown of an answer.
    """

    place: Place
    known_tools: Collection[str]
    required: Mapping[str, bool]
    mask: Mask


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
    """Whether a call counts without a finish reason: only if nothing of it is missing."""
    if arguments.strip():
        return is_whole(arguments)
    return setting.required.get(name) is False


def _check_content(
    answer: Answer, reason: FinishReason, calls: list[ToolCall], setting: Setting
) -> None:
    """Refuse an end that has nothing before it, unless the model said it was done."""
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
