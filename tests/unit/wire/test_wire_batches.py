"""Batches of both vendors: whatever a server sends is a result, an error or a wait."""

import json
import re
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from batch_servers import (
    Answer,
    Api,
    Outcome,
    Refusal,
    answer_in_words,
    file_line,
    message_line,
    request_in_batch,
    submission,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import each_case

from aish.core.wires import WIRES
from aish.wire.batches.types import (
    BatchError,
    BatchInterface,
    BatchMark,
    BatchResult,
    BatchState,
    ResultsReader,
    plain_body,
)
from aish.wire.dialect import load_batches
from aish.wire.json_text import dump

APIS: tuple[Api, ...] = ("messages", "chat", "responses")
MARK = BatchMark("20261130T030000Z-names-ab12", 3)
IDS = [MARK.custom_id(number) for number in range(3)]
MESSAGES = load_batches(WIRES["messages"])
CHAT = load_batches(WIRES["chat"])
MESSAGE_BATCH: dict[str, Any] = {
    "id": "msgbatch_1",
    "type": "message_batch",
    "processing_status": "in_progress",
    "request_counts": {"processing": 3, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0},
    "created_at": "2026-11-30T03:00:00.123456789Z",
    "expires_at": "2026-12-01T03:00:00Z",
    "ended_at": None,
    "results_url": None,
}
URL = "https://api.anthropic.com/v1/messages/batches/msgbatch_1/results"
OWN = "/messages/batches/msgbatch_1/results"
FILE_BATCH: dict[str, Any] = {
    "id": "batch_1",
    "object": "batch",
    "endpoint": "/v1/chat/completions",
    "status": "in_progress",
    "output_file_id": None,
    "error_file_id": None,
    "created_at": 1_764_471_600,
    "expires_at": 1_764_558_000,
    "request_counts": {"total": 3, "completed": 0, "failed": 0},
    "metadata": {"aish_run": MARK.run_id, "aish_batch": "3"},
}
OUTPUT = "/files/file-1/content"


def interface_of(api: Api) -> BatchInterface:
    return load_batches(WIRES[api])


def line(api: Api, custom_id: str, answer: Answer) -> bytes:
    return (message_line if api == "messages" else file_line)(custom_id, answer)


def lines_of(api: Api, newline: bytes = b"\n") -> bytes:
    answers: Sequence[Answer] = (
        answer_in_words(api, "Grüße 🙂\u2028"),
        Refusal(),
        answer_in_words(api, "b"),
    )
    pairs = zip(IDS, answers, strict=True)
    return b"".join(line(api, custom_id, answer) + newline for custom_id, answer in pairs)


def read_pieces(api: Api, *pieces: bytes) -> tuple[list[BatchResult], ResultsReader]:
    reader = ResultsReader(interface_of(api), IDS)
    results = [result for piece in pieces for result in reader.feed(piece)]
    return results + reader.end(), reader


# ---------------------------------------------------------------------------------------------
# Names and submissions


@each_case(
    "run_id",
    [
        "20261130T030000Z-names-ab12",
        f"20261130T030000Z-{'n' * 40}-ab12",
        "a_b",
        "ä/../b",
        "",
        "x" * 500,
    ],
)
def test_names_of_requests_are_legal_and_carry_run_and_batch(run_id: str) -> None:
    mark = BatchMark(run_id, 999_999_999)
    custom_id = mark.custom_id(999_999_999)

    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", custom_id)
    assert mark.owns(custom_id)
    assert not replace_ordinal(mark, 99_999_999).owns(custom_id)
    assert not BatchMark(f"{run_id}x", mark.ordinal).owns(custom_id)
    assert not mark.owns("")
    assert not mark.owns(mark.name)
    assert not mark.owns(f"{mark.name}_²")


def replace_ordinal(mark: BatchMark, ordinal: int) -> BatchMark:
    return replace(mark, ordinal=ordinal)


def test_a_submission_has_each_request_under_its_name_and_never_streams() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": "\ud800",
    }
    requests = [request_in_batch(custom_id, {**body, "x": at}) for at, custom_id in enumerate(IDS)]

    sent = json.loads(submission(MESSAGES, requests))
    rows = [json.loads(row) for row in submission(CHAT, requests).split(b"\n") if row]

    expected = [(custom_id, {"model": "m", "n": "?", "x": at}) for at, custom_id in enumerate(IDS)]
    assert [(row["custom_id"], row["params"]) for row in sent["requests"]] == expected
    assert [(row["custom_id"], row["body"]) for row in rows] == expected
    assert {(row["method"], row["url"]) for row in rows} == {("POST", "/v1/chat/completions")}


