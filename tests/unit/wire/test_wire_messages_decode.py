"""Streams of `/v1/messages`: each gives the same answer for every cut and every line end."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import messages_streams as s
import pytest
from wire_streams import LINE_ENDS, cuts

from aish.core.messages import (
    Delta,
    Extras,
    Finish,
    ReasoningPiece,
    Served,
    StreamNotice,
    TextPiece,
    Usage,
)
from aish.core.tools import ToolCall
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    IncompleteStreamError,
    MalformedToolCallError,
    StreamError,
    TruncatedToolCallError,
    UnfinishedStreamError,
    UnreadableStreamError,
)

CALL = ToolCall("toolu_1", "repo__read", '{"x": 1}')
SERVED = Served("claude-test", None, "msg_1")
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


def finish(reason: Any, raw: str, **more: Any) -> Finish:
    usage = more.pop("usage", Usage(10, 5))
    return Finish(reason, usage, raw=raw, served=SERVED, **more)


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
    "text": (s.start() + s.text("Hello") + s.ends(), [HELLO, STOPPED]),
    "text beyond ASCII": (
        s.start() + s.text("Grüße 🙂") + s.ends(),
        [TextPiece("Grüße 🙂"), STOPPED],
    ),
    "a call": (s.start() + s.call() + s.ends("tool_use"), [CALL, ASKED]),
    "text, then two calls": (
        s.start() + s.text("Hello") + s.call(index=1) + s.call("toolu_2", index=2)
        + s.ends("tool_use"),
        [HELLO, CALL, replace(CALL, id="toolu_2"), ASKED],
    ),
    "a call without arguments": (
        s.start() + s.call(arguments="") + s.ends("tool_use"),
        [replace(CALL, arguments="{}"), ASKED],
    ),
    "arguments at once": (
        s.start() + s.begin(0, "tool_use", id="toolu_1", name="repo__read", input={"x": 1})
        + s.stop(0) + s.ends("tool_use"),
        [replace(CALL, arguments='{"x":1}'), ASKED],
    ),
    "broken arguments are the loop's to refuse": (
        s.start() + s.call(arguments='{"x": ') + s.ends("tool_use"),
        [replace(CALL, arguments='{"x": '), ASKED],
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
    "a ping before the start, and comments": (
        s.PING + b": keep-alive\n\n" + s.start() + s.PING + s.text("Hello") + s.PING + s.ends(),
        [HELLO, STOPPED],
    ),
    "pings and a marker after the end": (
        s.start() + s.text("Hello") + s.ends() + s.PING + b"data: [DONE]\n\n", [HELLO, STOPPED],
    ),
    "no blank line at the end": (
        (s.start() + s.text("Hello") + s.ends()).rstrip(b"\n"), [HELLO, STOPPED],
    ),
    "no names of events": (
        b"".join(line + b"\n" for line in (s.start() + s.text("Hello") + s.ends()).split(b"\n")
                 if not line.startswith(b"event:")),
        [HELLO, STOPPED],
    ),
    "names of events alone": (
        (s.start() + s.text("Hello")).replace(b'"type": "content_block_delta", ', b"") + s.ends(),
        [HELLO, STOPPED],
    ),
    "no start": (
        s.text("Hello") + s.ends(), [HELLO, replace(STOPPED, served=None, usage=Usage(None, 5))],
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
    "the limit": (
        s.start() + s.text("Hello") + s.ends("max_tokens"), [HELLO, finish("length", "max_tokens")],
    ),
    "a pause": (
        s.start() + s.text("Hello") + s.ends("pause_turn"), [HELLO, finish("other", "pause_turn")],
    ),
    "nothing to say": (s.start() + s.ends(), [STOPPED]),
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
    "calls of a refused answer": (
        s.start() + s.call() + s.ends("refusal"),
        [StreamNotice("calls_despite_refusal", "the tool calls of a refused answer were left out"),
         finish("refusal", "refusal")],
    ),
    "an unknown event": (
        s.start() + s.event("weather", sky="blue") + s.event("weather") + s.text("Hello")
        + s.ends(),
        [StreamNotice("unknown_event", "events of type `weather` are skipped"), HELLO, STOPPED],
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
    "pieces without a beginning": (
        s.start() + s.piece(0, "text_delta", text="Hello") + s.ends(),
        [StreamNotice("missing_start", "pieces of blocks come without their beginning"), HELLO,
         STOPPED],
    ),
    "ids that repeat": (
        s.start() + s.call() + s.call(index=1) + s.ends("tool_use"),
        [CALL, replace(CALL, id="493bd4733"), ASKED],
    ),
    "calls under the end of a turn": (
        s.start() + s.text("Hello") + s.call(index=1) + s.ends(),
        [HELLO,
         StreamNotice("calls_despite_finish", "text and tool calls under `end_turn`"),
         CALL, finish("tool_calls", "end_turn")],
    ),
    "a call as text": (
        s.start() + s.text("<tool_call>x") + s.ends(),
        [TextPiece("<tool_call>x"),
         StreamNotice("leaked_call", "the answer has a tool call as text; text is never executed"),
         STOPPED],
    ),
    "the words of chat": (
        s.start() + s.call() + s.ends("tool_calls"), [CALL, finish("tool_calls", "tool_calls")],
    ),
    "in one piece, asked for as a stream": (whole(), [HELLO, STOPPED]),
    "in one piece, with a call": (
        whole(content=[{"type": "text", "text": "Hello"}, USES], stop_reason="tool_use"),
        [HELLO, replace(CALL, arguments='{"x":1}'), ASKED],
    ),
    "in one piece, with a marker behind": (whole() + b"\ndata: [DONE]\n\n", [HELLO, STOPPED]),
    "think tags of a gateway": (
        s.start() + s.text("<think>hm</think>Hello") + s.ends(),
        [ReasoningPiece("hm"), HELLO, STOPPED],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_for_each_cut_and_line_end(name: str) -> None:
    raw, expected = ANSWERS[name]

    for line_end in LINE_ENDS.values():
        for chunks in cuts(raw.replace(b"\n", line_end)):
            assert s.decoded(chunks) == expected, chunks


@pytest.mark.parametrize("name", [name for name in ANSWERS if "one piece" not in name])
def test_a_stream_that_is_cut_before_its_last_event_is_no_answer(name: str) -> None:
    raw, _ = ANSWERS[name]
    end = raw.rfind(b"message_stop")

    for at in range(1, end, max(1, end // 60)):
        assert isinstance(s.decoded([raw[:at]]), StreamError), raw[:at]


Fault = tuple[bytes, type[StreamError], str, bool]
BROKEN = "the stream is broken: "
ERROR = {"type": "overloaded_error", "message": "Overloaded"}

FAULTS: dict[str, Fault] = {
    "nothing": (b"", EmptyStreamError, "the answer is empty", True),
    "pings alone": (s.PING, EmptyStreamError, "the answer is empty", True),
    "a page": (b"<html>login", UnreadableStreamError, "<html>login", False),
    "an answer of chat": (b'{"choices": []}', UnreadableStreamError, '{"choices": []}', False),
    "no last event": (
        s.start() + s.text("Hello"), IncompleteStreamError, "before `message_stop`", True,
    ),
    "a marker in place of the last event": (
        s.start() + s.text("Hello") + b"data: [DONE]\n\n", IncompleteStreamError,
        "before `message_stop`", True,
    ),
    "no reason": (
        s.start() + s.text("Hello") + s.STOP, UnfinishedStreamError, "without a `stop_reason`",
        True,
    ),
    "a null reason": (
        s.start() + s.text("Hello") + s.ends(None), UnfinishedStreamError,
        "without a `stop_reason`", True,
    ),
    "overloaded": (s.event("error", error=ERROR), InBandError, "Overloaded", True),
    "overloaded in the middle": (
        s.start() + s.text("Hel") + s.event("error", error=ERROR), InBandError, "Overloaded", True,
    ),
    "an error as a body": (
        json.dumps({"type": "error", "error": ERROR}).encode(), InBandError, "Overloaded", True,
    ),
    "an error in the form of chat": (
        b'data: {"error": {"message": "no such model", "code": 404}}\n\n', InBandError,
        "HTTP 404: no such model", False,
    ),
    "an error in the form of chat, with a number as text": (
        b'{"error": {"message": "busy", "code": "529"}}', InBandError, "HTTP 529: busy", True,
    ),
    "an error without an outer type": (
        b'data: {"message": "upstream failed"}\n\n', InBandError, "upstream failed", True,
    ),
    "an error that is text": (
        b"event: error\ndata: went away\n\n", InBandError, "went away", True,
    ),
    "a bad request in the stream": (
        s.event("error", error={"type": "invalid_request_error", "message": "no"}), InBandError,
        "no", False,
    ),
    "a spent account in the stream": (
        s.event("error", error={"type": "billing_error", "message": "pay"}), InBandError, "pay",
        False,
    ),
    "a second start": (
        s.start() + s.text("Hel") + s.start() + s.text("lo", 1) + s.ends(), UnreadableStreamError,
        f"{BROKEN}a second `message_start`", True,
    ),
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
    "a call without a name": (
        s.start() + s.call(name="") + s.ends("tool_use"), MalformedToolCallError,
        "its name was never sent", True,
    ),
    "a call whose block never stops": (
        s.start() + s.call(arguments='{"x": ').replace(s.stop(0), b"") + s.ends("tool_use"),
        MalformedToolCallError, "its arguments break off", True,
    ),
    "the limit inside arguments": (
        s.start() + s.call(arguments='{"x": ') + s.ends("max_tokens"), TruncatedToolCallError,
        "the token limit came in its arguments", False,
    ),
    "calls that never came": (
        s.start() + s.text("Hello") + s.ends("tool_use"), MalformedToolCallError,
        "`tool_use` without a call", True,
    ),
    "a full window": (
        s.start() + s.text("Hel") + s.ends("model_context_window_exceeded"), InBandError,
        "fills the context window", False,
    ),
    "an odd reason and nothing else": (
        s.start() + s.ends("sunset"), EmptyStreamError, "without an answer", True,
    ),
    "half an event": (
        s.start() + b'event: message_delta\ndata: {"type": "mess', IncompleteStreamError,
        "inside an event", True,
    ),
    "half of an answer in one piece": (
        whole()[:-9], IncompleteStreamError, "inside its JSON", True,
    ),
    "an answer in one piece without its reason": (
        whole(stop_reason=None), UnfinishedStreamError, "without a `stop_reason`", True,
    ),
    "two answers in one body": (
        whole() + whole(), UnreadableStreamError, f"{BROKEN}a second message", True,
    ),
    "text between events": (
        s.start() + b"upstream went away\n\n" + s.ends(), UnreadableStreamError,
        "text inside the stream: upstream went away", True,
    ),
    "a number as an event": (
        s.start() + b"data: 7\n\n" + s.ends(), UnreadableStreamError, "an event is no object: 7",
        True,
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
        {"output_tokens": 7}, Usage(95, 7, cached=80),
    ),
    "what is absent or null at the end keeps its value": (
        {"input_tokens": 10, "cache_read_input_tokens": 80, "output_tokens": 1},
        {"input_tokens": None, "output_tokens": 7}, Usage(90, 7, cached=80),
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
    "text in place of numbers": ({"input_tokens": "10"}, {"output_tokens": True}, Usage()),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_totals(name: str) -> None:
    first, last, expected = COUNTS[name]
    end = s.event("message_delta", delta={"stop_reason": "end_turn"}, usage=last)

    told = s.decoded([s.start(first) + s.text("Hello") + end + s.STOP])

    assert s.finish_of(told).usage == expected
    assert s.finish_of(told).cache_written == (first or {}).get("cache_creation_input_tokens")


JUDGED = [
    name
    for name, (raw, _) in ANSWERS.items()
    if raw.startswith(b"event: message_start")
    and b"hologram" not in raw
    and name
    not in {
        "pieces without a beginning",
        "broken arguments are the loop's to refuse",
        "names of events alone",
    }
]


@pytest.mark.parametrize("name", JUDGED)
def test_the_vendors_own_sdk_reads_a_stream_to_the_same_turn(
    name: str, sdk_message: Callable[[bytes], Any]
) -> None:
    """It judges text, calls, thinking and order; how streams end is ours to decide."""
    raw, _ = ANSWERS[name]

    message = sdk_message(raw)
    told = cast("list[Delta]", s.decoded([raw]))

    text = "".join(block.text for block in message.content if block.type == "text")
    thought = "".join(block.thinking for block in message.content if block.type == "thinking")
    calls = [
        (block.id, block.name, block.input)
        for block in message.content
        if block.type == "tool_use" and message.stop_reason != "refusal"
    ]
    is_tagged = "<think>" in text
    assert text.partition("</think>")[2] if is_tagged else text == text_of(told, TextPiece)
    assert is_tagged or thought == text_of(told, ReasoningPiece)
    own = [delta for delta in told if isinstance(delta, ToolCall)]
    assert [(one.name, json.loads(one.arguments)) for one in own] == [
        (called, given) for _, called, given in calls
    ]
    finish = s.finish_of(told)
    assert finish.raw == message.stop_reason
    assert finish.usage == Usage(message.usage.input_tokens, message.usage.output_tokens)
    for extras in told:
        if isinstance(extras, Extras):
            theirs = [block.model_dump(exclude_none=True) for block in message.content]
            blocks = cast("list[dict[str, Any]]", extras.fields["content"])
            assert [block["type"] for block in blocks] == [block["type"] for block in theirs]
            signed = [block for block in blocks if "thinking" in block["type"]]
            assert signed == [block for block in theirs if "thinking" in block["type"]]


def text_of(told: list[Delta], kind: type[TextPiece | ReasoningPiece]) -> str:
    return "".join(cast("TextPiece", delta).text for delta in told if isinstance(delta, kind))


@pytest.fixture(scope="module")
def sdk_message() -> Callable[[bytes], Any]:
    """What the vendor's SDK makes of a stream."""
    anthropic: Any = pytest.importorskip("anthropic")
    httpx: Any = pytest.importorskip("httpx2")

    def read(raw: bytes) -> Any:
        def answer(_: Any) -> Any:
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=raw)

        client = httpx.Client(transport=httpx.MockTransport(answer))
        sdk = anthropic.Anthropic(api_key="k", http_client=client, max_retries=0)
        asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        with sdk.messages.stream(**asked) as stream:
            return stream.get_final_message()

    return read
