"""Quirks of tool calls (rows 36 to 57 of the table of quirks), cut at every byte."""

import pytest
from wire_streams import (
    DONE,
    PLACE,
    Broken,
    Row,
    call,
    calls,
    check,
    chunk,
    completion,
    decoded,
    ends,
    event,
    finished,
    other,
    row,
    said,
)
from work import work_of

from aish.core.messages import Extras, StreamNotice, TextPiece
from aish.core.tools import ToolCall
from aish.wire.calls import drop_repetitions, make_call_id
from aish.wire.errors import (
    IncompleteStreamError,
    MalformedToolCallError,
    TruncatedToolCallError,
)
from aish.wire.json_text import json_values

FIRST, SECOND = (make_call_id(PLACE, index, ()) for index in range(2))
A = ToolCall("i", "a", '{"x":1}')
B = ToolCall("j", "b", '{"y":2}')
CALLS = finished("tool_calls")
END = ends("tool_calls") + DONE
NO_INDEX = StreamNotice("missing_index", "pieces of tool calls come without an index")
LEAKED = StreamNotice("leaked_call", "the answer has a tool call as text; text is never executed")
NAMELESS = Broken(
    MalformedToolCallError, "name was never sent", retryable=True, code="malformed_tool_call"
)
TRUNCATED = Broken(
    TruncatedToolCallError, "truncated tool call", retryable=False, code="truncated_tool_call"
)


def in_pieces(id: str, name: str, *parts: str, **at: int) -> bytes:
    """A call as the documentation has it: the name first, then its arguments in pieces."""
    opening = calls(call(name, "", id=id, type="function", **at))
    return opening + b"".join(calls(call(None, part, **at)) for part in parts)


ONE = in_pieces("i", "a", '{"x"', ":1}", index=0)
TWO = in_pieces("j", "b", '{"y"', ":2}", index=1)