USAGE = {"include_usage": True}


@each_case(
    "body",
    [
        {"model": "m", "stream": True, "messages": []},
        {"model": "m", "stream": True, "stream_options": USAGE, "messages": [{"content": "ä"}]},
        {"model": 'a "b" \\', "stream": True, "stream_options": USAGE, "n": 1.0},
        {"model": "m", "stream": True, "n": 1, "stream_options": {"include_usage": False}},
        {"model": "m", "stream": True, "stream_options": {"more": 1}, "n": None},
        {"stream": True, "model": "m"},
        {"model": None, "n": {"stream": True, "stream_options": USAGE}},
        {"model": "m", "n": 'is "stream":true,"stream_options":{"include_usage":true} sent'},
        {"model": '","stream":true', "stream": True, "n": "\ud800"},
    ],
)
def test_a_body_in_a_batch_is_that_of_a_single_request_without_what_streams(
    body: dict[str, Any],
) -> None:
    plain = plain_body(dump(body).encode("utf-8", "replace"))

    without = {name: value for name, value in body.items() if not name.startswith("stream")}
    assert plain == dump(without).encode("utf-8", "replace")


@each_case("name", ["", "a b", "ä", "x" * 65, "a\n", "../x"])
def test_a_name_that_no_vendor_takes_is_refused(name: str) -> None:
    with pytest.raises(BatchError) as error:
        CHAT.entry(request_in_batch(name, {}))

    assert not error.value.retryable


# ---------------------------------------------------------------------------------------------
# States and lists


@each_case(
    "changes, is_ended, results",
    [
        ({}, False, ()),
        ({"processing_status": "canceling"}, False, ()),
        ({"processing_status": "pondering"}, False, ()),
        ({"processing_status": None}, False, ()),
        ({"processing_status": 7}, False, ()),
        ({"results_url": URL}, False, ()),
        ({"processing_status": "ended", "results_url": URL}, True, (URL,)),
        ({"processing_status": "ENDED", "results_url": URL}, True, (URL,)),
        ({"processing_status": "ended"}, True, (OWN,)),
        ({"processing_status": "ended", "results_url": "/x/results"}, True, (OWN,)),
        ({"processing_status": "ended", "results_url": "file:///x"}, True, (OWN,)),
        (
            {"processing_status": "done", "ended_at": "2026-11-30T04:00:00Z", "results_url": URL},
            True,
            (URL,),
        ),
        ({"processing_status": "done", "ended_at": "later"}, False, ()),
        ({"request_counts": None, "created_at": "soon", "expires_at": {}}, False, ()),
    ],
)
def test_a_message_batch_has_ended_when_it_says_so(
    changes: dict[str, Any], *, is_ended: bool, results: tuple[str, ...]
) -> None:
    state = MESSAGES.decode_state({**MESSAGE_BATCH, **changes})

    assert (state.is_ended, state.results) == (is_ended, results)


