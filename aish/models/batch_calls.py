"""Calls of a provider's batch interface: submissions, questions, and the files of results.

Asked patiently, as what they are about is paid for; what a failed call may have done is in its
error.
"""

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from secrets import token_hex
from typing import TypeVar

import httpx

from aish.config.model import ModelEntry
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import shorten
from aish.models.dialect_choice import wire_of
from aish.models.endpoint_key import EndpointKey, TurnKey
from aish.models.retry import (
    BROKEN,
    AttemptError,
    RetryTiming,
    delay_before,
    judge_status,
    longest_wait,
)
from aish.models.transport import CAP, body_of, in_words, open_client, read_start
from aish.wire.batches.types import (
    UNREADABLE,
    BatchError,
    BatchInterface,
    BatchMark,
    BatchResult,
    BatchState,
    FileUpload,
    ResultsReader,
)
from aish.wire.dialect import load_batches
from aish.wire.json_text import dump

FIRST_GAP, LONGEST_GAP = 0.5, 60.0
SHARE = 200
"""Between two questions whether a batch has ended goes this part of the time it has taken."""
LOOKS = 5
"""How often is asked for what is missing, as it may only be late: results, or a new batch."""
INCOMPLETE = frozenset({"expired", "cancelled", "canceled", "failed"})
"""States of an end after which no more results come."""
NOT_OFFERED = frozenset({404, 405, 501})
"""Statuses of an endpoint that does not have this call of the interface."""
_PATIENCE = 10
"""Times `retry.attempts`, for questions about a batch that is paid for."""
_SUCCESS = range(200, 300)
_SERVER_ERROR = 500
_UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
JSON = {"content-type": "application/json"}
_ABSENT, _CONFLICT = 404, 409
_PIECE = 64 * 1024


@frozen
class Refusal:
    """The answer to a call of the interface that was refused; `kind` is its content type."""

    status: int
    kind: str
    body: bytes


Decoded = TypeVar("Decoded")


class CallError(Exception):
    """A call of the interface failed; `doubtful` says that it may have been carried out."""

    def __init__(self, failure: AttemptError, said: Refusal | Exception, *, doubtful: bool) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.said = said
        self.doubtful = doubtful

    @property
    def cause(self) -> Exception:
        return self if isinstance(self.said, Refusal) else self.said

    @property
    def status(self) -> int | None:
        return self.said.status if isinstance(self.said, Refusal) else None


class DoubtError(BatchError):
    """Requests are perhaps paid for; no other model takes their place, as for a busy endpoint."""


OR_FORCE = "`--resume --retry-failed` asks again; with `--force`, its requests may be paid again"


@frozen
class Content:
    """The content of a call, in pieces that are made each time that it is sent."""

    size: int
    pieces: Callable[[], Iterable[bytes]]
    kind: str = "application/json"


def content_of(data: bytes) -> Content:
    return Content(len(data), lambda: (data,))


_NOTHING = content_of(b"")


async def _stream(pieces: Iterable[bytes]) -> AsyncGenerator[bytes]:  # ruff: ignore[unused-async] - httpx asks for one
    """A body that is made while it is sent."""
    waiting, size = [], 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


