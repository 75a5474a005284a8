"""The batch interfaces of vendors, as servers on 127.0.0.1 that can misbehave on request.

    with BatchServer("messages", lambda body: answer_in_words("messages", "hello")) as server:
        ... base_url=server.base_url ...
    assert server.bodies == [...]

`answer` gets the body of each request once its batch ends, and returns the body of the answer, a
`Refusal`, or an `Outcome`. A batch ends at the poll number `polls`, or at `release()` if `holds` is
set. What else may go wrong is set by `Quirks`, before or while the server runs.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from model_endpoint import CUT, RESET, ModelEndpoint, Part, Recorded, Reply, cut_up, json_reply

from aish.wire.batches.types import BatchInterface, BatchRequest, plain_body
from aish.wire.json_text import dump

Api = Literal["messages", "chat", "responses"]
CREATED = 1_700_000_000
DAY = 86_400
ENDPOINTS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
SINGLES = {**ENDPOINTS, "messages": "/v1/messages"}
LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
MOST = {"messages": (100_000, 256_000_000), "files": (50_000, 200_000_000)}


class Outcome(Enum):
    """What a request may end with beside an answer and an error."""

    EXPIRED = "expired"
    CANCELED = "canceled"
    UNKNOWN = "a kind of result that nobody knows"
    NULL = "a result that is null"
    MISSING = "no line at all"
    GARBAGE = "a line that is no JSON"


@dataclass(frozen=True)
class Refusal:
    """An error of a single request."""

    status: int = 400
    kind: str = "invalid_request_error"
    message: str = "no"


Answer = dict[str, Any] | Refusal | Outcome


@dataclass
class Quirks:
    """Deviations. Lists are used up from the front, one entry for each request of their kind.

    `refused` has answers to submissions (429), `refused_polls` and `refused_results` those to the
    other requests. `lost` counts submissions whose answer is lost, although a batch is made.
    `cut` has bytes after which a download breaks off, `short` lines after which one ends in order.
    `results_origin` is another origin of `results_url`. `failure` is the error of a file that is
    refused as a whole. `late_list` counts questions for the list to which it answers with none.
    `mixes` has results begin with lines of other batches, and some of its own twice. `clock` is by
    how many seconds the clock is ahead.
    """

    newline: str = "\n"
    blank_last_line: bool = False
    no_last_newline: bool = False
    reverses: bool = False
    mixes: bool = False
    piece: int = 0
    cut: list[int] = field(default_factory=list)
    short: list[int] = field(default_factory=list)
    refused: list[Reply] = field(default_factory=list)
    refused_polls: list[Reply] = field(default_factory=list)
    refused_results: list[Reply] = field(default_factory=list)
    lost: int = 0
    results_origin: str | None = None
    no_results_url: bool = False
    running_status: str | None = None
    ended_status: str | None = None
    capitals: bool = False
    no_metadata: bool = False
    late_files: int = 0
    late_list: int = 0
    clock: int = 0
    empty_pages: bool = False
    null_data: bool = False
    odd_last_id: bool = False
    page: int | None = None
    failure: dict[str, Any] | None = None
    keeps_error_bare: bool = False


@dataclass
class Batch:
    """A batch: its requests in their order, as `(custom_id, body)`."""

    id: str
    rows: list[tuple[str, dict[str, Any]]]
    created: int
    file: str | None = None
    name: str | None = None
    endpoint: str | None = None
    metadata: dict[str, str] | None = None
    polls: int = 0
    ended: bool = False
    canceling: bool = False
    failure: dict[str, Any] | None = None
    answers: list[tuple[str, Answer]] = field(default_factory=list)


class BatchServer(ModelEndpoint):
    """The server of one vendor; single requests are answered too, and counted apart."""

    def __init__(
        self,
        api: Api,
        answer: Callable[[dict[str, Any]], Answer] | None = None,
        *,
        polls: int = 1,
        holds: bool = False,
        key: str | None = None,
        quirks: Quirks | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(port=port)
        self.api = api
        self.quirks = quirks or Quirks()
        self.holds = holds
        self.batches: list[Batch] = []
        self.singles: list[dict[str, Any]] = []
        self._answer_one = answer or (lambda _: answer_in_words(api, "hello"))
        self._polls = polls
        self._key = key
        self._files: dict[str, tuple[str, bytes]] = {}

    @property
    def base_url(self) -> str:
        """What a model entry names: with the version only where the wire wants that."""
        return f"{self.origin}/v1" if self.api == "chat" else self.origin

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The body of each request that was submitted, as often as it was."""
        return [body for batch in self.batches for _, body in batch.rows]

    @property
    def most_often(self) -> int:
        """How often the request was submitted that was submitted most."""
        counted = Counter(json.dumps(body, sort_keys=True) for body in self.bodies)
        return max(counted.values(), default=0)

    def release(self) -> None:
        """Let the batches end, those of later too."""
        self.holds = False

    def wait_batches(self, count: int) -> None:
        """Block until so many batches were made."""
        self.wait_until(lambda: len(self.batches) >= count)

    def wait_polls(self, count: int) -> None:
        """Block until batches were asked for so often, over all."""
        self.wait_until(lambda: sum(batch.polls for batch in self.batches) >= count)

    # -----------------------------------------------------------------------------------------
    # Routes

    def _choose(self, request: Recorded) -> Reply:
        try:
            reply = self._route(request)
        except Exception as failure:
            self.failures.append(failure)
            raise
        with self._changed:
            self._changed.notify_all()
        return reply

    def _route(self, request: Recorded) -> Reply:
        url = urlsplit(request.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if self._key is not None and not self._accepts(request):
            return self._error(401, "authentication_error", "invalid key")
        if request.method == "POST" and url.path == SINGLES[self.api]:
            return self._single(request.json)
        root = "/v1/messages/batches" if self.api == "messages" else "/v1/batches"
        if self.api != "messages" and url.path.startswith("/v1/files"):
            return self._file(request, [unquote(part) for part in url.path.split("/")[3:]])
        if url.path == root:
            if request.method == "POST":
                return self._create(request)
            return self._list(query)
        if url.path.startswith(f"{root}/"):
            batch_id, _, verb = url.path[len(root) + 1 :].partition("/")
            found = [batch for batch in self.batches if batch.id == unquote(batch_id)]
            if found:
                return self._batch(found[0], request.method, verb)
        return self._error(404, "not_found_error", f"nothing at {url.path}")

    def _accepts(self, request: Recorded) -> bool:
        sent = (request.headers.get("x-api-key"), request.headers.get("authorization"))
        return self._key == sent[0] or f"Bearer {self._key}" == sent[1]

    def _single(self, body: dict[str, Any]) -> Reply:
        self.singles.append(body)
        answer = self._answer_one(body)
        if isinstance(answer, dict):
            return json_reply(200, answer)
        refusal = answer if isinstance(answer, Refusal) else Refusal(500, "api_error")
        return self._error(refusal.status, refusal.kind, refusal.message)

    def _error(self, status: int, kind: str, message: str) -> Reply:
        return json_reply(status, error_body(self.api, kind, message))

    # -----------------------------------------------------------------------------------------
    # Submissions

    def _create(self, request: Recorded) -> Reply:
        if self.quirks.refused:
            return self.quirks.refused.pop(0)
        document = request.json
        if self.api == "messages":
            lines = [(row.get("custom_id"), row.get("params")) for row in document["requests"]]
            problem = self._problem(lines, len(request.body), "messages")
            if problem:
                return self._error(400, "invalid_request_error", problem)
            batch = Batch(f"msgbatch_{len(self.batches):04}", lines, self._now())
        else:
            name, content = self._files.get(document.get("input_file_id"), ("", b""))
            if not name or document.get("completion_window") != "24h":
                return self._error(400, "invalid_request_error", "no such file, or window")
            batch = Batch(
                f"batch_{len(self.batches):04}",
                [],
                self._now(),
                file=document["input_file_id"],
                name=name,
                endpoint=document["endpoint"],
                metadata=document.get("metadata"),
            )
            self._validate(batch, content)
        self.batches.append(batch)
        if self.quirks.lost:
            self.quirks.lost -= 1
            return Reply(parts=(RESET,), framing="raw")
        return json_reply(200, self.document(batch))

    def _validate(self, batch: Batch, content: bytes) -> None:
        rows = [json.loads(line) for line in content.splitlines() if line.strip()]
        lines = [(row.get("custom_id"), row.get("body")) for row in rows]
        batch.failure = self.quirks.failure
        problem = self._problem(lines, len(content), "files")
        if any((row.get("method"), row.get("url")) != ("POST", batch.endpoint) for row in rows):
            problem = "the URL of a request does not match the endpoint of the batch"
        if batch.endpoint != ENDPOINTS[self.api]:
            problem = f"no batches of {batch.endpoint}"
        if problem:
            batch.failure = {"code": "invalid_request", "message": problem, "line": None}
        batch.rows = lines

    @staticmethod
    def _problem(rows: list[tuple[Any, Any]], size: int, kind: str) -> str | None:
        most, bytes_most = MOST[kind]
        if not rows or len(rows) > most or size > bytes_most:
            return f"{len(rows)} requests of {size} bytes"
        if any(not isinstance(name, str) or not LEGAL_ID.fullmatch(name) for name, _ in rows):
            return "custom_id should match '^[a-zA-Z0-9_-]{1,64}$'"
        if len({name for name, _ in rows}) < len(rows):
            return "custom_id must be unique"
        if any(not isinstance(body, dict) or "stream" in body for _, body in rows):
            return "stream is not supported in batches"
        return None

    def _now(self) -> int:
        return int(datetime.now(UTC).timestamp()) + self.quirks.clock

    def _file(self, request: Recorded, parts: Sequence[str]) -> Reply:
        if request.method == "POST" and not parts:
            if self.quirks.refused:
                return self.quirks.refused.pop(0)
            fields = form_fields(request.headers["content-type"], request.body)
            if fields.get("purpose", ("", b""))[1] != b"batch" or "file" not in fields:
                return self._error(400, "invalid_request_error", "purpose and file are needed")
            name = f"file-{len(self._files):04}"
            self._files[name] = fields["file"]
            return json_reply(200, self._file_document(name))
        if len(parts) == 2 and parts[1] == "content":
            kind, _, batch_id = parts[0].partition(":")
            for batch in self.batches:
                if batch.id == batch_id and batch.ended:
                    return self._download(self._lines(batch, kind))
        if len(parts) == 1 and parts[0] in self._files:
            return json_reply(200, self._file_document(parts[0]))
        return self._error(404, "not_found_error", "no such file")

    def _file_document(self, name: str) -> dict[str, Any]:
        file_name, content = self._files[name]
        return {
            "id": name,
            "object": "file",
            "bytes": len(content),
            "created_at": self._now(),
            "filename": file_name,
            "purpose": "batch",
            "status": "processed",
        }

    # -----------------------------------------------------------------------------------------
    # States

    def _batch(self, batch: Batch, method: str, verb: str) -> Reply:
        if method == "POST" and verb == "cancel":
            batch.canceling = True
            return json_reply(200, self.document(batch))
        if method == "GET" and verb == "results" and batch.ended:
            return self._download(self._lines(batch, "output"))
        if method != "GET" or verb:
            return self._error(404, "not_found_error", "no results yet")
        batch.polls += 1
        if self.quirks.refused_polls:
            return self.quirks.refused_polls.pop(0)
        due = not self.holds and batch.polls >= self._polls
        if not batch.ended and (due or batch.canceling or batch.failure):
            self._end(batch)
        return json_reply(200, self.document(batch))

    def _end(self, batch: Batch) -> None:
        batch.ended = True
        if batch.failure:
            return
        batch.answers = [
            (name, Outcome.CANCELED if batch.canceling else self._answer_one(body))
            for name, body in batch.rows
        ]
        if self.quirks.reverses:
            batch.answers.reverse()

    def document(self, batch: Batch) -> dict[str, Any]:
        """A batch as the vendor describes it."""
        made = self._message_batch if self.api == "messages" else self._file_batch
        return made(batch, Counter(_count_of(answer) for _, answer in batch.answers))

    def _message_batch(self, batch: Batch, counts: Counter[str]) -> dict[str, Any]:
        status = "ended" if batch.ended else "canceling" if batch.canceling else "in_progress"
        origin = self.quirks.results_origin or self.origin
        url = f"{origin}/v1/messages/batches/{batch.id}/results"
        has_url = batch.ended and not self.quirks.no_results_url
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": self._status(status, is_ended=batch.ended),
            "request_counts": {
                "processing": 0 if batch.ended else len(batch.rows),
                **{name: counts[name] for name in ("succeeded", "errored", "canceled", "expired")},
            },
            "created_at": _stamp(batch.created),
            "expires_at": _stamp(batch.created + DAY),
            "ended_at": _stamp(batch.created + 60) if batch.ended else None,
            "archived_at": None,
            "cancel_initiated_at": _stamp(batch.created + 30) if batch.canceling else None,
            "results_url": url if has_url else None,
        }

    def _file_batch(self, batch: Batch, counts: Counter[str]) -> dict[str, Any]:
        status = "in_progress" if batch.polls else "validating"
        if batch.ended:
            expired = counts["expired"] > 0
            status = "expired" if expired else "cancelled" if batch.canceling else "completed"
            status = "failed" if batch.failure else status
        elif batch.canceling:
            status = "cancelling"
        done = batch.ended and not batch.failure
        if done and self.quirks.late_files:
            self.quirks.late_files -= 1
            done = False
        failed = counts.total() - counts["succeeded"]
        at = {f"{status}_at": batch.created + 60} if batch.ended else {}
        shown = self._status(status, is_ended=batch.ended)
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "errors": {"object": "list", "data": [batch.failure]}
            if batch.ended and batch.failure
            else None,
            "input_file_id": batch.file,
            "completion_window": "24h",
            "status": shown,
            "output_file_id": f"output:{batch.id}" if done and counts["succeeded"] else None,
            "error_file_id": f"error:{batch.id}" if done and failed else None,
            "created_at": batch.created,
            "in_progress_at": batch.created + 1,
            "expires_at": batch.created + DAY,
            **at,
            "request_counts": {
                "total": 0 if status == "validating" else len(batch.rows),
                "completed": counts["succeeded"],
                "failed": failed,
            },
            "metadata": None if self.quirks.no_metadata else batch.metadata,
        }

    def _status(self, status: str, *, is_ended: bool) -> str:
        odd = self.quirks.ended_status if is_ended else self.quirks.running_status
        return odd or (status.upper() if self.quirks.capitals else status)

    def _list(self, query: dict[str, str]) -> Reply:
        newest = self.batches[::-1]
        if self.quirks.late_list:
            self.quirks.late_list -= 1
            newest = []
        after = query.get("after_id") or query.get("after")
        at = next((n + 1 for n, batch in enumerate(newest) if batch.id == after), 0)
        limit = self.quirks.page or int(query.get("limit", "20"))
        page = newest[at : at + limit]
        has_more = len(newest) > at + limit
        if self.quirks.empty_pages and not page:
            has_more = True
        last = page[-1].id if page else None
        document: dict[str, Any] = {
            "data": None if self.quirks.null_data else [self.document(batch) for batch in page],
            "has_more": has_more or (self.quirks.empty_pages and bool(page)),
            "first_id": page[0].id if page else None,
            "last_id": page[0].id if page and self.quirks.odd_last_id else last,
        }
        if self.api != "messages":
            document["object"] = "list"
        return json_reply(200, document)

    # -----------------------------------------------------------------------------------------
    # Results

    def _lines(self, batch: Batch, kind: str) -> list[bytes]:
        if self.api == "messages":
            rows = [message_line(name, answer, self.quirks) for name, answer in batch.answers]
        else:
            rows = [
                file_line(name, answer)
                for name, answer in batch.answers
                if (_count_of(answer) == "succeeded") == (kind == "output")
            ]
        rows = [row for row in rows if row]
        if self.quirks.mixes:
            others = [row.replace(b'"custom_id": "', b'"custom_id": "other-') for row in rows[:2]]
            rows = [*others, *rows, *rows[:3]]
        return rows

    def _download(self, rows: list[bytes]) -> Reply:
        quirks = self.quirks
        if quirks.refused_results:
            return quirks.refused_results.pop(0)
        if quirks.short:
            rows = rows[: quirks.short.pop(0)]
        newline = quirks.newline.encode()
        body = newline.join(rows) + (b"" if quirks.no_last_newline else newline)
        if quirks.blank_last_line:
            body += newline
        cut = quirks.cut.pop(0) if quirks.cut else None
        parts: list[Part] = [*_pieces(body[:cut] if cut is not None else body, quirks.piece)]
        if cut is not None:
            parts.append(CUT)
        kind = {"content-type": "application/x-jsonl"}
        return Reply(parts=parts, headers=kind)