@each_case(
    "changes, is_ended, results",
    [
        ({}, False, ()),
        ({"status": "validating"}, False, ()),
        ({"status": "pondering", "output_file_id": "file-1"}, False, ()),
        ({"status": "in_progress", "output_file_id": "file-1"}, False, ()),
        ({"status": "finalizing", "expired_at": 1_764_558_000}, False, ()),
        ({"status": "completed", "output_file_id": "file-1"}, True, (OUTPUT,)),
        ({"status": "COMPLETED", "output_file_id": "file-1"}, True, (OUTPUT,)),
        ({"status": "canceled", "output_file_id": "file-1"}, True, (OUTPUT,)),
        ({"status": "ended", "completed_at": 1_764_471_700, "error_file_id": "e/.."}, True,
         ("/files/e%2F../content",)),
        ({"status": "expired", "output_file_id": "file-1", "error_file_id": "file-2"}, True,
         (OUTPUT, "/files/file-2/content")),
        ({"status": "completed", "output_file_id": "file-1", "error_file_id": "file-1"}, True,
         (OUTPUT,)),
        ({"status": "completed", "output_file_id": "..", "error_file_id": 7}, True, ()),
        ({"status": "completed", "output_file_id": ""}, True, ()),
        ({"status": "completed", "metadata": None, "request_counts": None}, True, ()),
    ],
)  # fmt: skip
def test_a_batch_of_files_has_ended_when_it_says_so(
    changes: dict[str, Any], *, is_ended: bool, results: tuple[str, ...]
) -> None:
    state = CHAT.decode_state({**FILE_BATCH, **changes})

    assert (state.is_ended, state.results) == (is_ended, results)


@each_case(
    "errors, status, words",
    [
        (
            {"data": [{"code": "token_limit_exceeded", "message": "too many tokens", "line": 7}]},
            429,
            "too many tokens (line 7 of the requests)",
        ),
        ({"data": [{"code": "invalid_url", "message": "no such URL"}]}, 400, "no such URL"),
        ([{"message": "as a list"}], 400, "as a list"),
        ({"data": None}, 400, "the batch was refused"),
        (None, 400, "the batch was refused"),
        ("no", 400, "the batch was refused"),
    ],
)
def test_each_request_of_a_refused_file_is_refused(errors: Any, status: int, words: str) -> None:
    state = CHAT.decode_state({**FILE_BATCH, "status": "failed", "errors": errors})

    result = CHAT.missing_result("x", state)

    assert (result.status, result.kind) == (status, "errored")
    assert words in json.dumps(result.body)


@each_case("document", [None, [], "x", 7, {}, {"id": ""}, {"id": 7}, {"id": ".."}, {"id": "a\nb"}])
def test_a_document_without_an_id_is_no_batch(document: Any) -> None:
    for interface in (MESSAGES, CHAT):
        with pytest.raises(BatchError):
            interface.decode_state(document)


@each_case(
    "changes, count, cursor",
    [
        ({"has_more": False}, 2, None),
        ({"has_more": True}, 2, "batch_1"),
        ({"has_more": True, "last_id": "msgbatch_1"}, 2, "batch_1"),
        ({"has_more": True, "data": []}, 0, None),
        ({"has_more": True, "data": [], "last_id": "batch_1"}, 0, None),
        ({"has_more": True, "data": None}, 0, None),
        ({"has_more": "yes"}, 2, None),
        ({"has_more": True, "data": [MESSAGE_BATCH, {"id": 7}, None]}, 1, None),
    ],
)
def test_a_page_leads_to_the_one_after_its_last_row(
    changes: dict[str, Any], count: int, cursor: str | None
) -> None:
    page = {"data": [MESSAGE_BATCH, FILE_BATCH], "last_id": "batch_1", **changes}
    for interface in (MESSAGES, CHAT):
        states, following = interface.decode_list(page)

        assert (len(states), following) == (count, cursor)
    assert MESSAGES.list_query("a") == {"limit": "1000", "after_id": "a"}
    assert CHAT.list_query("a") == {"limit": "100", "after": "a"}


OLDER = {"created_at": "2026-11-28T03:00:00Z"}
SINCE = MESSAGES.decode_state(MESSAGE_BATCH).created_at or 0.0
SINCE_FILES = 1_764_471_600.0


