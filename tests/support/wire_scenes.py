"""An answer said once, and its stream in the spelling of each wire."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import messages_streams as m
import responses_streams as r
import wire_streams as c

from aish.core.messages import (
    Delta,
    Finish,
    FinishReason,
    ReasoningPiece,
    StreamNotice,
    TextPiece,
)
from aish.core.tools import ToolCall
from aish.wire.calls import canonical
from aish.wire.errors import StreamError
from aish.wire.json_text import parse_object

End = FinishReason | None
Counts = tuple[Any, Any] | None


@dataclass(frozen=True)
class Part:
    """A part of an answer, in the pieces that it comes in."""

    kind: Literal["text", "thought", "refusal", "call"]
    pieces: tuple[str, ...]
    id: str = ""
    name: str = ""

    @property
    def whole(self) -> str:
        return "".join(self.pieces)


def text(*pieces: str) -> Part:
    return Part("text", pieces)


def thought(*pieces: str) -> Part:
    return Part("thought", pieces)


def refusal(*pieces: str) -> Part:
    return Part("refusal", pieces)


def call(id: str, *pieces: str, name: str = "repo__read") -> Part:
    return Part("call", pieces, id, name)


@dataclass(frozen=True)
class Wire:
    """A spelling: of streams, whole answers and errors, and what reads them here.

    The last `closing` events of a stream say that it is over, the one that matters in the word
    `ending`. `overloaded` and `spent` are the
    codes of an error that passes and of one that does not.
    """

    name: str
    stream: Callable[[Sequence[Part], End, Counts], Iterator[bytes]]
    one_piece: Callable[[Sequence[Part], End, Counts], dict[str, Any]]
    error: Callable[[Any, str], bytes]
    decode: Callable[..., list[Delta] | StreamError]
    closing: int
    ending: bytes
    overloaded: str | int
    spent: str

    def events(self, *parts: Part, end: End = "stop", counts: Counts = (10, 5)) -> list[bytes]:
        return list(self.stream(parts, end, counts))

    def answer(self, *parts: Part, end: End = "stop", counts: Counts = (10, 5)) -> bytes:
        return b"".join(self.stream(parts, end, counts))

    def open(self, *parts: Part) -> bytes:
        """A stream that lacks its end."""
        return b"".join(self.events(*parts)[: -self.closing])

    def end_of(self, raw: bytes) -> int:
        """Where the answer is not over yet."""
        at = raw.rfind(self.ending)
        return at if at >= 0 else raw.rindex(b"}")

    def whole(self, *parts: Part, end: End = "stop", counts: Counts = (10, 5)) -> bytes:
        """The answer as one JSON value."""
        return json.dumps(self.one_piece(parts, end, counts)).encode()


@dataclass(frozen=True)
class Turn:
    """What comes of an answer, on any wire; `notices` are the codes of what was odd about it."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    reason: FinishReason = "stop"
    thought: str = ""
    refusal: str | None = None
    counts: Counts = (10, 5)
    notices: tuple[str, ...] = ()


def turn_of(told: list[Delta]) -> Turn:
    finish = told[-1]
    assert isinstance(finish, Finish), told
    calls = [delta for delta in told if isinstance(delta, ToolCall)]
    return Turn(
        "".join(delta.text for delta in told if isinstance(delta, TextPiece)),
        tuple((one.id, one.name, canonical(one.arguments)) for one in calls),
        finish.reason,
        "".join(delta.text for delta in told if isinstance(delta, ReasoningPiece)),
        finish.refusal,
        (finish.usage.input, finish.usage.output),
        tuple(sorted(delta.code for delta in told if isinstance(delta, StreamNotice))),
    )


# Chat completions.

_CHAT_ENDS: Final[Mapping[End, str | None]] = {"refusal": "content_filter"}
_CHAT: Final = {"id": "chatcmpl-1", "created": 1790000000, "model": "gpt-6"}
_CHAT_KEYS: Final = {"text": "content", "thought": "reasoning", "refusal": "refusal"}


def _chat_counts(counts: Counts) -> dict[str, Any] | None:
    names = ("prompt_tokens", "completion_tokens")
    return None if counts is None else {**dict(zip(names, counts, strict=True)), "total_tokens": 15}


def _chat_stream(parts: Sequence[Part], end: End, counts: Counts) -> Iterator[bytes]:
    head = {**_CHAT, "object": "chat.completion.chunk"}
    yield c.chunk({"role": "assistant", "content": ""}, **head)
    number = 0
    for part in parts:
        if part.kind == "call":
            opening = c.call(part.name, "", id=part.id, index=number, type="function")
            more = [c.call(None, piece, index=number) for piece in part.pieces]
            number += 1
            for one in (opening, *more):
                yield c.chunk({"tool_calls": [one]}, **head)
        else:
            for piece in part.pieces:
                yield c.chunk({_CHAT_KEYS[part.kind]: piece}, **head)
    yield c.chunk({}, _CHAT_ENDS.get(end, end), **head)
    yield c.event({"choices": [], "usage": _chat_counts(counts), **head})
    yield c.DONE


def _chat_whole(parts: Sequence[Part], end: End, counts: Counts) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for part in parts:
        if part.kind == "call":
            one = c.call(part.name, part.whole, id=part.id, type="function")
            message.setdefault("tool_calls", []).append(one)
        else:
            message[_CHAT_KEYS[part.kind]] = part.whole
    choice = {"index": 0, "message": message, "finish_reason": _CHAT_ENDS.get(end, end)}
    return {**_CHAT, "object": "chat.completion", "choices": [choice],
            "usage": _chat_counts(counts)}  # fmt: skip


