"""What servers and gateways really send on `/responses`, and what comes of it.

The numbers are those of the table in `docs/architecture/responses-quirks.md`.
"""

import json
from typing import Any

import pytest
from responses_streams import COUNTS, call, decoded, event, events, message, reasoning, response
from responses_streams import stream as answer
from wire_streams import LINE_ENDS

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
    InBandError,
    IncompleteStreamError,
    MalformedToolCallError,
    StreamError,
    UnreadableStreamError,
)

READ = call("c1", "repo__read", '{"path": "a"}')
READS = ToolCall("c1", "repo__read", '{"path": "a"}')


def edit(raw: bytes, kind: str, change: Any) -> bytes:
    """The stream with the bodies of some events changed; `None` leaves them out."""
    kept = []
    for block in raw.split(b"\n\n")[:-1]:
        name, _, data = block.partition(b"\ndata: ")
        body = json.loads(data)
        if body["type"].startswith(kind):
            body = change(body)
        if body is not None:
            kept.append(name + b"\ndata: " + json.dumps(body, ensure_ascii=False).encode())
    return b"\n\n".join([*kept, b""])


def without(*names: str) -> Any:
    """A change that leaves out fields of an event, of its item and of its response."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        inner = {key: value for key, value in body.items() if key not in names}
        for part in ("item", "response"):
            if isinstance(whole := inner.get(part), dict):
                inner[part] = {key: value for key, value in whole.items() if key not in names}
        return inner

    return change


def setting(part: str, **fields: Any) -> Any:
    def change(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, part: {**body[part], **fields}}

    return change


def gone(_: dict[str, Any]) -> None:
    return None


def texts(deltas: list[Delta] | StreamError) -> str:
    assert isinstance(deltas, list), deltas
    return "".join(one.text for one in deltas if isinstance(one, TextPiece))


def called(deltas: list[Delta] | StreamError) -> list[ToolCall]:
    assert isinstance(deltas, list), deltas
    return [one for one in deltas if isinstance(one, ToolCall)]


def notices(deltas: list[Delta] | StreamError) -> set[str]:
    assert isinstance(deltas, list), deltas
    return {one.code for one in deltas if isinstance(one, StreamNotice)}


def end(deltas: list[Delta] | StreamError) -> Finish:
    assert isinstance(deltas, list), deltas
    assert isinstance(deltas[-1], Finish)
    return deltas[-1]


HELLO = answer(message("Hello."))
CALLED = answer(READ)
PAIR = answer(READ, call("c2", "x", '{"b": 1}'))
TWO_CALLS = [READS, ToolCall("c2", "x", '{"b": 1}')]
NUMBERS = ("output_index", "content_index", "sequence_number", "summary_index")
BARE = edit(PAIR, "response.", without("id", "item_id", *NUMBERS))
NO_END = HELLO[: HELLO.rindex(b"event: ")]

# Streams that come to a whole answer, with the text or the calls in it and the notices.
TOLERATED: dict[str, tuple[bytes, str | list[ToolCall], set[str]]] = {
    "R1 the last event has no output": (
        edit(HELLO, "response.completed", setting("response", output=[])), "Hello.", set()),
    "R1 the output is null": (
        edit(CALLED, "response.completed", setting("response", output=None)), [READS], set()),
    "R2 no numbers": (edit(CALLED, "response.", without(*NUMBERS)), [READS], set()),
    "R2 no numbers, two calls": (
        edit(answer(READ, call("c2", "x", "{}")), "response.", without(*NUMBERS)),
        [READS, ToolCall("c2", "x", "{}")], set()),
    "R3 the ends of items out of order": (
        b"".join(
            one for part in (0, 1, 2)
            for one in events(message("One."), message("Two.", "msg_2"))
            if part == (2 if b"completed" in one.split(b"\n")[0] else
                        1 if b"done" in one and b'"msg_1"' in one else 0)),
        "One.\n\nTwo.", set()),
    "R4 two items in one place": (
        edit(answer(READ, call("c2", "x", "{}")), "response.",
             lambda body: {**body, "output_index": 0} if "output_index" in body else body),
        [READS, ToolCall("c2", "x", "{}")], set()),
    "R5 another id in each event": (
        edit(CALLED, "response.function_call_arguments",
             lambda body: {**body, "item_id": f"odd{body['sequence_number']}"}),
        [READS], set()),
    "R5 another id of the response": (
        edit(HELLO, "response.completed", setting("response", id="resp_x")),
        "Hello.", {"id_changed"}),
    "R6 no parts are announced": (edit(HELLO, "response.content_part", gone), "Hello.", set()),
    "R7 no items are announced": (edit(CALLED, "response.output_item.added", gone), [READS], set()),
    "R8 no item ends": (edit(CALLED, "response.output_item.done", gone), [READS], set()),
    "R8 no item ends and no output": (
        edit(edit(CALLED, "response.output_item.done", gone), "response.completed",
             setting("response", output=[])), [READS], set()),
    "R9 the end of a call has no arguments": (
        edit(edit(CALLED, "response.output_item.done", setting("item", arguments="")),
             "response.completed", setting("response", output=[])), [READS], set()),
    "R10 arguments as an object": (
        edit(answer(call("c1", "repo__read", "")), "response.output_item.done",
             setting("item", arguments={"path": "a"})),
        [ToolCall("c1", "repo__read", '{"path":"a"}')], set()),
    "R11 unknown events": (
        event("response.sparkles", x=1) * 3 + HELLO, "Hello.", {"unknown_event"}),
    "R11 pings as events": (event("keepalive") + HELLO, "Hello.", set()),
    "R12 events after the end": (
        HELLO + event("response.output_text.delta", item_id="msg_1", delta="!"),
        "Hello.", {"after_the_end"}),
    "R13 the same call twice": (
        answer(READ, {**READ, "id": "fc_again"}), [READS], set()),
    "R14 two calls with one id": (
        answer(READ, call("c1", "repo__read", '{"path": "b"}', id="fc_2")),
        [ToolCall("c1", "repo__read", '{"path": "a"}{"path": "b"}')], {"repeated_call"}),
    "R15 a call without an id": (
        edit(answer({**READ, "call_id": ""}), "response.", without("call_id")),
        [ToolCall("536a265fb", "repo__read", '{"path": "a"}')], set()),
    "R16 the text differs at the end": (
        edit(HELLO, "response.output_text.delta", lambda body: {**body, "delta": "Hallo"}),
        "Hello.", set()),
    "R17 content as text": (
        edit(edit(HELLO, "response.output_text", gone), "response.",
             lambda body: {**body, "item": {**body["item"], "content": "Hello."}}
             if "item" in body else body), "Hello.", set()),
    "R18 in progress at the end": (
        edit(HELLO, "response.completed", setting("response", status="in_progress")),
        "Hello.", {"ends_disagree"}),
    "R19 the first event is missing": (edit(HELLO, "response.created", gone), "Hello.", set()),
    "R20 thinking in the text": (answer(message("<think>Hm.</think>Hello.")), "Hello.", set()),
    "R21 a call of a refused kind beside text": (
        answer(message("Hello."), {"id": "x", "type": "computer_call", "call_id": "z"}),
        "Hello.", {"other_item"}),
    "R22 a stream of JSON by type": (
        b"[" + b",".join(one.partition(b"data: ")[2].strip() for one in events(message("Hello.")))
        + b"]", "Hello.", set()),
    "R38 no ids, no numbers, and no item ends": (
        edit(edit(BARE, "response.output_item.done", gone), "response.completed",
             setting("response", output=[])), TWO_CALLS, set()),
    "R38 no ids, no numbers, and neither items nor pieces end": (
        edit(edit(edit(BARE, "response.output_item.done", gone), "response.completed",
                  setting("response", output=[])),
             "response.function_call_arguments.done", gone), TWO_CALLS, set()),
    "R38 an id in the pieces alone": (
        edit(edit(PAIR, "response.output_item", lambda body: without("output_index")(
            {**body, "item": without("id")(body["item"])})),
            "response.function_call_arguments", without("output_index")), TWO_CALLS, set()),
    "R38 a number in the pieces alone": (
        edit(edit(PAIR, "response.", without("id", "item_id")),
             "response.output_item", without("output_index")), TWO_CALLS, set()),
    "R39 arguments that hold a place": (
        edit(edit(edit(CALLED, "response.output_item.added", setting("item", arguments="{}")),
                  "response.output_item.done", setting("item", arguments="")),
             "response.", lambda body: None if body["type"].endswith("arguments.done") else {
                 **body, **({"response": {**body["response"], "output": []}}
                            if "response" in body else {})}), [READS], set()),
    "R40 a message twice in the output": (
        edit(HELLO, "response.completed",
             setting("response", output=[message("Hello."), message("Hello.")])),
        "Hello.", set()),
    "R41 the response itself as the last event": (
        edit(HELLO, "response.completed", lambda body: {"type": body["type"], **body["response"]}),
        "Hello.", set()),
}  # fmt: skip


@pytest.mark.parametrize("framing", LINE_ENDS)
@pytest.mark.parametrize("name", TOLERATED)
def test_an_odd_stream_is_a_whole_answer(name: str, framing: str) -> None:
    raw, expected, told = TOLERATED[name]
    raw = raw.replace(b"\n", LINE_ENDS[framing])
    for chunks in ([raw], [raw[at : at + 7] for at in range(0, len(raw), 7)]):
        deltas = decoded(chunks, ("repo__read",))
        found = texts(deltas) if isinstance(expected, str) else called(deltas)
        assert found == expected
        assert notices(deltas) == told


def failed(code: Any, words: str, end: str = "failed") -> bytes:
    error = {"code": code, "message": words}
    last = response(status="failed", error=error, usage=None)
    return NO_END + event(f"response.{end}", sequence_number=99, response=last)


FAULTS: dict[str, tuple[bytes, type[StreamError], str, bool]] = {
    "F7 an overload": (
        failed("server_is_overloaded", "busy"), InBandError, "busy", True),
    "F8 a limit of requests": (
        failed("rate_limit_exceeded", "slow down"), InBandError, "slow down", True),
    "F9 a refused prompt": (failed("invalid_prompt", "bad"), InBandError, "bad", False),
    "F10 a policy": (failed("bio_policy", "no"), InBandError, "no", False),
    "F10 misuse": (failed("misalignment_policy_violation", "no"), InBandError, "no", False),
    "F10 an image": (failed("image_parse_error", "no"), InBandError, "no", False),
    "F10 an image that did not come": (
        failed("failed_to_download_image", "no"), InBandError, "no", True),
    "F10 a gateway's policy": (failed("retry_policy_exhausted", "no"), InBandError, "no", True),
    "F11 a quota": (failed("insufficient_quota", "no money"), InBandError, "no money", False),
    "F12 failed, but the name says completed": (
        failed("server_error", "oops", end="completed"), InBandError, "oops", True),
    "F13 failed without an error": (
        NO_END + event("response.failed", response=response(status="failed")),
        InBandError, "the response failed", True),
    "F13 failed with an error in words": (
        NO_END + event("response.failed", response=response(status="failed", error="slow disk")),
        InBandError, "slow disk", True),
    "F13 failed with the error beside it": (
        NO_END + event("response.failed", error={"code": "server_error", "message": "oops"}),
        InBandError, "oops", True),
    "F13 completed with an error in words": (
        json.dumps(response(message("x"), error="slow disk")).encode(),
        InBandError, "slow disk", True),
    "F14 cancelled": (
        NO_END + event("response.completed", response=response(status="cancelled")),
        InBandError, "was cancelled", True),
    "F16 an error event, nested": (
        NO_END + event("error", error={"code": "rate_limit_exceeded", "message": "slow"}),
        InBandError, "slow", True),
    "F24 a chat completion": (
        b'{"choices": [{"message": {"content": "x"}}]}',
        UnreadableStreamError, "api: chat", False),
    "F25 chunks of a chat completion": (
        b'data: {"choices": [{"delta": {"content": "x"}}]}\n\ndata: [DONE]\n\n',
        UnreadableStreamError, "api: chat", False),
    "F26 a call that nobody answers": (
        answer({"id": "x", "type": "computer_call", "call_id": "z"}),
        MalformedToolCallError, "computer_call", True),
    "F27 queued in the background": (
        json.dumps(response(status="queued")).encode(), IncompleteStreamError, "`queued`", True),
}  # fmt: skip


@pytest.mark.parametrize("framing", LINE_ENDS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_stream_is_an_error(name: str, framing: str) -> None:
    raw, kind, words, retryable = FAULTS[name]
    raw = raw.replace(b"\n", LINE_ENDS[framing])
    for chunks in ([raw], [raw[at : at + 1] for at in range(len(raw))]):
        error = decoded(chunks, ("repo__read",))
        assert type(error) is kind, error
        assert words in error.message
        assert error.retryable is retryable


def test_a_refused_answer_makes_no_call() -> None:
    part = {"type": "refusal", "refusal": "No."}
    deltas = decoded([answer(message("", content=[part]), READ)])
    assert not called(deltas)
    assert end(deltas).reason == "refusal"
    assert end(deltas).refusal == "No."
    assert "calls_despite_refusal" in notices(deltas)


def test_completed_does_not_mean_whole() -> None:
    counts = {**COUNTS, "output_tokens": 8}
    raw = answer(message("Once upon"), usage=counts)
    assert end(decoded([raw])).reason == "stop"
    by_request = decoded([raw], limit=8)
    by_echo = decoded([answer(message("Once upon"), usage=counts, max_output_tokens=8)])
    by_item = decoded([answer(message("Once upon", status="incomplete"))])
    for deltas in (by_request, by_echo, by_item):
        assert end(deltas).reason == "length"
        assert "cut_though_completed" in notices(deltas)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("incomplete", "completed", "length"),
        ("completed", "incomplete", "length"),
        ("failed", "completed", ""),
        ("completed", "failed", ""),
    ],
)
def test_of_two_ends_that_disagree_the_worse_one_counts(
    name: str, status: str, reason: str
) -> None:
    last = event(f"response.{name}", response=response(message("Hello."), status=status))
    deltas = decoded([NO_END + last])
    if reason:
        assert end(deltas).reason == reason
        assert "ends_disagree" in notices(deltas)
    else:
        assert isinstance(deltas, InBandError)


@pytest.mark.parametrize("counts", [None, {}, {"input_tokens": 0, "output_tokens": 0}, "odd", 7])
def test_no_counts_and_zero_counts_are_unknown(counts: Any) -> None:
    assert end(decoded([answer(message("x"), usage=counts)])).usage == Usage()


def test_thoughts_without_content_are_not_sent_back_nor_what_leads_to_them() -> None:
    empty = reasoning("Hm.", encrypted_content=None)
    deltas = decoded([answer(empty, message("x", phase="final_answer"), READ)])
    assert isinstance(deltas, list)
    assert ReasoningPiece("Hm.") in deltas
    (extras,) = (one for one in deltas if isinstance(one, Extras))
    kept = extras.fields["output"]
    assert isinstance(kept, list)
    assert [item["type"] for item in kept] == ["message", "function_call"]
    assert not any("id" in item for item in kept)


def test_the_end_of_a_thought_is_kept_and_not_its_beginning() -> None:
    raw = answer(reasoning(), message("x"))
    raw = edit(raw, "response.output_item.added", setting("item", encrypted_content="half"))
    raw = edit(raw, "response.completed", setting("response", output=[]))
    deltas = decoded([raw])
    assert isinstance(deltas, list)
    assert Extras({"output": [reasoning(), message("x")]}) in deltas


def test_the_status_of_a_thought_is_not_sent_back() -> None:
    deltas = decoded([answer(reasoning(status="completed"), message("x"))])
    assert isinstance(deltas, list)
    assert Extras({"output": [reasoning(), message("x")]}) in deltas


@pytest.mark.parametrize(
    "output",
    [
        [reasoning()],
        [message("x"), reasoning()],
        [reasoning(), READ, reasoning(id="rs_2"), {**READ, "id": "fc_again"}],
        [reasoning(), {"id": "x", "type": "computer_call", "call_id": "z"}, message("x")],
    ],
)
def test_a_thought_without_what_followed_it_is_not_sent_back(output: list[dict[str, Any]]) -> None:
    reason = {"reason": "max_output_tokens"}
    deltas = decoded([answer(*output, end="incomplete", incomplete_details=reason)])
    assert isinstance(deltas, list)
    for extras in (one for one in deltas if isinstance(one, Extras)):
        kept = extras.fields["output"]
        assert isinstance(kept, list)
        assert [item["type"] for item in kept] == ["reasoning", "function_call"]


def test_nulls_of_a_thought_are_not_sent_back() -> None:
    raw = edit(
        answer(reasoning(), message("x")),
        "response.completed",
        setting("response", output=[reasoning(content=None, status=None), message("x")]),
    )
    raw = edit(raw, "response.output_item", lambda body: {
        **body, "item": {**body["item"], "content": body["item"].get("content")}})  # fmt: skip
    deltas = decoded([raw])
    assert isinstance(deltas, list)
    assert Extras({"output": [reasoning(), message("x")]}) in deltas


def test_an_unknown_end_is_told() -> None:
    finish = end(decoded([json.dumps(response(message("x"), status="expired")).encode()]))
    assert (finish.reason, finish.raw) == ("other", "expired")


def test_a_marker_may_be_the_end_if_the_file_says_so() -> None:
    deltas = decoded([NO_END + b"data: [DONE]\n\n"], finish_optional=True)
    assert texts(deltas) == "Hello."
    assert "no_finish_reason" in notices(deltas)