@each_case(
    "interface, document, expected",
    [
        (MESSAGES, MESSAGE_BATCH, "maybe"),
        (MESSAGES, {**MESSAGE_BATCH, "request_counts": {"processing": 4}}, "no"),
        (MESSAGES, {**MESSAGE_BATCH, "request_counts": {}}, "maybe"),
        (MESSAGES, {**MESSAGE_BATCH, **OLDER}, "no"),
        (MESSAGES, {**MESSAGE_BATCH, "created_at": None}, "maybe"),
        (CHAT, FILE_BATCH, "yes"),
        (CHAT, {**FILE_BATCH, "metadata": {"aish_run": "x", "aish_batch": "3"}}, "no"),
        (CHAT, {**FILE_BATCH, "metadata": {"aish_run": MARK.run_id, "aish_batch": "2"}}, "no"),
        (CHAT, {**FILE_BATCH, "metadata": {"aish_run": MARK.run_id}}, "no"),
        (CHAT, {**FILE_BATCH, "metadata": {"of": "another program"}}, "no"),
        (CHAT, {**FILE_BATCH, "metadata": None}, "maybe"),
        (CHAT, {**FILE_BATCH, "metadata": None, "request_counts": {"total": 0}}, "maybe"),
        (CHAT, {**FILE_BATCH, "metadata": {}, "created_at": 1_764_300_000}, "no"),
    ],
)
def test_a_lost_batch_is_told_from_others(
    interface: BatchInterface, document: dict[str, Any], expected: str
) -> None:
    since = SINCE if interface is MESSAGES else SINCE_FILES
    state = interface.decode_state(document)

    assert interface.match(state, MARK, 3, since) == expected


# ---------------------------------------------------------------------------------------------
# Results


@each_case("api", APIS)
def test_each_outcome_of_a_request_is_a_status_and_a_body(api: Api) -> None:
    answer = answer_in_words(api, "hello")
    outcomes: dict[Any, tuple[str, int]] = {
        Refusal(400, "invalid_request_error", "no"): ("errored", 400),
        Refusal(429, "rate_limit_error", "later"): ("errored", 429),
        Refusal(500, "api_error", "sorry"): ("errored", 500),
        Outcome.EXPIRED: ("expired", 504),
        Outcome.CANCELED: ("canceled", 499),
        Outcome.UNKNOWN: ("unknown", 501 if api == "messages" else 502),
        Outcome.NULL: ("unknown", 502),
    }

    decoded = {one: interface_of(api).decode_result(line(api, "x", one)) for one in outcomes}

    success = interface_of(api).decode_result(line(api, "x", answer))
    assert success == BatchResult("x", 200, answer, "succeeded")
    for one, result in decoded.items():
        assert result is not None
        assert (result.kind, result.status) == outcomes[one]
        assert result.body is not None
        assert isinstance(result.body["error"], dict)
        assert result.body["error"]["message"]
    assert interface_of(api).decode_result(b" \r\n") is None


ERROR = {"type": "overloaded_error", "message": "busy"}


@each_case(
    "result, kind, status",
    [
        ({"type": "errored", "error": {"type": "error", "error": ERROR}}, "errored", 529),
        ({"type": "errored", "error": ERROR}, "errored", 529),
        ({"type": "errored", "error": {"type": "new_error", "message": "?"}}, "errored", 500),
        ({"type": "errored", "error": None}, "unknown", 502),
        ({"type": "errored"}, "unknown", 502),
        ({"type": "succeeded"}, "unknown", 502),
        ({"type": "succeeded", "message": "text"}, "unknown", 502),
        ({"type": None}, "unknown", 502),
        ([], "unknown", 502),
        ({"type": "postponed", "message": {"content": []}}, "unknown", 501),
    ],
)
def test_odd_results_of_messages_are_no_success(result: Any, kind: str, status: int) -> None:
    decoded = MESSAGES.decode_result(json.dumps({"custom_id": "x", "result": result}).encode())

    assert decoded is not None
    assert (decoded.kind, decoded.status) == (kind, status)


BODY: dict[str, Any] = {"choices": []}


