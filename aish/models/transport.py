"""The only sockets to models (L1, L7, L10, X5, X6): one POST, its status, its bytes.

What the bytes mean is `wire`'s business, whether to try again is `client`'s. An httpx transport is
driven directly: no cookies, no redirects, no environment, nothing between it and the bytes.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import httpx

from aish.config.pipeline import ModelEntry
from aish.models.failure import AttemptError, hint_for, not_connected, too_late
from aish.models.retry import BROKEN, REFUSED, judge_status
from aish.models.watch import Watch
from aish.vocab.deltas import Delta

PER_CLIENT = 32
KEEP_ALIVE_SECONDS = 60.0
TRAILER_SECONDS = 1.0
RESPONSE_CAP = 64 * 1024 * 1024
_ERROR_BODY_CAP = 64 * 1024
_SHOWN = 400
_OK = 200
_REDIRECT = 300

MakeClient = Callable[[ModelEntry], httpx.AsyncBaseTransport]


@cache
def _tls(*, verify: bool) -> ssl.SSLContext:
    """One context per process: it costs tens of milliseconds."""
    return httpx.create_ssl_context(verify=verify, trust_env=False)


def open_client(entry: ModelEntry) -> httpx.AsyncBaseTransport:
    """A pool of at most `PER_CLIENT` connections; proxies only where the entry names one."""
    is_https = httpx.URL(entry.base_url or "").scheme == "https"
    return httpx.AsyncHTTPTransport(
        # For plain http no certificates are loaded: nothing could ever be verified with them.
        verify=_tls(verify=is_https and entry.verify_tls),
        trust_env=False,
        proxy=httpx.Proxy(entry.proxy) if entry.proxy else None,
        limits=httpx.Limits(
            max_connections=PER_CLIENT,
            max_keepalive_connections=PER_CLIENT,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
        ),
    )


@dataclass(slots=True)
class _Client:
    """One pool and how many of its connections are in use."""

    transport: httpx.AsyncBaseTransport
    busy: int = 0


class Reader(Protocol):
    """Makes deltas of the bytes of an answer: `wire.chat_decode.ChatDecoder`."""

    @property
    def progress(self) -> int:
        """Changes when the answer grows."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more can come."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the answer is over, so that a broken connection is no loss."""
        ...

    def feed(self, chunk: bytes) -> list[Delta]:
        """Take some bytes."""
        ...

    def close(self) -> list[Delta]:
        """Take the end of the body."""
        ...


class Exchange:
    """One request and its answer; `aclose` ends it whatever happened."""

    __slots__ = ("_client", "_entry", "_progress", "_response", "_size", "_watch")

    def __init__(self, client: _Client, entry: ModelEntry, turn_ends: float) -> None:
        self._client = client
        self._entry = entry
        self._watch = Watch(entry.timeout, turn_ends)
        self._response: httpx.Response | None = None
        self._size = 0
        self._progress = 0
        client.busy += 1

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send the request and wait for the head of the answer.

        Raises:
            AttemptError: there is no connection, or no answer in time.
        """
        self._watch.waiting = True
        try:
            self._response = await self._client.transport.handle_async_request(request)
        except (asyncio.CancelledError, httpx.HTTPError) as error:
            raise _translated(error, self._watch, self._entry) from None
        finally:
            self._watch.waiting = False
        return self._response

    async def deltas(self, reader: Reader) -> AsyncIterator[list[Delta]]:
        """What the reader makes of the body, as it comes off the network.

        Raises:
            AttemptError: the stream broke off, a deadline passed, or the body is too large.
            StreamError: the reader cannot make sense of it.
        """
        watch = self._watch
        watch.waiting = True
        try:
            async for chunk in self._body():
                if batch := self._taken(chunk, reader):
                    watch.waiting = False
                    yield batch
                    watch.waiting = True
        except (asyncio.CancelledError, httpx.HTTPError) as error:
            failure = _translated(error, watch, self._entry)
            # An endpoint that has said everything may end as it likes.
            if not (reader.complete and isinstance(failure, AttemptError)):
                raise failure from None
        finally:
            watch.waiting = False
        if last := reader.close():
            yield last

    def _taken(self, chunk: bytes, reader: Reader) -> list[Delta]:
        self._size += len(chunk)
        if self._size > RESPONSE_CAP:
            raise AttemptError("the answer is larger than 64 MiB", REFUSED)
        batch = reader.feed(chunk)
        if reader.progress != self._progress:
            self._progress = reader.progress
            self._watch.progressed()
        if reader.done:
            self._watch.end_within(TRAILER_SECONDS)
        return batch

    def _body(self) -> httpx.AsyncByteStream:
        """As the transport gives it: no decoding, and none of the layers of `aiter_raw`."""
        stream = self._response.stream if self._response is not None else None
        if not isinstance(stream, httpx.AsyncByteStream):
            raise TypeError("there is no asynchronous body to read")
        return stream

    async def beginning(self, limit: int) -> bytes:
        """The first bytes of the body, as far as they come in time."""
        body = bytearray()
        self._watch.waiting = True
        try:
            async for chunk in self._body():
                body += chunk
                if len(body) >= limit:
                    break
        except (asyncio.CancelledError, httpx.HTTPError) as error:
            failure = _translated(error, self._watch, self._entry)
            if not isinstance(failure, AttemptError):
                raise failure from None
        finally:
            self._watch.waiting = False
        return bytes(body[:limit])

    async def aclose(self) -> None:
        """Give the connection back, or close it if the body was not read to its end."""
        self._client.busy -= 1
        self._watch.close()
        if self._response is not None:
            await self._response.aclose()