def _pieces(body: bytes, size: int) -> Iterator[bytes]:
    yield from cut_up(body, *range(size, len(body), size)) if size else (body,)


def _stamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _count_of(answer: Answer) -> str:
    if isinstance(answer, dict):
        return "succeeded"
    return answer.value if answer in {Outcome.EXPIRED, Outcome.CANCELED} else "errored"


def form_fields(content_type: str, body: bytes) -> dict[str, tuple[str, bytes]]:
    """The fields of a form as `multipart/form-data`: name of the file, content."""
    boundary = content_type.partition("boundary=")[2].strip('"').encode()
    fields = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        names = dict(re.findall(r'(name|filename)="([^"]*)"', head.decode()))
        fields[names["name"]] = (names.get("filename", ""), content)
    return fields


# ---------------------------------------------------------------------------------------------
# Lines and bodies


def error_body(api: Api, kind: str, message: str) -> dict[str, Any]:
    """The body of an error."""
    if api == "messages":
        error = {"type": kind, "message": message}
        return {"type": "error", "error": error, "request_id": "req_0"}
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}


def message_line(custom_id: str, answer: Answer, quirks: Quirks | None = None) -> bytes:
    """A line of results of Anthropic; empty for none."""
    result: Any = None
    if isinstance(answer, dict):
        result = {"type": "succeeded", "message": answer}
    elif isinstance(answer, Refusal):
        error = error_body("messages", answer.kind, answer.message)
        bare = quirks is not None and quirks.keeps_error_bare
        result = {"type": "errored", "error": error["error"] if bare else error}
    elif answer in {Outcome.EXPIRED, Outcome.CANCELED}:
        result = {"type": answer.value}
    elif answer is Outcome.UNKNOWN:
        result = {"type": "postponed", "until": "tomorrow"}
    return _line(answer, {"custom_id": custom_id, "result": result})


