"""Quirks of framing (rows 1 to 22 of the table of quirks), cut at every byte."""

import json

import pytest
from wire_streams import (
    DONE,
    Broken,
    Row,
    call,
    calls,
    check,
    chunk,
    decoded,
    ends,
    finished,
    keyless,
    keyless_calls,
    other,
    row,
    said,
)

from aish.core.messages import StreamNotice, TextPiece, Usage
from aish.core.tools import ToolCall
from aish.wire.errors import (
    EmptyStreamError,
    IncompleteStreamError,
    UnfinishedStreamError,
    UnreadableStreamError,
)

HELLO = (TextPiece("Hello"), finished())
STREAM = said("Hel") + said("lo") + ends() + DONE
COMPLETION = {
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
CALLING = {
    "choices": [
        {
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    call("a", '{"x": 1}', id="one"),
                    call("a", '{"x": 2}', id="two"),
                ],
            },
            "finish_reason": "tool_calls",
        }
    ]
}
BODY = json.dumps(COMPLETION).encode()
PAGE = b"<!DOCTYPE html>\n<html>\n<title>502\x1b[31m Bad gateway</title>\n</html>\n"
COMMENTS = StreamNotice("comment_as_data", "comments come framed as data")
PINGS = StreamNotice("ping_as_data", "pings come framed as data")
UNFINISHED = Broken(UnfinishedStreamError, "without a `finish_reason`", retryable=True)
NO_FINISH = StreamNotice("no_finish_reason", "the answer ended without a `finish_reason`")
TAIL = StreamNotice("unframed_text", "text without a frame after the answer")

