"""Message batches of Anthropic: one request creates them, one file has their results."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from aish.core.json import JsonObject, JsonValue
from aish.wire.batches.types import (
    CANCELED,
    EXPIRED,
    OK,
    UNKNOWN,
    UNREADABLE,
    BatchInterface,
    BatchMark,
    BatchRequest,
    BatchResult,
    BatchState,
    Kind,
    Likeness,
    decode_states,
    may_be,
    parse_line,
    path_segment,
    read_counts,
    read_custom_id,
    read_id,
    read_object,
    read_time,
)

LEAF: Final = "/messages/batches"
_ENDED: Final = "ended"
# As the vendor answers single requests.
_STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_SERVER_ERROR: Final = 500
# Results without an answer: kind, status, and what an endpoint would say.
_WITHOUT: Final[Mapping[str, tuple[Kind, int, str]]] = {
    "canceled": ("canceled", CANCELED, "the batch was canceled before this request was sent"),
    "expired": ("expired", EXPIRED, "the batch expired before this request was sent"),
}
_UNREADABLE: Final[tuple[Kind, int, str]] = (
    *("unknown", UNREADABLE),
    "the result of the batch cannot be read",
)


def encode_entry(request: BatchRequest) -> bytes:
    return b'{"custom_id":%s,"params":%s}' % (request.quoted_id, request.body)


def state_leaf(batch_id: str) -> str:
    return f"{LEAF}/{path_segment(batch_id)}"


def results_leaf(batch_id: str) -> str:
    return f"{state_leaf(batch_id)}/results"


def decode_state(document: JsonValue) -> BatchState:
    fields = read_object(document, "the batch")
    batch_id = read_id(fields, "the batch")
    status = str(fields.get("processing_status") or "unknown").strip().lower()
    is_ended = status == _ENDED or read_time(fields.get("ended_at")) is not None
    url = fields.get("results_url")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        url = results_leaf(batch_id)
    counts = read_counts(fields.get("request_counts"))
    if total := sum(counts.values()):
        counts["total"] = total
    return BatchState(
        id=batch_id,
        status=status,
        is_ended=is_ended,
        created_at=read_time(fields.get("created_at")),
        ends_at=read_time(fields.get("expires_at")),
        counts=counts,
        results=(url,) if is_ended else (),
        metadata={},
    )


def list_query(cursor: str | None) -> Mapping[str, str]:
    return {"limit": "1000"} | ({"after_id": cursor} if cursor else {})


def match(state: BatchState, _: BatchMark, requests: int, since: float) -> Likeness:
    """Compare by time and number: there is no metadata."""
    return "maybe" if may_be(state, requests, since) else "no"


def decode_result(line: bytes) -> BatchResult | None:
    row = parse_line(line)
    if row is None:
        return None
    result = row.get("result")
    return _decode(read_custom_id(row), result if isinstance(result, dict) else {})


def missing_result(custom_id: str, _: BatchState) -> BatchResult:
    return _without(custom_id, "api_error", _UNREADABLE)


def _decode(custom_id: str, result: dict[str, Any]) -> BatchResult:
    kind = result.get("type")
    message, error = result.get("message"), result.get("error")
    if kind == "succeeded" and isinstance(message, dict):
        return BatchResult(custom_id, OK, message, "succeeded")
    if kind == "errored" and isinstance(error, dict):
        # Some state the error itself, without the response around it.
        is_whole = isinstance(error.get("error"), dict)
        body: dict[str, Any] = error if is_whole else {"type": "error", "error": error}
        status = _STATUSES.get(str(body["error"].get("type")), _SERVER_ERROR)
        return BatchResult(custom_id, status, body, "errored")
    if isinstance(kind, str) and kind in _WITHOUT:
        return _without(custom_id, kind, _WITHOUT[kind])
    if isinstance(kind, str) and kind not in {"succeeded", "errored"}:
        words = "the batch has a kind of result that is not known"
        return _without(custom_id, kind, ("unknown", UNKNOWN, words))
    return _without(custom_id, "api_error", _UNREADABLE)


def _without(custom_id: str, word: str, what: tuple[Kind, int, str]) -> BatchResult:
    kind, status, words = what
    body: JsonObject = {"type": "error", "error": {"type": word, "message": words}}
    return BatchResult(custom_id, status, body, kind)


INTERFACE: Final = BatchInterface(
    most_requests=100_000,
    most_bytes=256_000_000,
    leaf=LEAF,
    opening=b'{"requests":[',
    separator=b",",
    ending=b"]}",
    entry=encode_entry,
    state_leaf=state_leaf,
    results_leaf=results_leaf,
    list_query=list_query,
    decode_state=decode_state,
    decode_list=partial(decode_states, decode=decode_state),
    match=match,
    decode_result=decode_result,
    missing_result=missing_result,
)