def _chat_error(code: Any, message: str) -> bytes:
    return c.event({"error": {"code": code, "message": message}})


# Messages.

_MESSAGES_ENDS: Final[Mapping[End, str | None]] = {
    "stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "refusal": "refusal",
}  # fmt: skip


def _messages_counts(counts: Counts, *names: str) -> dict[str, Any] | None:
    both = ("input_tokens", "output_tokens")
    return None if counts is None else {
        name: count for name, count in zip(both, counts, strict=True) if name in (names or both)
    }  # fmt: skip


def _messages_end(parts: Sequence[Part], end: End) -> dict[str, Any]:
    """A refusal is not a block here: the end tells it."""
    told = "".join(part.whole for part in parts if part.kind == "refusal")
    details = {"type": "refusal", "category": None, "explanation": told}
    reason = _MESSAGES_ENDS["refusal"] if told else _MESSAGES_ENDS.get(end)
    return {"stop_reason": reason, "stop_sequence": None} | (
        {"stop_details": details} if told else {}
    )


def _messages_blocks(parts: Sequence[Part]) -> Iterator[tuple[Part, dict[str, Any]]]:
    for part in parts:
        if part.kind == "text":
            yield part, {"type": "text", "text": part.whole}
        elif part.kind == "thought":
            yield part, {"type": "thinking", "thinking": part.whole, "signature": "c2ln"}
        elif part.kind == "call":
            given = {"id": part.id, "name": part.name, "input": parse_object(part.whole) or {}}
            yield part, {"type": "tool_use", **given}


def _messages_stream(parts: Sequence[Part], end: End, counts: Counts) -> Iterator[bytes]:
    yield m.start(_messages_counts(counts, "input_tokens"))
    keys = {"text": "text", "thought": "thinking", "call": "partial_json"}
    kinds = {"text": "text_delta", "thought": "thinking_delta", "call": "input_json_delta"}
    for index, (part, block) in enumerate(_messages_blocks(parts)):
        empty = {"text": "", "thinking": "", "input": {}, "signature": ""}
        begun = {name: empty.get(name, value) for name, value in block.items()}
        yield m.begin(index, begun.pop("type"), **begun)
        for piece in part.pieces:
            yield m.piece(index, kinds[part.kind], **{keys[part.kind]: piece})
        if part.kind == "thought":
            yield m.piece(index, "signature_delta", signature="c2ln")
        yield m.stop(index)
    delta = _messages_end(parts, end)
    yield m.event("message_delta", delta=delta, usage=_messages_counts(counts, "output_tokens"))
    yield m.STOP


def _messages_whole(parts: Sequence[Part], end: End, counts: Counts) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test"}
    content = [block for _, block in _messages_blocks(parts)]
    usage = _messages_counts(counts)
    return {**head, "content": content, **_messages_end(parts, end), "usage": usage}


def _messages_error(code: Any, message: str) -> bytes:
    return m.event("error", error={"type": code, "message": message})


# Responses.


def _items(parts: Sequence[Part]) -> list[r.Item]:
    made: dict[str, Callable[[Part], r.Item]] = {
        "text": lambda part: r.message(part.whole),
        "thought": lambda part: r.reasoning(part.whole),
        "refusal": lambda part: r.refusal(part.whole),
        "call": lambda part: r.call(part.id, part.name, part.whole),
    }
    items = [made[part.kind](part) for part in parts]
    return [{**item, "id": f"{item['id']}_{at}"} for at, item in enumerate(items)]


def _response_end(end: End, counts: Counts) -> dict[str, Any]:
    names = ("input_tokens", "output_tokens")
    details = {"input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
               "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15}  # fmt: skip
    usage = None if counts is None else {**details, **dict(zip(names, counts, strict=True))}
    why = {"length": "max_output_tokens", "refusal": "content_filter"}.get(end or "")
    cut = {"status": "incomplete", "incomplete_details": {"reason": why}} if why else {}
    return {"usage": usage, **cut}


def _responses_stream(parts: Sequence[Part], end: End, counts: Counts) -> Iterator[bytes]:
    more = _response_end(end, counts)
    events = r.events(*_items(parts), end=more.pop("status", "completed"), **more)
    yield from events[:-1]
    # An end that says nothing is a marker here.
    yield events[-1] if end else c.DONE


def _responses_whole(parts: Sequence[Part], end: End, counts: Counts) -> dict[str, Any]:
    more = _response_end(end, counts)
    return r.response(*_items(parts), **({} if end else {"status": "in_progress"}), **more)


def _responses_error(code: Any, message: str) -> bytes:
    return r.event("error", code=code, message=message, param=None)


WIRES: Final = {
    wire.name: wire
    for wire in (
        Wire("chat", _chat_stream, _chat_whole, _chat_error, c.decoded, 3,
             b'"finish_reason": "', 503, "insufficient_quota"),
        Wire("messages", _messages_stream, _messages_whole, _messages_error, m.decoded, 2,
             b'"message_stop"', "overloaded_error", "billing_error"),
        Wire("responses", _responses_stream, _responses_whole, _responses_error, r.decoded, 1,
             b'"response": {"id": "resp_1"', "server_is_overloaded", "insufficient_quota"),
    )
}  # fmt: skip