@each_case(
    "row, kind, status",
    [
        ({"response": {"status_code": 200, "body": BODY}}, "succeeded", 200),
        ({"response": {"status_code": "200", "body": BODY}, "error": {}}, "succeeded", 200),
        ({"response": {"status_code": 201, "body": BODY}, "error": None}, "succeeded", 200),
        ({"response": {"status_code": 200, "body": BODY}, "error": {"code": "x"}}, "errored", 500),
        ({"response": {"status_code": 403, "body": "Forbidden"}}, "errored", 403),
        ({"response": {"status_code": 503}}, "errored", 503),
        ({"response": {"status_code": 200}}, "unknown", 502),
        ({"response": {"status_code": 200, "body": "text"}}, "unknown", 502),
        ({"response": {"status_code": True, "body": BODY}}, "unknown", 502),
        ({"response": {"status_code": 2000, "body": BODY}}, "unknown", 502),
        ({"response": {"body": BODY}}, "unknown", 502),
        ({"response": None, "error": None}, "unknown", 502),
        ({}, "unknown", 502),
        ({"error": {"code": "request_timeout"}}, "errored", 504),
        ({"error": {"code": "rate_limit_exceeded"}, "response": None}, "errored", 429),
        ({"error": {"code": 404, "message": "gone"}}, "errored", 404),
        ({"error": {"type": "server_error"}, "response": {"status_code": 503}}, "errored", 503),
    ],
)
def test_odd_results_of_files_are_no_success(row: Any, kind: str, status: int) -> None:
    decoded = CHAT.decode_result(json.dumps({"custom_id": "x", **row}).encode())

    assert decoded is not None
    assert (decoded.kind, decoded.status) == (kind, status)


@each_case(
    "status, kind, code",
    [("expired", "expired", 504), ("cancelled", "canceled", 499), ("completed", "unknown", 502)],
)
def test_a_request_without_a_line_ends_as_its_batch(status: str, kind: str, code: int) -> None:
    state = CHAT.decode_state({**FILE_BATCH, "status": status})

    result = CHAT.missing_result("x", state)

    assert (result.kind, result.status) == (kind, code)
    ended = MESSAGES.decode_state({**MESSAGE_BATCH, "processing_status": "ended"})
    assert MESSAGES.missing_result("x", ended).status == 502


@pytest.mark.requirement("W17")
@each_case("api", APIS)
def test_results_are_the_same_for_every_cut_and_line_end_and_never_short(api: Api) -> None:
    expected, _ = read_pieces(api, lines_of(api))
    assert [result.custom_id for result in expected] == IDS
    assert [result.kind for result in expected] == ["succeeded", "errored", "succeeded"]

    for newline, form in (
        (b"\n", bytes.strip),
        (b"\r\n", lambda whole: b"\xef\xbb\xbf" + whole),
        (b"\r", lambda whole: whole + b"\r"),
    ):
        body = form(lines_of(api, newline))
        for at in range(len(body) + 1):
            results, reader = read_pieces(api, body[:at], body[at:])
            assert (results, reader.missing) == (expected, set())
    body = lines_of(api)
    assert read_pieces(api, *(body[at : at + 1] for at in range(len(body))))[0] == expected
    whole_rows = {0}
    for row in body.splitlines(keepends=True):
        whole_rows |= {max(whole_rows) + len(row) - 1, max(whole_rows) + len(row)}
    for at in range(len(body)):
        reader = ResultsReader(interface_of(api), IDS)
        results = reader.feed(body[:at])
        if at in whole_rows:
            results += reader.end()
            assert reader.missing == set(IDS[len(results) :])
        else:
            with pytest.raises(BatchError) as error:
                reader.end()
            assert error.value.retryable
            assert reader.missing
        # The same file once more, from its beginning.
        reader.begin()
        results += reader.feed(body) + reader.end()
        assert (results, reader.missing) == (expected, set())


@each_case("api", APIS)
def test_lines_that_are_no_results_lose_no_others(api: Api) -> None:
    good = [line(api, custom_id, answer_in_words(api, custom_id)) for custom_id in IDS]
    odd = [
        *(b"{", b"[]", b"null", b"7", b"{}", b'{"custom_id": 7}', b"\xff\xfe", b"[" * 100_000),
        *(b"", b"  ", line(api, "another", Outcome.NULL), line(api, IDS[2], Outcome.NULL)),
    ]

    results, reader = read_pieces(api, b"\n".join([good[2], *odd, good[0]]))

    assert [result.custom_id for result in results] == [IDS[2], IDS[0]]
    assert reader.missing == {IDS[1]}
    assert reader.foreign == 2


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    reader = ResultsReader(MESSAGES, IDS)
    piece = b"x" * (1 << 24)

    with pytest.raises(BatchError) as error:
        any(reader.feed(piece) for _ in range(100))

    assert not error.value.retryable