ROWS = [
    row("L5", "interleaved pieces",
        calls(call("a", '{"x"', index=0, id="i"), call("b", '{"y"', index=1, id="j"))
        + calls(call(None, ":2}", index=1)) + calls(call(None, ":1}", index=0)) + END,
        A, B, CALLS),
    row("Q36", "no index, by id",
        calls(call("a", '{"x"', id="i")) + calls(call("b", '{"y"', id="j"))
        + calls(call(None, ":1}", id="i")) + calls(call(None, ":2}", id="j")) + END,
        NO_INDEX, A, B, CALLS),
    row("Q36", "null index, by name",
        calls(call("a", '{"x"', index=None)) + calls(call(None, ":1}", index=None))
        + calls(call("b", '{"y":2}', index=None)) + END,
        NO_INDEX, ToolCall(FIRST, "a", '{"x":1}'), ToolCall(SECOND, "b", '{"y":2}'), CALLS),
    row("Q36", "no index, the same tool twice",
        calls(call("a", '{"x":1}')) + calls(call("a", '{"x":2}')) + END,
        NO_INDEX, ToolCall(FIRST, "a", '{"x":1}'), ToolCall(SECOND, "a", '{"x":2}'), CALLS),
    row("Q37", "index 0 for all, new ids",
        in_pieces("i", "a", '{"x":1}', index=0) + in_pieces("j", "b", '{"y":2}', index=0) + END,
        A, B, CALLS),
    row("Q37", "index 0 for all, new name after whole arguments",
        calls(call("a", '{"x":1}', index=0)) + calls(call("b", '{"y":2}', index=0)) + END,
        ToolCall(FIRST, "a", '{"x":1}'), ToolCall(SECOND, "b", '{"y":2}'), CALLS),
    row("Q28", "text in the first choice, the call in the second",
        said("On it.") + other({"tool_calls": [call("a", '{"x"', index=0, id="i")]})
        + other({"tool_calls": [call(None, ":1}", index=0)]}, "tool_calls") + ends() + DONE,
        TextPiece("On it."), A, CALLS),
    row("Q28", "the call in the second choice comes first",
        other({"tool_calls": [call("a", '{"x":1}', index=0, id="i")]}, "tool_calls")
        + said("On it.") + ends("tool_calls"),
        TextPiece("On it."), A, CALLS),
    row("Q28", "both choices in one chunk",
        event({"choices": [{"index": 0, "delta": {"content": "On it."}, "finish_reason": "stop"},
                           {"index": 1, "delta": {"tool_calls": [
                               call("a", '{"x":1}', index=0, id="i")]},
                            "finish_reason": "tool_calls"}]}) + DONE,
        TextPiece("On it."), A, CALLS),
    row("Q28", "a call in each of two other choices",
        said("On it.") + other({"tool_calls": [call("a", '{"x":1}', index=0, id="i")]}, "stop")
        + other({"tool_calls": [call("b", '{"y":2}', index=0, id="j")]}, "stop", 2) + ends(),
        TextPiece("On it."),
        StreamNotice("calls_despite_finish", "text and tool calls under finish reason `stop`"),
        A, B, finished("tool_calls", "stop")),
    row("Q28", "the choice with the call repeats the text",
        said("On it.") + other({"content": "On it.", "tool_calls": [
            call("a", '{"x":1}', index=0, id="i")]}, "tool_calls") + ends("tool_calls"),
        TextPiece("On it."), A, CALLS),
    row("Q28", "the choice with the call has text and fields of its own",
        said("On it.") + other({"content": "Now."}) + other({"sig": "s", "tool_calls": [
            call("a", '{"x":1}', index=0, id="i")]}, "tool_calls") + ends("tool_calls"),
        TextPiece("On it.\n\nNow."), A, Extras({"sig": "s"}), CALLS),
    row("Q28", "whole answers without an index",
        completion({"content": "On it."}, {"tool_calls": [call("a", '{"x":1}', id="i")]}),
        TextPiece("On it."), A, CALLS),
    row("Q28", "whole answers with an index each",
        completion({"content": "On it.", "index": 0},
                   {"tool_calls": [call("a", '{"x":1}', id="i")], "index": 1}),
        TextPiece("On it."), A, CALLS),
    row("Q28", "the same calls in two choices are made once",
        ONE + other({"tool_calls": [call("a", '{"x": 1}', index=0, id="k")]}, "tool_calls") + END,
        A, CALLS),
    row("Q28", "other calls in two choices",
        ONE + other({"tool_calls": [call("b", '{"y":2}', index=0, id="j")]}, "tool_calls") + END,
        Broken(MalformedToolCallError, "more than one answer, each with calls", retryable=True)),
    row("Q28", "the choice with the call does not end",
        said("On it.") + other({"tool_calls": [call("a", '{"x":1}', index=0, id="i")]}) + ends(),
        Broken(IncompleteStreamError, "ended before the answer did", retryable=True)),
    row("Q28", "the choice with the call ends at the token limit",
        said("On it.") + other({"tool_calls": [call("a", '{"x":', index=0, id="i")]}, "length")
        + ends(), TRUNCATED),
    row("Q28", "a call in the form before `tool_calls`",
        said("On it.") + chunk({"function_call": {"name": "a", "arguments": "{}"}}, "stop"),
        Broken(MalformedToolCallError, "it came as `function_call`", retryable=True)),
    row("Q28", "a call in the form before `tool_calls` beside the same one",
        chunk({"function_call": {"name": "a", "arguments": '{"x":1}'}}) + ONE + END, A, CALLS),
    row("Q28", "a call within the content",
        chunk({"content": [{"type": "text", "text": "On it."},
                           {"type": "tool_use", "name": "a", "input": {}}]}) + ends(),
        Broken(MalformedToolCallError, "as content of type `tool_use`", retryable=True)),
    row("Q28", "calls that are no objects", said("On it.") + calls("a(1)") + ends(),
        Broken(MalformedToolCallError, "it is no object: a(1)", retryable=True)),
    row("Q28", "a null call is none", said("On it.") + calls(None) + ends(),
        TextPiece("On it."), finished()),
    row("Q41", "whole arguments again under one index, the same",
        calls(call("a", '{"x":1}', index=0, id="i"))
        + calls(call("a", '{ "x": 1 }', index=0, id="i")) + END, A, CALLS),
    row("Q41", "whole arguments again without name and id",
        ONE + calls(call(None, '{"x":1}', index=0)) + calls(call(None, '{"x":1}', index=0)) + END,
        A, CALLS),
    row("Q41", "arguments again in pieces", ONE + ONE + END, A, CALLS),
    row("Q41", "arguments again as an object",
        ONE + calls(call("a", {"x": 1}, index=0, id="i")) + END, A, CALLS),
    row("Q41", "arguments again, double-encoded",
        calls(call("a", '"{\\"x\\":1}"', index=0, id="i"))
        + calls(call(None, '"{\\"x\\":1}"', index=0)) + END,
        ToolCall("i", "a", '"{\\"x\\":1}"'), CALLS),
    row("Q41", "whole arguments again under one index, others",
        calls(call("a", '{"x":1}', index=0, id="i"))
        + calls(call("a", '{"x":true}', index=0, id="i")) + END,
        ToolCall("i", "a", '{"x":1}{"x":true}'), CALLS),
    row("Q41", "another object of arguments under one index",
        calls(call("a", {"x": 1}, index=0, id="i")) + calls(call("a", {"x": 2}, index=0)) + END,
        ToolCall("i", "a", '{"x":1}{"x":2}'), CALLS),
    row("Q41", "no index, the same id", calls(call("a", '{"x":1}', id="i")) * 2 + END,
        NO_INDEX, A, CALLS),
    row("Q41", "the whole message behind its pieces",
        said("On it.") + ONE + event({"choices": [{"index": 0, "finish_reason": "tool_calls",
            "message": {"content": "On it.", "tool_calls": [call("a", '{"x": 1}', id="i")]}}]}),
        TextPiece("On it."), A, CALLS),
    row("Q41", "the whole message behind its pieces, with calls that are new",
        said("On it.") + event({"choices": [{"index": 0, "finish_reason": "tool_calls",
            "message": {"content": "On it.", "tool_calls": [call("a", '{"x":1}', id="i")]}}]}),
        TextPiece("On it."), A, CALLS),
    row("Q41", "the whole message behind its pieces, with other calls",
        ONE + event({"choices": [{"index": 0, "finish_reason": "tool_calls",
            "message": {"tool_calls": [call("a", '{"x":2}', id="i")]}}]}),
        Broken(MalformedToolCallError, "sent again, and are not the same", retryable=True)),
    row("Q41", "one text with two objects in an answer that is not streamed",
        completion({"tool_calls": [call("a", '{"x":1}{"x":1}', id="i")]}),
        ToolCall("i", "a", '{"x":1}{"x":1}'), CALLS),
    row("Q37", "pieces of two calls under one index, told by id",
        calls(call("a", '{"x"', index=0, id="i")) + calls(call("b", '{"y"', index=0, id="j"))
        + calls(call(None, ":1}", index=0, id="i")) + calls(call(None, ":2}", index=0, id="j"))
        + END, A, B, CALLS),
    row("Q37", "a new id with each piece of one call",
        calls(call("a", '{"x"', index=0, id="i")) + calls(call(None, ":1}", index=0, id="k")) + END,
        A, CALLS),
    row("Q43", "null never overwrites",
        calls(call("a", '{"x"', index=0, id="i"))
        + calls({"index": 0, "id": None, "type": None,
                 "function": {"name": None, "arguments": ":1}"}}) + END, A, CALLS),
    row("Q44", "the name in each piece",
        calls(call("a", '{"x"', index=0, id="i")) + calls(call("a", ":1}", index=0)) + END,
        A, CALLS),
    row("Q44", "the name again after whole arguments",
        calls(call("a", '{"x":1}', index=0, id="i")) + calls(call("a", "", index=0)) + END,
        A, CALLS),
    row("Q45", "an empty name in later pieces",
        calls(call("a", '{"x"', index=0, id="i")) + calls(call("", ":1}", index=0)) + END,
        A, CALLS),
    row("Q46", "a name in pieces",
        calls(call("get_", index=0, id="i")) + calls(call("time", "", index=0))
        + calls(call(None, "{}", index=0)) + END,
        ToolCall("i", "get_time", "{}"), CALLS, tools=["get_time"]),
    row("Q46", "a known name is not gone on with",
        calls(call("get", index=0, id="i")) + calls(call("_x", "{}", index=0)) + END,
        ToolCall("i", "get", "{}"), CALLS, tools=["get"]),
    row("Q46", "a known name within another",
        calls(call("get", index=0, id="i")) + calls(call("_time", "{}", index=0)) + END,
        ToolCall("i", "get_time", "{}"), CALLS, tools=["get", "get_time"]),
    row("Q47", "empty pieces", calls({"index": 0, "function": {}}) + END, NAMELESS),
    row("Q47", "an empty element", calls({}) + END, NAMELESS),
    row("Q48", "a whole call and the finish in one",
        calls(call("a", '{"x":1}', index=0, id="i"), finish="tool_calls") + DONE, A, CALLS),
    row("Q48", "a whole call, then the finish",
        calls(call("a", '{"x":1}', index=0, id="i")) + ends("tool_calls"), A, CALLS),
    row("Q49", "arguments as an object",
        calls(call("a", {"x": [1, "é"]}, index=0, id="i")) + END,
        ToolCall("i", "a", '{"x":[1,"é"]}'), CALLS),
    row("Q50", "blank arguments go through as they are",
        calls(call("a", " ", index=0, id="i")) + END, ToolCall("i", "a", " "), CALLS),
    row("Q50", "null for arguments is nothing said",
        calls({"index": 0, "id": "i", "function": {"name": "a", "arguments": None}}) + END,
        ToolCall("i", "a", ""), CALLS),
    row("Q51", "double-encoded arguments go through as they are",
        calls(call("a", '"{\\"x\\":1}"', index=0, id="i")) + END,
        ToolCall("i", "a", '"{\\"x\\":1}"'), CALLS),
    row("Q52", "broken arguments go through as they are",
        calls(call("a", '{"x":NaN} so', index=0, id="i")) + END,
        ToolCall("i", "a", '{"x":NaN} so'), CALLS),
    row("Q53", "calls under another finish reason", ONE + ends("stop"), A,
        finished("tool_calls", "stop")),
    row("Q53", "calls and text under another finish reason",
        said("On it.") + ONE + ends("stop"), TextPiece("On it."),
        StreamNotice("calls_despite_finish", "text and tool calls under finish reason `stop`"),
        A, finished("tool_calls", "stop")),
    row("Q53", "cut calls under another finish reason",
        calls(call("a", '{"x":"', index=0, id="i")) + ends("stop"),
        Broken(MalformedToolCallError, "arguments break off", retryable=True)),
    row("Q55", "length before arguments",
        calls(call("a", "", index=0, id="i")) + ends("length"), TRUNCATED),
    row("Q56", "control tokens in a name",
        calls(call("ls<|channel|>commentary", "{}", index=0, id="i"),
              call("functions.ls", "{}", index=1, id="j")) + END,
        ToolCall("i", "ls<|channel|>commentary", "{}"), ToolCall("j", "functions.ls", "{}"), CALLS,
        tools=["ls"]),
    row("Q57", "a call like a function in the text", said('ls{"path": "."}') + ends(),
        TextPiece('ls{"path": "."}'), LEAKED, finished(), tools=["ls"]),
    row("Q57", "a call as an object in the text",
        said('{"name": "ls", "arguments": {}}') + ends(),
        TextPiece('{"name": "ls", "arguments": {}}'), LEAKED, finished(), tools=["ls"]),
    row("Q57", "text that only names a tool", said("I used ls, see {a}") + ends(),
        TextPiece("I used ls, see {a}"), finished(), tools=["ls"]),
    row("Q60", "fields of a call that we do not know",
        calls(call("a", '{"x"', index=0, id="i",
                   extra_content={"google": {"thought_signature": "c2ln"}}))
        + calls({"index": 0, "function": {"arguments": ":1}", "signature": "s"}}) + END,
        ToolCall("i", "a", '{"x":1}', {
            "extra_content": {"google": {"thought_signature": "c2ln"}},
            "function": {"signature": "s"}}), CALLS),
    row("Q60", "fields of a message that we do not know",
        chunk({"reasoning_details": [{"type": "reasoning.text", "text": "a"}], "x": {"y": 1}})
        + chunk({"reasoning_details": [{"type": "reasoning.text", "text": "a"}], "x": {"z": 2}})
        + ONE + END,
        A, Extras({"reasoning_details": [{"type": "reasoning.text", "text": "a"}] * 2,
                   "x": {"y": 1, "z": 2}}), CALLS),
]  # fmt: skip