class BatchCalls:
    """The calls of one model's interface."""

    def __init__(
        self,
        entry: ModelEntry,
        key: EndpointKey | None,
        headers: Mapping[str, str],
        pace: RetryTiming,
    ) -> None:
        self._entry = entry
        self._key = key
        self._headers = headers
        self._wire = wire_of(entry)
        self._base = httpx.URL(entry.base_url or "")
        self.pace = pace
        self.interface: BatchInterface = load_batches(self._wire)

    async def create(self, submission: Content, mark: BatchMark) -> BatchState:
        """Make a batch of a submission, which is uploaded before where the interface wants that.

        Raises:
            CallError: the provider does not take it.
        """
        content, upload = submission, self.interface.upload
        if upload is not None:
            try:
                form = _form(submission, upload.file_name(mark), upload)
                answer = await self._call("POST", upload.leaf, form)
                made = upload.creation(upload.decode(answer), mark)
            except CallError as error:
                error.doubtful = False  # a file alone is no batch
                raise
            except BatchError as error:
                raise CallError(_broken(error), error, doubtful=False) from None
            content = content_of(dump(made).encode())
        try:
            return self.interface.decode_state(
                await self._call("POST", self.interface.leaf, content)
            )
        except BatchError as error:
            raise CallError(_broken(error), error, doubtful=True) from None

    def may_retry(self, error: CallError, attempt: int) -> bool:
        """Return true if a submission may be sent again after an attempt."""
        advice, policy = error.failure.advice, self._entry.retry
        is_soon = (advice.wait or 0.0) <= longest_wait(policy)
        return advice.retry and is_soon and attempt < policy.attempts

    def delay(self, error: CallError | BatchError, attempt: int) -> float:
        advice = error.failure.advice if isinstance(error, CallError) else BROKEN
        return delay_before(attempt, advice, self._entry.retry, self.pace.chance())

    async def get(
        self,
        leaf: str,
        decode: Callable[[JsonValue], Decoded],
        query: Mapping[str, str] | None = None,
    ) -> Decoded:
        """The answer to a question, asked patiently: what it is about is paid for."""
        for attempt in count(1):
            try:
                return decode(await self._call("GET", leaf, query=query))
            except (CallError, BatchError) as error:
                await self._wait_or_raise(error, attempt, may_appear=query is None)
        raise AssertionError("it counts without end")

    async def state_of(self, id: str) -> BatchState:
        return await self.get(self.interface.state_leaf(id), self.interface.decode_state)

    def gap_since(self, began: float) -> float:
        """The pause before the next question, if a batch has been waited for since then."""
        return min(LONGEST_GAP, FIRST_GAP + (self.pace.clock.monotonic() - began) / SHARE)

    async def until_ended(
        self, id: str, on_held: Callable[[], None], *, is_held: bool = False
    ) -> BatchState:
        """The state of a batch at its end; `on_held` is called if it has not come yet."""
        began = self.pace.clock.monotonic()
        while True:
            if is_held:
                await self.pace.sleep(self.gap_since(began))
            state = await self.state_of(id)
            if state.is_ended:
                return state
            is_held = True
            on_held()

    async def read(
        self, place: str, id: str, reader: ResultsReader
    ) -> AsyncGenerator[list[BatchResult]]:
        """The results in a file; what came before it broke off is not given again."""
        for attempt in count(1):
            reader.begin()
            try:
                async with self._open_results(place, id) as chunks:
                    async for chunk in chunks:
                        yield reader.feed(chunk)  # ruff: ignore[yield-in-context-manager-in-async-generator] - callers close it
                yield reader.end()
            except (CallError, BatchError) as error:
                await self._wait_or_raise(error, attempt)
            else:
                return

    async def _wait_or_raise(
        self, error: CallError | BatchError, attempt: int, *, may_appear: bool = True
    ) -> None:
        is_absent = isinstance(error, CallError) and error.status == _ABSENT
        if may_appear and is_absent and attempt < LOOKS:
            await self.pace.sleep(FIRST_GAP * 2 ** (attempt - 1))  # what is new may appear late
            return
        retries = error.failure.advice.retry if isinstance(error, CallError) else error.retryable
        if not retries or attempt >= _PATIENCE * self._entry.retry.attempts:
            raise error
        await self.pace.sleep(self.delay(error, attempt))

    async def _call(
        self,
        method: str,
        leaf: str,
        content: Content = _NOTHING,
        query: Mapping[str, str] | None = None,
    ) -> JsonValue:
        """The JSON that the interface answers.

        Raises:
            CallError: it answers with an error, or not at all.
            BatchError: the answer is no JSON.
        """
        url = self._url(leaf).copy_merge_params(dict(query or {}))
        async with self._exchange(method, url, content) as response:
            data = bytearray()
            async for chunk in body_of(response):
                data += chunk
                if len(data) > CAP:
                    raise BatchError(f"an answer is larger than {CAP >> 20} MiB", retryable=False)
        try:
            value: JsonValue = json.loads(data)
        except ValueError:
            raise BatchError("an answer about a batch is no JSON") from None
        return value

    @asynccontextmanager
    async def _open_results(self, place: str, id: str) -> AsyncGenerator[httpx.AsyncByteStream]:
        """A file of results: a path below the address, or an address that the provider states.

        One of another origin is not asked for them: the provider itself is.

        Raises:
            CallError: it cannot be read.
        """
        own = self.interface.results_leaf
        url = httpx.URL(place) if "://" in place else self._url(place)
        if own is not None and not self._is_own(url):
            url = self._url(own(id))
        async with self._exchange("GET", url) as response:
            yield body_of(response)

    def _url(self, leaf: str) -> httpx.URL:
        return self._base.copy_with(path=self._wire.path(self._base.path, leaf))

    def _is_own(self, url: httpx.URL) -> bool:
        base = self._base
        return (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: httpx.URL, content: Content = _NOTHING
    ) -> AsyncGenerator[httpx.Response]:
        """A response with a status of success.

        Each has a connection of its own: on one that is kept a request may be sent twice.

        Raises:
            CallError: there is no such response.
        """
        key, timeout = TurnKey(self._key), self._entry.timeout
        read = timeout.turn if content.size else timeout.first_token
        limits = httpx.Timeout(connect=timeout.connect, read=read, write=read, pool=None).as_dict()
        while True:
            request = self._request(method, url, content, await key.headers())
            request.extensions["timeout"] = limits
            client = open_client(self._entry)
            try:
                response = await client.handle_async_request(request)
                status = response.status_code
                if status in _SUCCESS:
                    yield response
                    return
                body = await read_start(response)
            except httpx.HTTPError as error:
                is_doubtful = not isinstance(error, _UNSENT)
                raise CallError(in_words(error, self._entry), error, doubtful=is_doubtful) from None
            finally:
                await client.aclose()
            now = self.pace.clock.now()
            advice = judge_status(status, response.headers, body.decode("utf-8", "replace"), now)
            failure = AttemptError(f"HTTP {status} at `{url.path}`", advice)
            if not await key.replace(failure, None):
                refusal = Refusal(status, response.headers.get("content-type", ""), body)
                raise CallError(failure, refusal, doubtful=status >= _SERVER_ERROR)

    def _request(
        self, method: str, url: httpx.URL, content: Content, headers: Mapping[str, str] | None
    ) -> httpx.Request:
        sent = {**(headers or self._headers), "content-type": content.kind}
        if not content.size:
            return httpx.Request(method, url, headers=sent)
        sent["content-length"] = str(content.size)
        pieces, size = _stream(content.pieces()), {"body_size": content.size}
        return httpx.Request(method, url, headers=sent, content=pieces, extensions=size)

    def without_batches(self, error: CallError) -> CallError:
        """The same error, with a word where the endpoint seems to have no batches."""
        if error.status not in NOT_OFFERED or not isinstance(error.said, Refusal):
            return error
        where = f"no batches at {self._url(self.interface.leaf)}"
        message = f"{where}; `--delivery single` sends each request alone: "
        message += shorten(error.said.body.decode("utf-8", "replace"), 200)
        body = dump({"type": "error", "error": {"type": "no_batches", "message": message}})
        said = Refusal(error.said.status, JSON["content-type"], body.encode())
        return CallError(error.failure, said, doubtful=error.doubtful)


