"""What only streams of `/v1/messages` have; `test_wire_scenes` has what all wires have.

Each gives the same answer for every cut and every line end.
"""

import json
from dataclasses import replace
from typing import Any

import messages_streams as s
import pytest
from wire_streams import LINE_ENDS, cuts

from aish.core.messages import (
    Delta,
    Extras,
    Finish,
    ReasoningPiece,
    StreamNotice,
    TextPiece,
    Usage,
)
from aish.core.tools import ToolCall
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    MalformedToolCallError,
    StreamError,
    UnfinishedStreamError,
    UnreadableStreamError,
)

CALL = ToolCall("toolu_1", "repo__read", '{"x": 1}')
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


def finish(reason: Any, raw: str, **more: Any) -> Finish:
    usage = more.pop("usage", Usage(10, 5))
    return Finish(reason, usage, raw=raw, **more)


STOPPED = finish("stop", "end_turn")
ASKED = finish("tool_calls", "tool_use")


def whole(**more: Any) -> bytes:
    """An answer in one piece."""
    plain: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }
    return json.dumps({**plain, **more}).encode()


def kept(*blocks: Any) -> Extras:
    return Extras({"content": list(blocks)})


USES = {"type": "tool_use", "id": "toolu_1", "name": "repo__read", "input": {"x": 1}}
HELLO = TextPiece("Hello")