def file_line(custom_id: str, answer: Answer) -> bytes:
    """A line of results or of errors of OpenAI; empty for none."""
    response: Any = None
    error: Any = None
    if isinstance(answer, dict):
        response = {"status_code": 200, "request_id": "req_0", "body": answer}
    elif isinstance(answer, Refusal):
        body = error_body("chat", answer.kind, answer.message)
        response = {"status_code": answer.status, "request_id": "req_0", "body": body}
    elif answer is Outcome.EXPIRED:
        error = {"code": "batch_expired", "message": "This request could not be executed in time."}
    elif answer is Outcome.CANCELED:
        error = {"code": "batch_cancelled", "message": "This batch was cancelled."}
    elif answer is Outcome.UNKNOWN:
        response = {"status": "postponed"}
    row = {"id": f"batch_req_{custom_id}", "custom_id": custom_id}
    return _line(answer, {**row, "response": response, "error": error})


def _line(answer: Answer, row: dict[str, Any]) -> bytes:
    if answer is Outcome.MISSING:
        return b""
    return b'{"custom_id": "x", ' if answer is Outcome.GARBAGE else json.dumps(row).encode()


def request_in_batch(custom_id: str, body: dict[str, Any]) -> BatchRequest:
    """A request as it is submitted, by the body that the endpoint would get alone."""
    return BatchRequest(custom_id, plain_body(dump(body).encode("utf-8", "replace")))


