"""Batches of OpenAI, and of many others: a file of requests in, files of results and errors out.

One line is one request to a path of the API. `total` may be zero while a file is validated.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from aish.core.json import JsonObject, JsonValue
from aish.wire.batches.types import (
    CANCELED,
    EXPIRED,
    OK,
    UNREADABLE,
    BatchFailure,
    BatchInterface,
    BatchMark,
    BatchRequest,
    BatchResult,
    BatchState,
    FileUpload,
    Kind,
    Likeness,
    decode_states,
    is_id,
    may_be,
    parse_line,
    path_segment,
    read_counts,
    read_custom_id,
    read_id,
    read_object,
    read_status,
    read_time,
)

LEAF: Final = "/batches"
FILES: Final = "/files"
RUN: Final = "aish_run"
ORDINAL: Final = "aish_batch"
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_RUNNING: Final = frozenset({"validating", "in_progress", "finalizing", "cancelling"})
_ENDS: Final = ("completed_at", "failed_at", "expired_at", "cancelled_at")
_SUCCESS: Final = range(200, 300)
# Codes of requests that were not answered, and of files that were refused.
_CODES: Final[Mapping[str, tuple[Kind, int]]] = {
    "batch_expired": ("expired", EXPIRED),
    "batch_cancelled": ("canceled", CANCELED),
    "request_timeout": ("errored", 504),
    "rate_limit_exceeded": ("errored", 429),
    "insufficient_quota": ("errored", 429),
    "token_limit_exceeded": ("errored", 429),
}
_BAD_REQUEST: Final = 400
_SERVER_ERROR: Final = 500
# What a request is answered that has no line, by the status of its batch.
_MISSING: Final[Mapping[str, tuple[str, str]]] = {
    "expired": ("batch_expired", "the batch expired before this request was sent"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this request was sent"),
}


def encode_entry(request: BatchRequest, endpoint: str) -> bytes:
    row = (request.quoted_id, endpoint.encode(), request.body)
    return b'{"custom_id":%s,"method":"POST","url":"%s","body":%s}\n' % row


def file_name(mark: BatchMark) -> str:
    return f"{mark.name}.jsonl"


def decode_upload(document: JsonValue) -> str:
    return read_id(read_object(document, "the uploaded file"), "the uploaded file")


def encode_creation(file_id: str, mark: BatchMark, endpoint: str) -> JsonObject:
    return {
        "input_file_id": file_id,
        "endpoint": endpoint,
        "completion_window": "24h",
        "metadata": {RUN: mark.run_id, ORDINAL: str(mark.ordinal)},
    }


def state_leaf(batch_id: str) -> str:
    return f"{LEAF}/{path_segment(batch_id)}"


def decode_state(document: JsonValue) -> BatchState:
    fields = read_object(document, "the batch")
    batch_id = read_id(fields, "the batch")
    # Some gateways have capitals, or the spelling of the other vendor.
    status = str(fields.get("status") or "unknown").strip().lower()
    status = {"canceled": "cancelled", "canceling": "cancelling"}.get(status, status)
    has_end = any(read_time(fields.get(name)) is not None for name in _ENDS)
    is_ended = status in _ENDED or (has_end and status not in _RUNNING)
    # Some name the files before there is anything in them.
    files = [fields.get(f"{name}_file_id") for name in ("output", "error")] if is_ended else []
    metadata = fields.get("metadata")
    return BatchState(
        id=batch_id,
        status=status,
        is_ended=is_ended,
        created_at=read_time(fields.get("created_at")),
        ends_at=read_time(fields.get("expires_at")),
        counts=read_counts(fields.get("request_counts")),
        results=tuple(
            f"{FILES}/{path_segment(file)}/content"
            for file in dict.fromkeys(files)
            if isinstance(file, str) and is_id(file)
        ),
        metadata={
            str(name): value
            for name, value in (metadata.items() if isinstance(metadata, Mapping) else ())
            if isinstance(value, str)
        },
        failure=_read_failure(fields) if status == "failed" else None,
    )


def _read_failure(fields: Mapping[str, Any]) -> BatchFailure:
    errors = fields.get("errors")
    data = errors.get("data") if isinstance(errors, Mapping) else errors
    rows = [row for row in data if isinstance(row, Mapping)] if isinstance(data, list) else []
    error: Mapping[str, Any] = rows[0] if rows else {}
    code = str(error.get("code") or "batch_failed")
    message = str(error.get("message") or "the batch was refused")
    line = error.get("line")
    where = f" (line {line} of the requests)" if type(line) is int else ""
    _, status = _CODES.get(code, ("errored", _BAD_REQUEST))
    return BatchFailure(status, _error(code, message + where))


def list_query(cursor: str | None) -> Mapping[str, str]:
    return {"limit": "100"} | ({"after": cursor} if cursor else {})


def match(state: BatchState, mark: BatchMark, requests: int, since: float) -> Likeness:
    """Compare the metadata; where a gateway has dropped them, time and number."""
    if RUN in state.metadata:
        own = {RUN: mark.run_id, ORDINAL: str(mark.ordinal)}
        return "yes" if own.items() <= dict(state.metadata).items() else "no"
    return "maybe" if not state.metadata and may_be(state, requests, since) else "no"


def decode_result(line: bytes) -> BatchResult | None:
    row = parse_line(line)
    if row is None:
        return None
    custom_id = read_custom_id(row)
    response, error = row.get("response"), row.get("error")
    if isinstance(error, dict) and error:
        return _decode_error(custom_id, error, response)
    fields = response if isinstance(response, dict) else {}
    status, body = read_status(fields.get("status_code")), fields.get("body")
    if status in _SUCCESS and isinstance(body, dict):
        return BatchResult(custom_id, OK, body, "succeeded")
    if status is not None and status not in _SUCCESS:
        if not isinstance(body, dict):
            body = _error(None, str(body or f"status {status}"))
        return BatchResult(custom_id, status, body, "errored")
    return _without(custom_id, None, "the result of the batch cannot be read")


def _decode_error(custom_id: str, error: dict[str, Any], response: object) -> BatchResult:
    """An error beside a response is the worse one of the two, which is believed."""
    code = str(error.get("code") or error.get("type") or "") or None
    fields = response if isinstance(response, dict) else {}
    status = read_status(fields.get("status_code"))
    if status is None or status in _SUCCESS:
        status = read_status(code)
    if status is None or status in _SUCCESS:
        status = _SERVER_ERROR
    kind, status = _CODES.get(code or "", ("errored", status))
    message = str(error.get("message") or "the request failed without a reason")
    return BatchResult(custom_id, status, _error(code, message), kind)


def missing_result(custom_id: str, state: BatchState) -> BatchResult:
    if state.failure is not None:
        return BatchResult(custom_id, state.failure.status, state.failure.body, "errored")
    return _without(
        custom_id,
        *_MISSING.get(state.status, (None, "the batch has no result for this request")),
    )


def _without(custom_id: str, code: str | None, message: str) -> BatchResult:
    kind, status = _CODES.get(code or "", ("unknown", UNREADABLE))
    return BatchResult(custom_id, status, _error(code, message), kind)


def _error(code: str | None, message: str) -> JsonObject:
    return {"error": {"message": message, "type": code, "code": code}}


def _interface(endpoint: str) -> BatchInterface:
    return BatchInterface(
        most_requests=50_000,
        most_bytes=200_000_000,
        leaf=LEAF,
        entry=partial(encode_entry, endpoint=endpoint),
        upload=FileUpload(
            leaf=FILES,
            form={"purpose": "batch"},
            file_name=file_name,
            decode=decode_upload,
            creation=partial(encode_creation, endpoint=endpoint),
        ),
        state_leaf=state_leaf,
        results_leaf=None,
        list_query=list_query,
        decode_state=decode_state,
        decode_list=partial(decode_states, decode=decode_state),
        match=match,
        decode_result=decode_result,
        missing_result=missing_result,
    )


CHAT: Final = _interface("/v1/chat/completions")
RESPONSES: Final = _interface("/v1/responses")
