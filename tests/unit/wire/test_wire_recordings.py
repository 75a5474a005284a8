"""Real exchanges with llama.cpp's server, under `tests/data/wire`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import each_case
from wire_streams import LINE_ENDS, PLACE, decoded, finished

from aish.core.messages import Delta, Extras, ReasoningPiece, StreamNotice, TextPiece, Usage
from aish.core.tools import ToolCall
from aish.wire.chat.decode import ChatDecoder
from aish.wire.errors import InBandError, StreamError

FOLDER = Path(__file__).parents[2] / "data" / "wire" / "llamacpp"
TOOLS = ("get_time", "run_shell")
PARIS = '{"timezone": "Europe/Paris"}'
LEAKED = StreamNotice("leaked_call", "the answer has a tool call as text; text is never executed")


def text(content: str, usage: Usage, **more: Any) -> list[Delta]:
    return [TextPiece(content), finished(usage=usage, **more)]


def asked(usage: Usage, *calls: ToolCall) -> list[Delta]:
    return [*calls, finished("tool_calls", usage=usage)]


ANSWERS: dict[str, list[Delta]] = {
    "qwen05-01-text": text("Hello, world!", Usage(31, 5, 20)),
    "qwen05-02-text-no-usage-option": text("Hello, world!", Usage()),
    "qwen05-03-text-length": text(
        "Once upon a time, there was a", Usage(27, 8, 14), reason="length"
    ),
    "qwen05-05-text-unicode": text("咖啡 你好 😀 naïve", Usage(28, 7, 14)),
    "qwen05-10-tools-auto": asked(
        Usage(254, 23, 245), ToolCall("HonDzmVQ0qwNTL3jnXmI3s1t1qpuZkMG", "get_time", PARIS)
    ),
    "qwen05-12-tools-named-choice": asked(
        Usage(254, 23, 126), ToolCall("zXw8LKQAUltvhlILyLvFhkeCfR1QkP1D", "get_time", PARIS)
    ),
    "qwen05-14-tools-none": [
        TextPiece('```json\n{"name": "get_time", "arguments": ' + PARIS + "}\n```"),
        LEAKED,
        finished(usage=Usage(254, 23, 240)),
    ],
    "qwen05-15-tool-result": text("Paris is currently 14:05 AM.", Usage(83, 12, 25)),
    "qwen05-20-json-schema": text('{\n  "name": "Bob",\n  "age": 5\n}', Usage(29, 21, 14)),
    "qwen05-51-parallel": asked(
        Usage(369, 48, 126),
        ToolCall("sAWNVC7Flse78vW19MpZvMzlKoVqkUYp", "get_time", '{"timezone": "Europe/Madrid"}'),
        ToolCall("ffoKbhTu6sYPvToH1E7aV8Fkf76CIOoQ", "get_time", '{"timezone": "Europe/Tokyo"}'),
    ),
    "smol-01-text": text("Hello, I'm here to help with whatever you need.", Usage(32, 13, 0)),
    "smol-11-tools-required": asked(
        Usage(279, 19, 135),
        ToolCall("4abm8LXIDI3UGtVjTpeh9ccxFHy6mGu8", "get_time", '{"timezone": "Paris"}'),
    ),
    "smol-15-tool-result": text("The time is 14:05 in Paris.", Usage(89, 13, 20)),
    "smol-20-json-schema": text(
        '{\n  "name": "Bob",\n  "age": 5,\n  "tags": [\n    "Bob",\n    "Bobby",\n'
        '    "Bobby_Boyz"\n  ]\n}',
        Usage(30, 48, 14),
    ),
    "think-01-text": [
        ReasoningPiece("Two dogs have 4 legs."),
        Extras({"reasoning_content": "Two dogs have 4 legs."}),
        finished(usage=Usage(30, 8, 0)),
    ],
    "think-03-reason-then-text": [
        ReasoningPiece("Two dogs have four legs.\n"),
        TextPiece("Two dogs have 4 legs."),
        Extras({"reasoning_content": "Two dogs have four legs.\n"}),
        finished(usage=Usage(102, 17, 14)),
    ],
}

ERRORS = {
    "qwen05-30-err-no-messages": (400, "HTTP 400: 'messages' is required"),
    "qwen05-31-err-bad-json": (400, "HTTP 400: [json.exception.parse_error.101] parse error"),
    "qwen05-32-err-context-overflow": (400, "HTTP 400: request (12020 tokens) exceeds the avail"),
    "qwen05-34-err-bad-tools": (500, "HTTP 500: Failed to parse tools: Missing tool function:"),
}


def many_cuts(raw: bytes) -> Iterator[list[bytes]]:
    yield [raw]
    yield [raw[at : at + 1] for at in range(len(raw))]
    for size in (2, 3, 7, 64, 500):
        yield [raw[at : at + size] for at in range(0, len(raw), size)]
    for at in range(1, len(raw), max(1, len(raw) // 150)):
        yield [raw[:at], raw[at:]]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("framing", LINE_ENDS)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_recorded_answer_is_the_same_for_many_cuts_and_framings(name: str, framing: str) -> None:
    raw = (FOLDER / f"{name}.sse").read_bytes().replace(b"\n", LINE_ENDS[framing])
    for chunks in many_cuts(raw):
        assert decoded(chunks, TOOLS) == ANSWERS[name]


@pytest.mark.parametrize("name", ERRORS)
def test_a_recorded_error_says_what_the_server_says(name: str) -> None:
    raw = (FOLDER / f"{name}.json").read_bytes()
    code, words = ERRORS[name]
    for body in (raw, b"data: " + raw + b"\n\n"):
        for chunks in many_cuts(body):
            error = decoded(chunks)
            assert isinstance(error, InBandError)
            assert (error.code, error.retryable) == (code, code == 500)
            assert error.message.startswith(words)


@each_case("name", ANSWERS)
def test_no_beginning_of_a_recorded_answer_is_a_success(name: str) -> None:
    raw = (FOLDER / f"{name}.sse").read_bytes()
    over = raw.index(b'"finish_reason":"')
    for end in range(0, over, 13):
        error = decoded([raw[:end]], TOOLS)
        assert isinstance(error, StreamError), end
        assert error.retryable


def test_every_recording_is_told_about() -> None:
    recorded = {path.name.split(".")[0] for path in FOLDER.iterdir()}
    assert recorded == set(ANSWERS) | set(ERRORS)


def test_comments_and_pings_are_no_progress() -> None:
    decoder = ChatDecoder(place=PLACE)
    for noise in (
        b": ping\n\n",
        b":\n\n",
        b"data: : ping\n\n",
        b"event: ping\ndata: {}\n\n",
        b"\n\n",
    ):
        decoder.feed(noise)
        assert decoder.progress == 0
    decoder.feed(b'data: {"type": "ping"}\n\n')
    assert decoder.progress == 0
    decoder.feed(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n' * 3)
    assert decoder.progress == 3
    decoder.feed(b": ping\n\n")
    assert decoder.progress == 3


def test_a_body_in_one_piece_makes_progress_as_it_comes() -> None:
    decoder = ChatDecoder(place=PLACE)
    decoder.feed(b" \n")
    assert decoder.progress == 0
    decoder.feed(json.dumps({"choices": []}).encode()[:5])
    assert decoder.progress == 1
    decoder.feed(b"  ")
    assert decoder.progress == 1


def test_text_comes_at_once_and_merged_and_calls_at_the_end() -> None:
    decoder = ChatDecoder(place=PLACE)
    piece = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    assert decoder.feed(piece * 3) == [TextPiece("aaa")]
    call = b'{"index": 0, "id": "i", "function": {"name": "n", "arguments": "{}"}}'
    assert (
        decoder.feed(b'data: {"choices": [{"delta": {"tool_calls": [' + call + b"]}}]}\n\n") == []
    )
    assert (decoder.complete, decoder.done) == (False, False)
    assert decoder.feed(b'data: {"choices": [{"finish_reason": "tool_calls"}]}\n\n') == []
    assert (decoder.complete, decoder.done) == (True, False)
    assert decoder.feed(b"data: [DONE]\n\n") == []
    assert (decoder.complete, decoder.done) == (True, True)
    assert decoder.close() == [ToolCall("i", "n", "{}"), finished("tool_calls")]