def submission(interface: BatchInterface, requests: Iterable[BatchRequest]) -> bytes:
    """All that is submitted for requests, in one piece."""
    entries = [interface.entry(request) for request in requests]
    return interface.opening + interface.separator.join(entries) + interface.ending


def answer_in_words(api: Api, text: str, *, prompt: int = 7, completion: int = 3) -> dict[str, Any]:
    """The whole body of an answer in words."""
    return _answer(api, text, None, prompt, completion)


def answer_with_call(
    api: Api, name: str, arguments: dict[str, Any], *, call_id: str = "call_1"
) -> dict[str, Any]:
    """The whole body of an answer that asks for a tool."""
    return _answer(api, None, (call_id, name, arguments), 7, 3)


def _answer(
    api: Api,
    text: str | None,
    call: tuple[str, str, dict[str, Any]] | None,
    prompt: int,
    completion: int,
) -> dict[str, Any]:
    return {"messages": _message, "chat": _completion, "responses": _response}[api](
        text, call, prompt, completion
    )


Call = tuple[str, str, dict[str, Any]] | None


def _message(text: str | None, call: Call, prompt: int, completion: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if text is not None:
        content.append({"type": "text", "text": text, "citations": None})
    if call is not None:
        content.append({"type": "tool_use", "id": call[0], "name": call[1], "input": call[2]})
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "stop_reason": "tool_use" if call else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt,
            "output_tokens": completion,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "service_tier": "batch",
        },
    }


def _completion(text: str | None, call: Call, prompt: int, completion: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if call is not None:
        function = {"name": call[1], "arguments": json.dumps(call[2])}
        message["tool_calls"] = [{"id": call[0], "type": "function", "function": function}]
    finish = "tool_calls" if call else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": CREATED,
        "model": "scripted",
        "service_tier": "default",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    }


def _response(text: str | None, call: Call, prompt: int, completion: int) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if text is not None:
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append(
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    if call is not None:
        arguments = json.dumps(call[2])
        function = {"call_id": call[0], "name": call[1], "arguments": arguments}
        output.append({"type": "function_call", "id": "fc_1", "status": "completed", **function})
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "model": "scripted",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": None,
        "top_p": None,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        },
    }