class Transport:
    """All connections to one endpoint, spread over clients of 32 that are opened as needed.

    One big httpx pool costs three times the CPU at 200 streams.
    """

    def __init__(
        self,
        entry: ModelEntry,
        headers: Mapping[str, str],
        *,
        mask: Callable[[str], str],
        now: Callable[[], float],
        make_client: MakeClient = open_client,
    ) -> None:
        self._entry = entry
        base = httpx.URL(entry.base_url or "")
        self._url = base.copy_with(path=f"{base.path.rstrip('/')}/chat/completions")
        self._headers = httpx.Headers(dict(headers))
        self._mask = mask
        self._now = now
        self._make_client = make_client
        self._clients: list[_Client] = []
        timeout = entry.timeout
        # Reading is bounded by the watch: httpx's own read time-out starts anew at each ping.
        self._limits = httpx.Timeout(
            connect=timeout.connect, read=None, write=timeout.first_token, pool=None
        ).as_dict()

    async def aclose(self) -> None:
        """Close every connection."""
        clients, self._clients = self._clients, []
        for client in clients:
            await client.transport.aclose()

    def exchange(self, turn_ends: float) -> Exchange:
        """Room for one request, which must be done at `turn_ends` of the loop's time."""
        return Exchange(self._free_client(), self._entry, turn_ends)

    async def post(self, exchange: Exchange, body: bytes) -> None:
        """Send one request and see that it is answered with success.

        Raises:
            AttemptError: no connection, no answer in time, or a status of 300 or more.
        """
        request = httpx.Request(
            "POST",
            self._url,
            headers=self._headers,
            content=body,
            extensions={"timeout": self._limits},
        )
        response = await exchange.send(request)
        status = response.status_code
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        compressed = encoding not in {"", "identity"}
        if status >= _REDIRECT or status < _OK:
            raw = b"(compressed body)" if compressed else await exchange.beginning(_ERROR_BODY_CAP)
            text = raw.decode("utf-8", "replace")
            advice = judge_status(status, response.headers, text, self._now())
            shown = self._mask(text).strip()[:_SHOWN] or response.reason_phrase
            raise AttemptError(f"HTTP {status}: {shown}", advice, hint_for(status, self._entry))
        if compressed:
            said = f"the answer is compressed ({encoding[:20]}) although that was not asked for"
            raise AttemptError(said, REFUSED)

    def _free_client(self) -> _Client:
        for client in self._clients:
            if client.busy < PER_CLIENT:
                return client
        client = _Client(self._make_client(self._entry))
        self._clients.append(client)
        return client


def _translated(
    error: BaseException, watch: Watch, entry: ModelEntry
) -> AttemptError | asyncio.CancelledError:
    """The failure in words; a cancellation from outside stays what it is."""
    if watch.expired is not None:
        return too_late(watch.expired, entry) if watch.claims() else asyncio.CancelledError()
    return error if isinstance(error, asyncio.CancelledError) else _in_words(error, entry)


def _in_words(error: BaseException, entry: ModelEntry) -> AttemptError:
    why = str(error) or type(error).__name__
    match error:
        case httpx.ConnectTimeout():
            return not_connected(f"none within {entry.timeout.connect:g} s", entry)
        case httpx.ConnectError():
            return not_connected(why, entry)
        case httpx.ProxyError():
            hint = f"check `models.{entry.alias}.proxy`"
            return AttemptError(f"the proxy refused: {why}", BROKEN, hint)
        case httpx.UnsupportedProtocol() | httpx.LocalProtocolError():
            return AttemptError(f"the request cannot be sent: {why}", REFUSED)
        case _:
            return AttemptError(f"the connection broke: {why}", BROKEN)
