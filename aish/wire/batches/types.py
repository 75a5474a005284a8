"""Requests, states and results of batches, and their names: the same for all interfaces.

Pure: the transport sends, waits and remembers. What a document says is read with suspicion: an
unknown status is "in progress" until an end is stated, and what is no result is never a success.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2s
from typing import Any, Final, Literal
from urllib.parse import quote

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern
from aish.wire.errors import StreamError
from aish.wire.json_text import dump, parse_object

Kind = Literal["succeeded", "errored", "canceled", "expired", "unknown"]
Likeness = Literal["yes", "maybe", "no"]

OK: Final = 200
CANCELED: Final = 499
"""As a request whose client has left: nobody wants it sent again."""
UNREADABLE: Final = 502
EXPIRED: Final = 504
"""As an endpoint that took too long: to be sent again, within `retry`."""
UNKNOWN: Final = 501
"""A kind of result that is none of ours: the same request would get it again."""

LONGEST_CUSTOM_ID: Final = 64
CLOCK_SKEW: Final = 86_400.0
"""Seconds by which the clock of a vendor may be behind that of the machine."""
_CUSTOM_ID: Final = lazy_pattern(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL: Final = lazy_pattern(r"[^A-Za-z0-9-]+")
# Leaves room for two numbers of nine digits in a `custom_id`.
_LONGEST_RUN: Final = LONGEST_CUSTOM_ID - 2 * 10
_KEPT: Final = 16
_LONGEST_ID: Final = 512
# Each is an error in a batch, where no answer is streamed.
_STREAMING: Final = frozenset({"stream", "stream_options"})
_STREAMING_HEAD: Final = re.compile(
    rb'(\{"model":"(?:[^"\\]|\\.)*"),"stream":true(?:,"stream_options":\{"include_usage":true\})?'
)
_LONGEST_TIME: Final = 1e11


class BatchError(StreamError):
    """A document, or a file of results, that cannot be read; or a request that no batch takes."""

    usual_code = "batch_error"


@frozen
class BatchMark:
    """The mark of a batch: the run that sends it, and its number in that run."""

    run_id: str
    ordinal: int

    @property
    def name(self) -> str:
        """Legal and short enough for names that both vendors take."""
        run = _ILLEGAL.sub("-", self.run_id)
        if len(run) > _LONGEST_RUN or run != self.run_id:
            digest = blake2s(self.run_id.encode("utf-8", "replace"), digest_size=8)
            run = f"{run[:_KEPT]}-{digest.hexdigest()}"
        return f"{run}_{self.ordinal}"

    def custom_id(self, number: int) -> str:
        """The name of a request of this batch."""
        return f"{self.name}_{number}"

    def owns(self, custom_id: str) -> bool:
        """Return true if that is the name of a request of this batch."""
        name, _, number = custom_id.rpartition("_")
        return name == self.name and number.isascii() and number.isdigit()


def plain_body(body: bytes) -> bytes:
    """The body that an endpoint would get alone, on one line and without what only streams have."""
    head = _STREAMING_HEAD.match(body)
    rest = b"" if head is None else body[head.end() :]
    if head is not None and b'"stream_options":' not in rest:
        return head[1] + rest  # as encoders of ours begin: nothing has to be parsed
    fields = {name: value for name, value in json.loads(body).items() if name not in _STREAMING}
    return dump(fields).encode("utf-8", "replace")


@frozen
class BatchRequest:
    """A request: its name in the batch, and its `plain_body`."""

    custom_id: str
    body: bytes

    @property
    def quoted_id(self) -> bytes:
        """The name as JSON.

        Raises:
            BatchError: no vendor takes it.
        """
        if not _CUSTOM_ID.fullmatch(self.custom_id):
            message = (
                f"`custom_id` of a request must match `[A-Za-z0-9_-]{{1,64}}`: {self.custom_id!r}"
            )
            raise BatchError(message, retryable=False)
        return b'"%s"' % self.custom_id.encode()


@frozen
class BatchFailure:
    """The answer to each request of a batch that the vendor refused as a whole."""

    status: int
    body: JsonObject


@frozen
class BatchState:
    """A batch as its vendor describes it.

    `results` are to be fetched once it has ended: paths below the address of the API, as `leaf` of
    `Wire.path`, or addresses, if the vendor states one. An address of another origin than the API's
    must never be sent the key; `results_leaf` of the interface has the same results.
    `counts` has `total` where the vendor counts at all. Times are seconds since the epoch.
    """

    id: str
    status: str
    is_ended: bool
    created_at: float | None
    ends_at: float | None
    counts: Mapping[str, int]
    results: tuple[str, ...]
    metadata: Mapping[str, str]
    failure: BatchFailure | None = None


@frozen
class BatchResult:
    """The result of a request, as its endpoint would have answered: a status and a body."""

    custom_id: str
    status: int
    body: JsonObject | None
    kind: Kind


@frozen
class FileUpload:
    """Upload of the entries of a batch, before it is made.

    They go to `leaf` as the file `file` of a form with the fields of `form`. `decode` gives the id
    of the file, `creation` the body that makes a batch of it.
    """

    leaf: str
    form: Mapping[str, str]
    file_name: Callable[[BatchMark], str]
    decode: Callable[[JsonValue], str]
    creation: Callable[[str, BatchMark], JsonObject]


@frozen
class BatchInterface:
    """A vendor's interface. Leaves are for `Wire.path`.

    A submission is `opening`, entries with `separator` between them, and `ending`; at most
    `most_requests` entries and `most_bytes` bytes. It is the body of the request to `leaf` that
    makes a batch, unless it is uploaded before. A batch is at `state_leaf`, its results at
    `results_leaf` where that depends on its id alone.

    `list_query` has the parameters for a page of the list at `leaf`, which begins with the newest
    batches; `decode_list` gives the batches of a page, and the cursor of the next one, if there is
    one. `match` compares a batch of the list with one of so many requests that was sent since then,
    and whose id was lost; `maybe` is settled by the names in its results (`BatchMark.owns`).
    `missing_result` is what a request is answered that a batch which has ended has no result for.
    Each decoder raises `BatchError`; that of results gives nothing for a blank line.
    """

    most_requests: int
    most_bytes: int
    leaf: str
    entry: Callable[[BatchRequest], bytes]
    state_leaf: Callable[[str], str]
    results_leaf: Callable[[str], str] | None
    list_query: Callable[[str | None], Mapping[str, str]]
    decode_state: Callable[[JsonValue], BatchState]
    decode_list: Callable[[JsonValue], tuple[tuple[BatchState, ...], str | None]]
    match: Callable[[BatchState, BatchMark, int, float], Likeness]
    decode_result: Callable[[bytes], BatchResult | None]
    missing_result: Callable[[str, BatchState], BatchResult]
    opening: bytes = b""
    separator: bytes = b""
    ending: bytes = b""
    upload: FileUpload | None = None


class ResultsReader:
    """Reads files of results, in pieces of any size, for requests with these names.

    Each request gets one result: the first one. Lines that cannot be read are left out, so that
    `missing` says what the files did not have; names that nobody asked for too, and `foreign`
    counts them.
    """

    MOST_LINE: Final = 64 * 1024 * 1024

    def __init__(self, interface: BatchInterface, custom_ids: Iterable[str]) -> None:
        self._interface = interface
        self.missing = set(custom_ids)
        self.foreign = 0
        self._waiting: list[bytes] = []
        self._size = 0

    def begin(self) -> None:
        """Read another file, or the same one once more."""
        self._waiting, self._size = [], 0

    def feed(self, chunk: bytes) -> list[BatchResult]:
        """The results that a piece completes.

        Raises:
            BatchError: a line is too long.
        """
        *lines, rest = _split(chunk)
        if lines:
            lines[0] = b"".join((*self._waiting, lines[0]))
            self.begin()
        if rest:
            self._waiting.append(rest)
            self._size += len(rest)
            if self._size > self.MOST_LINE:
                limit = f"{self.MOST_LINE >> 20} MiB"
                raise BatchError(f"a line of the results exceeds {limit}", retryable=False)
        return [result for line in lines if (result := self._read(line)) is not None]

    def end(self) -> list[BatchResult]:
        """The result that the end of the file completes.

        Raises:
            BatchError: the file ends within a line.
        """
        line = b"".join(self._waiting)
        self.begin()
        try:
            result = self._interface.decode_result(line)
        except BatchError:
            raise BatchError("the results end in the middle of a line") from None
        found = None if result is None else self._take(result)
        return [] if found is None else [found]

    def _read(self, line: bytes) -> BatchResult | None:
        try:
            result = self._interface.decode_result(line)
        except BatchError:
            return None
        return None if result is None else self._take(result)

    def _take(self, result: BatchResult) -> BatchResult | None:
        if result.custom_id not in self.missing:
            self.foreign += 1
            return None
        self.missing.discard(result.custom_id)
        return result


def _split(chunk: bytes) -> list[bytes]:
    """The lines of a piece, and what follows the last line end. Lines end at CR, LF or both."""
    lines = chunk.splitlines()
    return [*lines, b""] if not lines or chunk.endswith((b"\n", b"\r")) else lines


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object on a line; nothing for a blank one.

    Raises:
        BatchError: it is no object.
    """
    text = line.decode("utf-8", "replace").strip("\ufeff \t\r\n")
    if not text:
        return None
    row = parse_object(text)
    if row is None:
        raise BatchError("a line of the results is no JSON object")
    return row


