"""Quirks of errors, choices, usage and content (rows 23 to 35, 58, 59), cut at every byte."""

from typing import Any

import pytest
from wire_streams import (
    DONE,
    Broken,
    Row,
    call,
    calls,
    check,
    chunk,
    ends,
    event,
    finished,
    other,
    row,
    said,
)

from aish.core.messages import Extras, ReasoningPiece, StreamNotice, TextPiece, Usage
from aish.core.tools import ToolCall
from aish.wire.errors import EmptyStreamError, InBandError, LimitError

HELLO = (TextPiece("Hello"), finished())
THOUGHT = ReasoningPiece("Hm.")


def error(words: str, code: str | int | None, *, retryable: bool) -> Broken:
    return Broken(InBandError, words, retryable=retryable, code=code)


def failed(**fields: Any) -> bytes:
    return said("Hel") + event(fields)


ROWS = [
    row("Q23", "error object",
        failed(error={"message": "overloaded", "code": 503}, choices=[]) + DONE,
        error("HTTP 503: overloaded", 503, retryable=True)),
    row("Q23", "error object with a finish reason",
        said("Hel") + chunk({"content": ""}, "error", error={"code": 502, "message": "gone"}),
        error("HTTP 502: gone", 502, retryable=True)),
    row("Q23", "inside a choice",
        said("Hel") + event({"choices": [{"delta": {}, "error": {"message": "x", "code": 500}}]}),
        error("HTTP 500: x", 500, retryable=True)),
    row("Q23", "after the finish reason", said("Hello") + ends()
        + event({"error": {"message": "x"}}), error("x", None, retryable=True)),
    row("Q24", "flat fields", failed(error_type="server_error", error_message="down", choices=None),
        error("down", "server_error", retryable=True)),
    row("Q24", "an object called error",
        failed(object="error", message="too long", code=400, type="BadRequestError"),
        error("HTTP 400: too long", 400, retryable=False)),
    row("Q24", "a null error is none",
        chunk({"content": "Hello"}, error=None) + ends(error={}) + DONE, *HELLO),
    row("Q25", "an event called error",
        said("Hel") + b'event: error\ndata: {"message": "overloaded", "code": 529}\n\n',
        error("HTTP 529: overloaded", 529, retryable=True)),
    row("Q25", "an event called error, nested",
        b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", '
        b'"message": "busy"}}\n\n', error("busy", "overloaded_error", retryable=True)),
    row("Q26", "error as a finish reason", said("Hel") + ends("error") + DONE,
        error("finish reason `error`", "error", retryable=True)),
    row("Q26", "no resources", said("Hel") + ends("insufficient_system_resource") + DONE,
        error("insufficient_system_resource", None, retryable=True)),
    row("Q26", "cancelled", said("Hel") + ends("cancel"),
        error("finish reason `cancel`", "cancel", retryable=True)),
    *[row("Q26", f"{word} with content", said("Hello") + ends(word) + DONE,
          TextPiece("Hello"), finished("other", word)) for word in ("end_turn", "eos", "UNKNOWN")],
    row("Q26", "an unknown word with a call",
        calls(call("a", "{}", index=0, id="i")) + ends("eos"), ToolCall("i", "a", "{}"),
        finished("tool_calls", "eos")),
    row("Q26", "an unknown word without content", ends("UNKNOWN") + DONE,
        Broken(EmptyStreamError, "without an answer", retryable=True)),
    row("Q26", "length by another name", said("Hello") + ends("MAX_TOKENS"),
        TextPiece("Hello"), finished("length", "MAX_TOKENS")),
    row("Q27", "usage behind the finish",
        said("Hello") + ends() + event({"choices": [], "usage": {
            "prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 1}}}) + DONE,
        TextPiece("Hello"), finished(usage=Usage(9, 2, 0, 1))),
    row("Q29", "null choices", event({"choices": None, "id": "x"}) + event({"id": "x"})
        + said("Hello") + ends() + DONE, *HELLO),
    row("Q30", "blank first chunk",
        event({"choices": [], "id": "", "model": "", "created": 0, "object": "",
               "prompt_filter_results": [{"prompt_index": 0}]})
        + said("Hello") + ends() + DONE, *HELLO),
    row("Q31", "null delta", chunk(None) + said("Hello") + chunk(None, "stop"), *HELLO),
    row("Q32", "content with the finish and usage",
        said("Hel") + chunk({"content": "lo"}, "stop", usage={"prompt_tokens": 1}) + DONE,
        TextPiece("Hello"), finished(usage=Usage(1))),
    row("Q33", "usage in each chunk",
        chunk({"content": "Hel"}, usage={"prompt_tokens": 5, "completion_tokens": 1})
        + chunk({"content": "lo"}, usage={"prompt_tokens": 5, "completion_tokens": 2})
        + ends(usage={"prompt_tokens": 5, "completion_tokens": 3}) + event(
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}),
        TextPiece("Hello"), finished(usage=Usage(5, 3))),
    row("Q33", "an empty usage at the end does not erase",
        chunk({"content": "Hello"}, usage={"prompt_tokens": 5}) + ends(usage={}),
        TextPiece("Hello"), finished(usage=Usage(5))),
    row("Q35", "roles in every chunk",
        chunk({"role": "assistant", "content": None})
        + chunk({"role": "assistant", "content": "Hel"}) + chunk({"role": None, "content": "lo"})
        + chunk({"role": "assistant"}, "stop"), *HELLO),
    row("Q58", "null content", chunk({"content": None}) + said("Hello") + ends(), *HELLO),
    row("Q58", "parts",
        chunk({"content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]})
        + ends(), *HELLO),
    row("Q58", "parts of thinking",
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]})
        + said("Hello") + ends(), THOUGHT, *HELLO),
    row("Q58", "a part of an unknown type",
        chunk({"content": [{"type": "text", "text": "Hello"}, {"type": "image_url"}]}) + ends(),
        TextPiece("Hello"),
        StreamNotice("unknown_content", "content of type `image_url` was left out"), finished()),
    row("Q58", "a refusal among parts",
        chunk({"content": [{"type": "refusal", "refusal": "No."}]}) + ends(),
        finished("refusal", "stop", refusal="No.")),
    row("Q58", "think tags",
        said("\n<thi") + said("nk>Hm") + said(".</th") + said("ink>\n\nHello") + ends(),
        THOUGHT, *HELLO),
    row("Q58", "think tags that stay open", said("<think>Hm.</thi") + ends("length"),
        ReasoningPiece("Hm.</thi"), finished("length")),
    row("Q58", "something like a tag", said("<thi") + said("s> </thin>") + ends(),
        TextPiece("<this> </thin>"), finished()),
    row("Q62", "thinking that the template opened",
        said("Hm") + said(".</th") + said("ink>\n\nHel") + said("lo") + ends() + DONE,
        THOUGHT, *HELLO),
    row("Q62", "thinking that the template opened, in one piece",
        event({"choices": [{"message": {"content": "Hm.</think>Hello"}, "finish_reason": "stop"}]}),
        THOUGHT, *HELLO),
    row("Q62", "thinking that was left out", said("</think>\n") + said("Hello") + ends(), *HELLO),
    row("Q62", "a call after thinking that the template opened",
        said("Hm.\n</think>\n") + calls(call("a", "{}", index=0, id="i")) + ends("tool_calls"),
        ReasoningPiece("Hm.\n"), ToolCall("i", "a", "{}"), finished("tool_calls")),
    row("Q62", "half a character before the tag",
        b'data: {"choices": [{"delta": {"content": "Hm.\\ud83d"}}]}\n\n'
        + said("</think>Hello") + ends(), ReasoningPiece("Hm.\N{REPLACEMENT CHARACTER}"), *HELLO),
    row("Q62", "a second closing tag is text", said("Hm.</think>Hel</think>lo") + ends(),
        THOUGHT, TextPiece("Hel</think>lo"), finished()),
    row("Q62", "a tag that is quoted", said("It ends with `</") + said("think>`.</think>") + ends(),
        TextPiece("It ends with `</think>`.</think>"), finished()),
    row("Q62", "a tag beside thinking of its own",
        chunk({"reasoning": "Hm."}) + said("a </think> b") + ends(),
        THOUGHT, TextPiece("a </think> b"), Extras({"reasoning": "Hm."}), finished()),
    row("Q64", "usage of x_groq", said("Hello") + ends(x_groq={"id": "r", "usage": {
        "prompt_tokens": 9, "completion_tokens": 2}}) + DONE,
        TextPiece("Hello"), finished(usage=Usage(9, 2))),
    row("Q64", "usage of x_groq beside text",
        chunk({"content": "Hello"}, x_groq={"usage": {"prompt_tokens": 9}}) + ends() + DONE,
        TextPiece("Hello"), finished(usage=Usage(9))),
    row("Q64", "usage of x_groq beside the standard one",
        ends(usage={"prompt_tokens": 5}, x_groq={"usage": {"prompt_tokens": 9}})
        + chunk({}, "stop", x_groq={"usage": {"prompt_tokens": 8}}), finished(usage=Usage(5))),
    row("Q64", "x_groq that is odd", said("Hello") + ends(x_groq="no"), *HELLO),
    row("Q58", "tags within the text", said("a <think>b</think>") + ends(),
        TextPiece("a <think>b</think>"), finished()),
    row("Q59", "reasoning_content",
        chunk({"reasoning_content": "H"}) + chunk({"reasoning_content": "m."}) + said("Hello")
        + ends(), THOUGHT, TextPiece("Hello"), Extras({"reasoning_content": "Hm."}), finished()),
    row("Q59", "reasoning and its copy",
        chunk({"reasoning": "Hm.", "reasoning_content": "Hm."}) + said("Hello") + ends(),
        THOUGHT, TextPiece("Hello"), Extras({"reasoning_content": "Hm.", "reasoning": "Hm."}),
        finished()),
    row("Q59", "reasoning that is not a string",
        chunk({"reasoning": {"text": "Hm.", "id": 1}}) + said("Hello") + ends(),
        THOUGHT, TextPiece("Hello"), Extras({"reasoning": {"text": "Hm.", "id": 1}}), finished()),
    row("Q59", "nothing but reasoning", chunk({"reasoning": "Hm."}) + ends(),
        THOUGHT, Extras({"reasoning": "Hm."}), finished()),
    row("Q58", "empty reasoning and content",
        chunk({"reasoning": "", "content": ""}) + said("Hello") + ends(), *HELLO),
    row("Q8", "characters escaped in halves",
        b'data: {"choices": [{"delta": {"content": "Hi \\ud83d"}}]}\n\n'
        b'data: {"choices": [{"delta": {"content": "\\ude00 \\ud83d"}}]}\n\n' + ends(),
        TextPiece("Hi \N{GRINNING FACE} \N{REPLACEMENT CHARACTER}"), finished()),
    row("Q28", "a second choice is not this answer",
        other({"content": "no"}) + said("Hello") + ends(),
        TextPiece("Hello"),
        StreamNotice("other_choices", "the endpoint sends more than one answer"), finished()),
    row("Q28", "a second choice with the same text",
        said("Hello") + other({"content": "Hello"}, "stop") + ends(), *HELLO),
    row("Q28", "the only choice is the second", other({"content": "Hello"}, "stop"), *HELLO),
    row("Q28", "the first choice is empty",
        chunk({"content": ""}) + other({"content": "Hel"}) + other({"content": "lo"}) + ends(),
        *HELLO),
    row("Q28", "an error in another choice",
        said("Hello") + event({"choices": [{"index": 0, "delta": {}}, {"index": 1, "delta": {},
            "error": {"message": "x", "code": 500}}]}) + ends(),
        error("HTTP 500: x", 500, retryable=True)),
    row("Q28", "choices without end",
        event({"choices": [{"index": at, "delta": {}} for at in range(130)]}),
        Broken(LimitError, "over 128 choices", retryable=False), framings=("lf",)),
]  # fmt: skip


@pytest.mark.parametrize("stream", ROWS)
def test_content_comes_to_the_same_however_its_stream_is_cut(stream: Row) -> None:
    check(stream)