ROWS = [
    row("Q1", "comment inside an event", b": a\n" + said("Hello") + b":b\n" + ends(), *HELLO),
    row(
        "Q2",
        "comments framed as data",
        b"data: : OPENROUTER PROCESSING\n\ndata: : OPENROUTER PROCESSING\n\n" + STREAM,
        COMMENTS,
        *HELLO,
    ),
    row("Q7", "byte order mark before JSON", b"\xef\xbb\xbf" + BODY, TextPiece("Hello"),
        finished(usage=Usage(3, 1))),
    row("Q10", "data over several lines",
        said("Hello").replace(b', "finish', b',\ndata: "finish') + ends() + DONE, *HELLO),
    row("Q12", "the finish without a blank line", (said("Hello") + ends())[:-2], *HELLO),
    row("Q13", "no marker at the end", said("Hello") + ends(), *HELLO),
    row("Q14", "an empty finish reason", said("Hello") + ends("") + DONE, UNFINISHED),
    row("Q14", "a key in one chunk only", keyless("Hel") + said("lo") + keyless("!") + DONE,
        UNFINISHED),
    row("Q14", "a null in the last chunk only", keyless("Hello") + ends(None) + DONE,
        UNFINISHED),
    row("Q14", "nothing but a null", chunk({"role": "assistant"}) + DONE, UNFINISHED),
    row("Q14", "a refusal that stays open", chunk({"refusal": "No"}) + DONE, UNFINISHED),
    row("Q14", "thinking that stays open", chunk({"reasoning": "Hm"}) + DONE, UNFINISHED),
    row("Q14", "a null in the choice that counts", other({"content": "Hello"}) + DONE,
        UNFINISHED),
    row("Q14", "a whole call under a null",
        calls(call("a", '{"x":', index=0, id="i")) + calls(call(None, "1}", index=0)) + DONE,
        UNFINISHED),
    row("Q14", "a null, then the reason", said("Hello") + ends() + said("") + DONE, *HELLO),
    row("Q14", "no finish reason at all", keyless("Hel") + keyless("lo") + DONE,
        TextPiece("Hello"), NO_FINISH, finished(raw="")),
    row("Q14", "a whole call without finish reason",
        keyless_calls(call("a", '{"x":', index=0, id="i"))
        + keyless_calls(call(None, "1}", index=0)) + DONE,
        NO_FINISH, ToolCall("i", "a", '{"x":1}'), finished("tool_calls", "")),
    row("Q14", "an open call without finish reason",
        keyless_calls(call("a", '{"x":', index=0, id="i")) + DONE,
        Broken(IncompleteStreamError, "inside a tool call", retryable=True)),
    row("Q14", "a call without arguments that needs none",
        keyless_calls(call("a", "", index=0, id="i")) + DONE,
        NO_FINISH, ToolCall("i", "a", ""), finished("tool_calls", ""),
        tools=["a"], required={"a": False}),
    row("Q14", "a call without arguments that needs some",
        keyless_calls(call("a", "", index=0, id="i")) + DONE,
        Broken(IncompleteStreamError, "inside a tool call", retryable=True),
        tools=["a"], required={"a": True}),
    row("Q16", "cut inside the marker", said("Hello") + b"data: [DO",
        Broken(IncompleteStreamError, "inside an event", retryable=True)),
    row("Q16", "cut after the finish reason", said("Hello") + ends() + b'data: {"cho',
        TextPiece("Hello"), StreamNotice("unreadable_event", 'an event is no JSON: {"cho'),
        finished()),
    row("Q18", "one completion with calls", b" \n " + json.dumps(CALLING, indent=1).encode(),
        ToolCall("one", "a", '{"x": 1}'), ToolCall("two", "a", '{"x": 2}'),
        finished("tool_calls")),
    row("Q19", "one completion and a bare marker", BODY + b"[DONE]",
        TextPiece("Hello"), finished(usage=Usage(3, 1))),
    row("Q19", "one completion and noise", BODY + b"\n--boundary--", TextPiece("Hello"), TAIL,
        finished(usage=Usage(3, 1))),
    row("Q20", "the marker alone", DONE,
        Broken(EmptyStreamError, "without an answer", retryable=True)),
    row("Q21", "text without a frame", said("Hel") + b"Error: the model crashed\n\n",
        Broken(UnreadableStreamError, "Error: the model crashed", retryable=True)),
    row("Q21", "text without a frame before the finish",
        said("Hel") + b"CUDA out of memory\n" + ends() + DONE,
        Broken(UnreadableStreamError, "CUDA out of memory", retryable=True)),
    row("Q21", "text after the answer", said("Hello") + ends() + b"bye\n\n" + DONE,
        TextPiece("Hello"), TAIL, finished()),
    row("Q66", "null and pings between events",
        b"data: null\n\n" + said("Hel") + b"data: ping\n\ndata: null\n\ndata: PING\n\n" + said("lo")
        + ends() + DONE, PINGS, *HELLO),
    row("Q66", "nothing but null and pings", b"data: null\n\ndata: ping\n\n",
        Broken(EmptyStreamError, "empty", retryable=True)),
]  # fmt: skip


@pytest.mark.parametrize("stream", ROWS)
def test_a_stream_comes_to_the_same_however_it_is_framed_and_cut(stream: Row) -> None:
    check(stream)


@pytest.mark.parametrize(
    "begun", [said("Hello"), keyless("Hello"), keyless("Hel") + said("lo")], ids=range(3)
)
def test_a_missing_finish_reason_can_be_accepted_with_a_warning(begun: bytes) -> None:
    """`models.A.finish: optional` is for an endpoint that always ends so."""
    told = decoded([begun, DONE], finish_optional=True)
    assert told == [TextPiece("Hello"), NO_FINISH, finished(raw="")]


def test_an_answer_that_is_cut_is_none_where_the_finish_reason_is_optional() -> None:
    told = decoded([said("Hello")], finish_optional=True)
    assert isinstance(told, IncompleteStreamError)


def test_two_hundred_characters_of_a_page_are_shown() -> None:
    told = decoded([b"<p>" + b"x" * 500])
    assert isinstance(told, UnreadableStreamError)
    assert told.message == "not a chat completion: <p>" + "x" * 197 + "…"


def test_what_follows_the_marker_is_not_read() -> None:
    assert decoded([STREAM + chunk({"content": "more"}) + b"noise"]) == list(HELLO)