def read_object(document: JsonValue, what: str) -> Mapping[str, Any]:
    """A document that has to be an object.

    Raises:
        BatchError: it is something else.
    """
    if not isinstance(document, Mapping):
        raise BatchError(f"{what} is no JSON object")
    return document


def read_id(fields: Mapping[str, Any], what: str) -> str:
    """The id of a document.

    Raises:
        BatchError: there is none that a path may have.
    """
    value = fields.get("id")
    if not isinstance(value, str) or not is_id(value):
        raise BatchError(f"{what} has no `id`")
    return value


def read_custom_id(row: Mapping[str, Any]) -> str:
    """The name of the request of a result.

    Raises:
        BatchError: there is none.
    """
    custom_id = row.get("custom_id")
    if not isinstance(custom_id, str):
        raise BatchError("a line of the results has no `custom_id`")
    return custom_id


def is_id(value: object) -> bool:
    """Return true if that may be part of a path."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= _LONGEST_ID
        and value.isprintable()
        and bool(value.strip(". "))
    )


def path_segment(value: str) -> str:
    """An id as part of a path."""
    return quote(value, safe="")


def read_counts(value: object) -> dict[str, int]:
    """The counts among the members of an object."""
    fields = value if isinstance(value, Mapping) else {}
    return {str(name): count for name, count in fields.items() if type(count) is int and count >= 0}


def read_time(value: object) -> float | None:
    """Seconds since the epoch, of a number or of a time in the form of RFC 3339."""
    if isinstance(value, str):
        try:
            date = datetime.fromisoformat(value.strip())
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) and 0 < value < _LONGEST_TIME else None
    return None


def read_status(value: object) -> int | None:
    """The status of a response, which may be a text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == len("200"):
        value = int(value)
    is_status = type(value) is int and value in range(100, 600)
    return value if is_status else None  # type: ignore[return-value]  # it is a number


def may_be(state: BatchState, requests: int, since: float) -> bool:
    """Compare a batch by its time and its size, as far as the vendor states them."""
    total = state.counts.get("total") or requests
    created_at = since if state.created_at is None else state.created_at
    return total == requests and created_at >= since - CLOCK_SKEW


def decode_states(
    document: JsonValue, decode: Callable[[JsonValue], BatchState]
) -> tuple[tuple[BatchState, ...], str | None]:
    """The batches of a page that can be read, and the cursor of the next page.

    That is the id of the last row, whatever else the list says. An empty page is the last one, also
    where the list claims to have more.

    Raises:
        BatchError: it is no list.
    """
    fields = read_object(document, "the list of batches")
    data = fields.get("data")
    rows = [row for row in data if isinstance(row, Mapping)] if isinstance(data, list) else []
    states = []
    for row in rows:
        try:
            states.append(decode(row))
        except BatchError:
            continue
    last = rows[-1].get("id") if rows and fields.get("has_more") is True else None
    return tuple(states), last if isinstance(last, str) and is_id(last) else None