@pytest.mark.slow(reason="reads 200 MB")
def test_a_file_of_200_mb_is_read_in_little_memory() -> None:
    rows, text = 40_000, "x" * 5000
    answer = json.dumps(answer_in_words("messages", text))
    form = '{"custom_id": "%s", "result": {"type": "succeeded", "message": %s}}\n'
    head = form % ("NAME", answer)
    names = [MARK.custom_id(number) for number in range(rows)]
    reader = ResultsReader(MESSAGES, names)
    waiting, size, read = b"", 0, 0
    tracemalloc.start()
    for name in reversed(names):
        waiting += head.replace("NAME", name).encode()
        while len(waiting) >= 1 << 16:
            piece, waiting = waiting[: 1 << 16], waiting[1 << 16 :]
            size += len(piece)
            read += sum(result.kind == "succeeded" for result in reader.feed(piece))
    size += len(waiting)
    read += len(reader.feed(waiting)) + len(reader.end())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size > 200_000_000
    assert (read, reader.missing) == (rows, set())
    assert peak < 4 * (1 << 20)


KEYS = (
    "id", "custom_id", "result", "type", "message", "error", "response", "status_code", "body",
    "status", "processing_status", "results_url", "output_file_id", "errors", "data", "has_more",
    "last_id", "request_counts", "metadata", "created_at", "ended_at", "code", "line", "total",
)  # fmt: skip
WORDS = ("succeeded", "errored", "expired", "ended", "failed", "completed", "a", "..", URL, "200")
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(WORDS)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=16,
)
documents = st.dictionaries(st.sampled_from(KEYS), values, max_size=8) | values


@given(documents)
def test_any_document_is_a_state_or_an_error(document: Any) -> None:
    for interface in (MESSAGES, CHAT):
        try:
            state = interface.decode_state(document)
        except BatchError:
            continue
        assert isinstance(state, BatchState)
        assert bool(state.results) <= state.is_ended
        assert interface.match(state, MARK, 3, 0.0) in {"yes", "maybe", "no"}
        assert interface.missing_result("x", state).kind != "succeeded"
        assert interface.state_leaf(state.id).rpartition("/")[2] not in {"", ".", ".."}
        json.dumps([state.results, state.counts, dict(state.metadata)], allow_nan=False)
    for interface in (MESSAGES, CHAT):
        try:
            states, cursor = interface.decode_list(document)
        except BatchError:
            continue
        assert cursor is None or states is not None


@settings(deadline=None)
@given(
    st.lists(
        documents.map(json.dumps).map(str.encode)
        | st.binary(max_size=20)
        | st.sampled_from([line("messages", IDS[0], Outcome.NULL), line("chat", IDS[1], Refusal())])
    ),
    st.sampled_from([b"\n", b"\r\n", b""]),
    st.integers(1, 40),
)
def test_any_bytes_are_results_or_an_error(rows: list[bytes], newline: bytes, size: int) -> None:
    body = newline.join(rows)
    for interface in (MESSAGES, CHAT):
        reader = ResultsReader(interface, IDS)
        results = []
        for at in range(0, len(body), size):
            results += reader.feed(body[at : at + size])
        with suppress(BatchError):
            results += reader.end()
        names = [result.custom_id for result in results]
        assert sorted([*names, *reader.missing]) == IDS
        for result in results:
            assert result.body is not None
            assert (result.status == 200) == (result.kind == "succeeded")
            json.dumps(result.body)


def test_the_two_wires_that_share_files_differ_in_the_path_of_requests() -> None:
    request = request_in_batch("x", {"model": "m"})

    assert json.loads(interface_of("responses").entry(request))["url"] == "/v1/responses"
