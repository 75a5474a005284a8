"""Raw streams of `/v1/messages` for tests."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import wire_streams

from aish.core.messages import Delta, Finish
from aish.wire.errors import StreamError
from aish.wire.messages.decode import MessagesDecoder

USAGE: Mapping[str, Any] = {"input_tokens": 10, "output_tokens": 1}
decoded = functools.partial(wire_streams.decoded, kind=MessagesDecoder)
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def event(kind: str, **fields: Any) -> bytes:
    """One event, with its name."""
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def start(usage: Mapping[str, Any] | None = USAGE, **message: Any) -> bytes:
    """The first event of a stream."""
    plain: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    return event("message_start", message={**plain, **message})


def begin(index: int, kind: str, **fields: Any) -> bytes:
    """The first event of a block."""
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def piece(index: int, kind: str, **fields: Any) -> bytes:
    """A piece of a block."""
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def stop(index: int) -> bytes:
    """The last event of a block."""
    return event("content_block_stop", index=index)


def text(said: str, index: int = 0) -> bytes:
    """A block of text in two pieces."""
    half = len(said) // 2
    pieces = [piece(index, "text_delta", text=part) for part in (said[:half], said[half:])]
    return b"".join([begin(index, "text", text=""), *pieces, stop(index)])


def thinking(thought: str, signature: str = "c2ln", index: int = 0) -> bytes:
    """A block of thinking with its signature."""
    return b"".join(
        (
            begin(index, "thinking", thinking="", signature=""),
            piece(index, "thinking_delta", thinking=thought),
            piece(index, "signature_delta", signature=signature),
            stop(index),
        )
    )


def call(
    id: str = "toolu_1", name: str = "repo__read", arguments: str = '{"x": 1}', index: int = 0
) -> bytes:
    """A call whose arguments come in two pieces."""
    half = len(arguments) // 2
    pieces = (arguments[:half], arguments[half:])
    return b"".join(
        (
            begin(index, "tool_use", id=id, name=name, input={}),
            *(piece(index, "input_json_delta", partial_json=part) for part in pieces),
            stop(index),
        )
    )


def ends(reason: str | None = "end_turn", output: int = 5, **delta: Any) -> bytes:
    """The end of a message: its reason and counts, and the last event."""
    told = {"stop_reason": reason, "stop_sequence": None, **delta}
    return event("message_delta", delta=told, usage={"output_tokens": output}) + STOP


def finish_of(told: list[Delta] | StreamError) -> Finish:
    assert isinstance(told, list), told
    assert isinstance(told[-1], Finish)
    return told[-1]