@pytest.mark.parametrize("stream", ROWS)
def test_calls_come_to_the_same_however_their_stream_is_cut(stream: Row) -> None:
    check(stream)


def test_a_made_id_is_the_same_in_every_run_and_in_no_other_place() -> None:
    raw = calls(call("a", "{}", index=0)) + END
    told = [decoded([raw]) for _ in range(2)]
    assert told[0] == told[1] == [ToolCall(FIRST, "a", "{}"), CALLS]
    assert FIRST != SECOND


def test_a_made_id_is_none_that_the_model_uses_elsewhere() -> None:
    raw = calls(call("a", "{}", index=0), call("a", "{}", index=1, id=FIRST)) + END
    told = decoded([raw])
    assert isinstance(told, list)
    ids = [delta.id for delta in told if isinstance(delta, ToolCall)]
    assert len(set(ids)) == 2
    assert ids[1] == FIRST


def test_the_missing_index_is_noticed_once() -> None:
    raw = b"".join(calls(call("a", "{}", id=str(number))) for number in range(5)) + END
    told = decoded([raw])
    assert isinstance(told, list)
    assert told.count(NO_INDEX) == 1


@pytest.mark.parametrize("text", ["{} ", '{"x": 1}{"x":1}', '"{}" ', '{"x": [1, 2]}\u2003'])
def test_arguments_that_are_sent_many_times_are_read_once(text: str) -> None:
    many = text * 2_000

    assert drop_repetitions(many) == drop_repetitions(text * 2)
    assert work_of(lambda: drop_repetitions(many)).text < 10 * len(many)


def test_many_values_in_one_text_are_read_once() -> None:
    many = "{} data: {}\n" * 2_000

    assert list(json_values(many)) == [{}] * 4_000
    assert work_of(lambda: list(json_values(many))).text < 10 * len(many)