ANSWERS: dict[str, tuple[bytes, list[Delta]]] = {
    "arguments at once": (
        s.start() + s.begin(0, "tool_use", id="toolu_1", name="repo__read", input={"x": 1})
        + s.stop(0) + s.ends("tool_use"),
        [replace(CALL, arguments='{"x":1}'), ASKED],
    ),
    "thinking, text and a call": (
        s.start() + s.thinking("hm") + s.text("Hello", 1) + s.call(index=2) + s.ends("tool_use"),
        [ReasoningPiece("hm"), HELLO, CALL,
         kept(THOUGHT, {"type": "text", "text": "Hello"}, USES), ASKED],
    ),
    "redacted thinking": (
        s.start() + s.begin(0, "redacted_thinking", data="AbC=") + s.stop(0) + s.text("Hello", 1)
        + s.ends(),
        [HELLO, kept({"type": "redacted_thinking", "data": "AbC="},
                     {"type": "text", "text": "Hello"}), STOPPED],
    ),
    "the last signature counts": (
        s.start() + s.begin(0, "thinking", thinking="", signature="")
        + s.piece(0, "thinking_delta", thinking="hm")
        + s.piece(0, "signature_delta", signature="b2xk")
        + s.piece(0, "signature_delta", signature="c2ln") + s.stop(0) + s.text("Hello", 1)
        + s.ends(),
        [ReasoningPiece("hm"), HELLO, kept(THOUGHT, {"type": "text", "text": "Hello"}), STOPPED],
    ),
    "text after a call keeps its place": (
        s.start() + s.call() + s.text("Hello", 1) + s.ends("tool_use"),
        [HELLO, CALL, kept(USES, {"type": "text", "text": "Hello"}), ASKED],
    ),
    "citations": (
        s.start() + s.begin(0, "text", text="", citations=None)
        + s.piece(0, "text_delta", text="Hello")
        + s.piece(0, "citations_delta", citation={"type": "char_location", "cited_text": "H"})
        + s.stop(0) + s.ends(),
        [HELLO, kept({"type": "text", "text": "Hello",
                      "citations": [{"type": "char_location", "cited_text": "H"}]}), STOPPED],
    ),
    "names of events alone": (
        (s.start() + s.text("Hello")).replace(b'"type": "content_block_delta", ', b"") + s.ends(),
        [HELLO, STOPPED],
    ),
    "no start": (
        s.text("Hello") + s.ends(), [HELLO, replace(STOPPED, usage=Usage(None, 5))],
    ),
    "blocks that are open together": (
        s.start() + s.begin(0, "text", text="") + s.begin(1, "tool_use", id="toolu_1",
                                                          name="repo__read", input={})
        + s.piece(0, "text_delta", text="Hel") + s.piece(1, "input_json_delta", partial_json="{")
        + s.piece(0, "text_delta", text="lo") + s.piece(1, "input_json_delta", partial_json="}")
        + s.stop(1) + s.stop(0) + s.ends("tool_use"),
        [HELLO, replace(CALL, arguments="{}"), ASKED],
    ),
    "two blocks of text": (
        s.start() + s.text("Hello") + s.text(" there", 1) + s.ends(),
        [TextPiece("Hello there"), kept({"type": "text", "text": "Hello"},
                                        {"type": "text", "text": " there"}), STOPPED],
    ),
    "a stop sequence": (
        s.start() + s.text("Hello") + s.ends("stop_sequence"),
        [HELLO, finish("stop", "stop_sequence")],
    ),
    "a pause": (
        s.start() + s.text("Hello") + s.ends("pause_turn"), [HELLO, finish("other", "pause_turn")],
    ),
    "a refusal with details": (
        s.start() + s.text("Hello") + s.ends(
            "refusal",
            stop_details={"type": "refusal", "category": "bio", "explanation": "not that"},
        ),
        [HELLO, finish("refusal", "refusal", refusal="bio: not that")],
    ),
    "a refusal without a category": (
        s.start() + s.ends("refusal", stop_details={"type": "refusal", "category": None}),
        [finish("refusal", "refusal")],
    ),
    "an unknown block": (
        s.start() + s.begin(0, "hologram", data="x") + s.piece(0, "beam_delta", beam="y")
        + s.stop(0) + s.text("Hello", 1) + s.ends(),
        [StreamNotice("unknown_content", "content of type `hologram` was left out"),
         StreamNotice("unknown_delta", "pieces of type `beam_delta` are skipped"), HELLO, STOPPED],
    ),
    "a hosted tool": (
        s.start() + s.begin(0, "server_tool_use", id="srv", name="web_search", input={})
        + s.piece(0, "input_json_delta", partial_json='{"q": "a"}') + s.stop(0)
        + s.begin(1, "web_search_tool_result", tool_use_id="srv", content=[]) + s.stop(1)
        + s.text("Hello", 2) + s.ends(),
        [StreamNotice("hosted_tool", "a hosted tool was used (`server_tool_use`): no rule saw"
                      " that call"),
         StreamNotice("hosted_tool", "a hosted tool was used (`web_search_tool_result`): no rule"
                      " saw that call"),
         HELLO,
         kept({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"q": "a"}},
              {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []},
              {"type": "text", "text": "Hello"}),
         STOPPED],
    ),
    "texts that come in turns": (
        s.start() + s.begin(0, "text", text="") + s.begin(1, "text", text="")
        + s.piece(0, "text_delta", text="He") + s.piece(1, "text_delta", text="lo")
        + s.piece(0, "text_delta", text="l") + s.ends(),
        [HELLO, kept({"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}), STOPPED],
    ),
    "pieces without a beginning": (
        s.start() + s.piece(0, "text_delta", text="Hello") + s.ends(),
        [StreamNotice("missing_start", "pieces of blocks come without their beginning"), HELLO,
         STOPPED],
    ),
    "calls under the end of a turn": (
        s.start() + s.text("Hello") + s.call(index=1) + s.ends(),
        [HELLO,
         StreamNotice("calls_despite_finish", "text and tool calls under `end_turn`"),
         CALL, finish("tool_calls", "end_turn")],
    ),
    "the words of chat": (
        s.start() + s.call() + s.ends("tool_calls"), [CALL, finish("tool_calls", "tool_calls")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_for_each_cut_and_line_end(name: str) -> None:
    raw, expected = ANSWERS[name]

    for line_end in LINE_ENDS.values():
        for chunks in cuts(raw.replace(b"\n", line_end)):
            assert s.decoded(chunks) == expected, chunks


Fault = tuple[bytes, type[StreamError], str, bool]
BROKEN = "the stream is broken: "
ERROR = {"type": "overloaded_error", "message": "Overloaded"}

FAULTS: dict[str, Fault] = {
    "an answer of chat": (b'{"choices": []}', UnreadableStreamError, '{"choices": []}', False),
    "the last event alone": (s.STOP, UnfinishedStreamError, "without a `stop_reason`", True),
    "a second block 0": (
        s.start() + s.text("Hel") + s.text("lo") + s.ends(), UnreadableStreamError,
        f"{BROKEN}a second block 0", True,
    ),
    "text after the end": (
        s.start() + s.ends() + s.text("more"), UnreadableStreamError,
        f"{BROKEN}`content_block_start` after `message_stop`", True,
    ),
    "a second answer after the end": (
        s.start() + s.ends() + s.start(), UnreadableStreamError,
        f"{BROKEN}`message_start` after `message_stop`", True,
    ),
    "more of a block after its end": (
        s.start() + s.text("Hel") + s.piece(0, "text_delta", text="lo") + s.ends(),
        UnreadableStreamError, f"{BROKEN}more of block 0 after its end", True,
    ),
    "arguments of a call that never began": (
        s.start() + s.piece(0, "input_json_delta", partial_json="{}") + s.ends("tool_use"),
        UnreadableStreamError, f"{BROKEN}a piece of block 0, which never began", True,
    ),
    "arguments in a block of text": (
        s.start() + s.begin(0, "text", text="") + s.piece(0, "input_json_delta", partial_json="{}")
        + s.ends(), UnreadableStreamError,
        f"{BROKEN}a piece of type `input_json_delta` in a block of type `text`", True,
    ),
    "text in a call": (
        s.start() + s.begin(0, "tool_use", id="toolu_1", name="repo__read", input={})
        + s.piece(0, "text_delta", text="{}") + s.stop(0) + s.ends("tool_use"),
        UnreadableStreamError, f"{BROKEN}a piece of type `text_delta` in a block of type", True,
    ),
    "a block whose index is a list": (
        s.start() + s.event("content_block_start", index=[0], content_block={"type": "text"})
        + s.ends(), UnreadableStreamError, f"{BROKEN}the index of a block is no number", True,
    ),
    "a piece whose index is an object": (
        s.start() + s.event("content_block_delta", index={}, delta={"type": "text_delta"})
        + s.ends(), UnreadableStreamError, f"{BROKEN}the index of a block is no number", True,
    ),
    "an answer of an odd type": (
        b'{"type": ["message"], "content": []}', UnreadableStreamError, '{"type"', False,
    ),
    "a block that is no object": (
        s.start() + s.event("content_block_start", index=0, content_block="text") + s.ends(),
        UnreadableStreamError, f"{BROKEN}a block that is no object", True,
    ),
    "a call whose block never stops": (
        s.start() + s.call(arguments='{"x": ').replace(s.stop(0), b"") + s.ends("tool_use"),
        MalformedToolCallError, "its arguments break off", True,
    ),
    "a full window": (
        s.start() + s.text("Hel") + s.ends("model_context_window_exceeded"), InBandError,
        "fills the context window", False,
    ),
    "an odd reason and nothing else": (
        s.start() + s.ends("sunset"), EmptyStreamError, "without an answer", True,
    ),
    "two answers in one body": (
        whole() + whole(), UnreadableStreamError, f"{BROKEN}a second message", True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_for_each_cut_and_line_end(name: str) -> None:
    raw, kind, words, retryable = FAULTS[name]

    for line_end in LINE_ENDS.values():
        for chunks in cuts(raw.replace(b"\n", line_end)):
            told = s.decoded(chunks)
            assert type(told) is kind, (told, chunks)
            assert words in told.message, chunks
            assert told.retryable is retryable, chunks


def test_odd_types_and_citations_are_skipped() -> None:
    odd = s.begin(0, "text", text="", citations=3)
    odd += s.piece(0, "citations_delta", citation={"title": "x"})
    odd += s.event("content_block_delta", index=0, delta={"type": ["text_delta"]})
    odd += s.piece(0, "text_delta", text="Hello") + s.stop(0)

    told = s.decoded([s.start() + odd + b'data: {"type": {}}\n\n' + s.ends()])

    assert isinstance(told, list)
    assert "Hello" in [piece.text for piece in told if isinstance(piece, TextPiece)]
    assert s.finish_of(told).reason == "stop"


def test_a_null_reason_is_accepted_where_the_file_says_so() -> None:
    told = s.decoded([s.start() + s.text("Hello") + s.ends(None)], finish_optional=True)

    assert s.finish_of(told).reason == "stop"
    assert isinstance(told, list)
    assert StreamNotice("no_finish_reason", "the answer ended without a `stop_reason`") in told


COUNTS: dict[str, tuple[Any, Any, Usage]] = {
    "totals replace": (
        {"input_tokens": 10, "output_tokens": 1}, {"output_tokens": 7}, Usage(10, 7),
    ),
    "cached input is input": (
        {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 5,
         "output_tokens": 1},
        {"output_tokens": 7}, Usage(95, 7, cached=80, cache_written=5),
    ),
    "what is written is split by how long it stays": (
        {"input_tokens": 10, "output_tokens": 1,
         "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}},
        {"output_tokens": 7}, Usage(17, 7, cache_written=7),
    ),
    "the sum of what is written may come with its parts": (
        {"input_tokens": 10, "output_tokens": 1, "cache_creation_input_tokens": 7,
         "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}},
        {"output_tokens": 7}, Usage(17, 7, cache_written=7),
    ),
    "what is absent or null at the end keeps its value": (
        {"input_tokens": 10, "cache_read_input_tokens": 80, "output_tokens": 1},
        {"input_tokens": None, "output_tokens": 7}, Usage(90, 7, cached=80),
    ),
    "what is less than nothing says nothing": (
        {"input_tokens": 10, "cache_read_input_tokens": 80, "output_tokens": 1},
        {"input_tokens": -1, "cache_read_input_tokens": -1, "output_tokens": 7},
        Usage(90, 7, cached=80),
    ),
    "zeros at the end do not replace the parts of what is written": (
        {"input_tokens": 10, "output_tokens": 1,
         "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}},
        {"output_tokens": 7,
         "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}},
        Usage(17, 7, cache_written=7),
    ),
    "counts may be text": (
        {"input_tokens": "10", "cache_read_input_tokens": "80", "output_tokens": 1},
        {"output_tokens": "7"}, Usage(90, 7, cached=80),
    ),
    "counts come with the end": (
        {"input_tokens": 0, "output_tokens": 0}, {"input_tokens": 10, "output_tokens": 7},
        Usage(10, 7),
    ),
    "0 at the end takes nothing back": (
        {"input_tokens": 10, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 7},
        Usage(10, 7),
    ),
    "0 and 0 are no counts": (
        {"input_tokens": 0, "output_tokens": 0}, {"output_tokens": 0}, Usage(),
    ),
    "no request has 0 tokens": (
        {"input_tokens": 0, "output_tokens": 0}, {"output_tokens": 7}, Usage(None, 7),
    ),
    "the cached part alone is no sum": (
        {"cache_read_input_tokens": 80}, {"output_tokens": 7}, Usage(None, 7, cached=80),
    ),
    "none at all": (None, None, Usage()),
    "thinking": (
        {"input_tokens": 10, "output_tokens": 1},
        {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 4}},
        Usage(10, 7, reasoning=4),
    ),
    "words in place of numbers": ({"input_tokens": "ten"}, {"output_tokens": True}, Usage()),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_totals(name: str) -> None:
    first, last, expected = COUNTS[name]
    end = s.event("message_delta", delta={"stop_reason": "end_turn"}, usage=last)

    told = s.decoded([s.start(first) + s.text("Hello") + end + s.STOP])

    assert s.finish_of(told).usage == expected
    split = (first or {}).get("cache_creation", {})
    assert s.finish_of(told).long_written == split.get("ephemeral_1h_input_tokens")