def _form(file: Content, name: str, upload: FileUpload) -> Content:
    """A file as `multipart/form-data`."""
    boundary = token_hex(16)
    lines = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in upload.form.items()
    )
    head = (
        f'{lines}--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"'
        "\r\nContent-Type: application/jsonl\r\n\r\n"
    ).encode()
    end = f"\r\n--{boundary}--\r\n".encode()

    def pieces() -> Iterator[bytes]:
        yield head
        yield from file.pieces()
        yield end

    size = len(head) + file.size + len(end)
    return Content(size, pieces, f"multipart/form-data; boundary={boundary}")


def _broken(error: BatchError) -> AttemptError:
    return AttemptError(error.message, BROKEN)


def refusal_of(error: Exception) -> httpx.Response | None:
    """The response to each request of a batch that failed; it has been retried here already."""
    final = {"x-should-retry": "false"}
    if isinstance(error, CallError) and isinstance(error.said, Refusal):
        said = error.said
        headers = final | {"content-type": said.kind}
        return httpx.Response(said.status, headers=headers, content=said.body)
    if isinstance(error, BatchError):
        body = {"type": "error", "error": {"type": "api_error", "message": error.message}}
        status = _CONFLICT if isinstance(error, DoubtError) else UNREADABLE
        return httpx.Response(status, headers=JSON | final, content=dump(body).encode())
    return None
