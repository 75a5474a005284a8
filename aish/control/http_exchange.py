"""HTTP exchange with a run: requests, their answers and retries.

`RequestSender` decides about retries and parses answers. Two classes send and receive the bytes:
`AsyncExchange` waits in an event loop, `BlockingExchange` blocks.
"""

import os
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from aish.control.errors import (
    BY_STATUS,
    ApiError,
    ConnectionLostError,
    ControlError,
    NotListeningError,
    UnexpectedAnswerError,
    WaitTimeoutError,
)
from aish.control.run_endpoint import (
    EndedRun,
    Locate,
    RunEndpoint,
    endpoint_at,
    endpoint_of_folder,
    only_endpoint,
    read_ended_run,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text, strict_json
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.journal.reader import value_of

T = TypeVar("T")

SECONDS: Final = 30.0
"""How long the answer to a request may take."""
CONNECT_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 60.0
"""How long a wait takes at most, unless it is told otherwise."""
PREFIX: Final = "/api/v1"
MAX_RETRIES: Final = 5
RETRY_DELAY: Final = 0.2
OK: Final = 200
# What a proxy, or a server that is full, says before the request has reached anybody.
UNAVAILABLE: Final = frozenset({502, 503})
NO_DOCUMENT: Final = "http"
"""The code of an error that is not a document of this API."""
_LONGEST_BODY: Final = 256 << 20
_LONGEST_SAID: Final = 4_000


@frozen
class OutgoingRequest:
    """A request; `seconds` is the longest time without receiving anything."""

    method: str
    path: str
    body: JsonObject | None = None
    headers: Mapping[str, str] | None = None
    seconds: float = SECONDS

    @property
    def content(self) -> bytes | None:
        return None if self.body is None else json_text(self.body).encode()


@frozen
class ControlReply:
    """A complete HTTP answer."""

    status: int
    body: bytes


@frozen
class Opened:
    """An answer whose body is still to be read; the exchange reads it from `handle`."""

    status: int
    endpoint: RunEndpoint
    handle: Any


class Deadline:
    """The deadline of a wait; without seconds there is none."""

    def __init__(self, seconds: float | None, what: str) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._seconds = seconds
        self._what = what

    @property
    def left(self) -> float:
        return float("inf") if self._end is None else self._end - time.monotonic()

    def require(self) -> None:
        """Check that the deadline has not passed.

        Raises:
            WaitTimeoutError: it has.
        """
        if self.left <= 0:
            raise WaitTimeoutError(f"{self._what} within {self._seconds:g} s")

    def limit_wait(self, seconds: float) -> float:
        """Return the smaller of these seconds and the time left."""
        return max(0.001, min(seconds, self.left))


@dataclass(eq=False)
class RequestSender(ABC):
    """Sends requests to the address of the run, which is looked up again after a failure.

    `ended_run` returns the events after a number of a run that has ended; `None` if it has not
    ended or this is unknown.
    """

    locate: Locate
    max_retries: int = 0
    retry_delay: float = 0
    tls: ssl.SSLContext | None = None
    ended_run: Callable[[int], EndedRun | None] = lambda _: None
    _endpoint: RunEndpoint | None = field(default=None, init=False)

    async def get(self, path: str) -> JsonObject:
        """Read the value at a path."""
        return await self.call("GET", path)

    async def call(
        self, method: str, path: str, body: JsonObject | None = None, seconds: float = SECONDS
    ) -> JsonObject:
        """Send a request, and return the object in its answer.

        Repeats it if the connection was refused; a read also if the connection was lost or the
        server is busy.
        """
        request = OutgoingRequest(method, path, body, None, seconds)
        is_read = method == "GET"
        failures = (NotListeningError, ConnectionLostError) if is_read else (NotListeningError,)
        tries = 0
        while True:
            is_last = tries >= self.max_retries
            try:
                reply = await self.send(request)
                if is_last or not (is_read and reply.status in UNAVAILABLE):
                    return json_object(reply)
            except failures:
                if is_last:
                    raise
            tries += 1
            await self.pause()

    async def send(self, request: OutgoingRequest) -> ControlReply:
        """Send a request once, and return its complete answer."""
        return await self.rest(await self.open(request))

    async def rest(self, opened: Opened) -> ControlReply:
        body = bytearray()
        try:
            while data := await self.read(opened):
                body += data
                if len(body) > _LONGEST_BODY:
                    raise answer_error("it is too long")
        finally:
            await self.close_answer(opened)
        return ControlReply(opened.status, bytes(body))

    async def open(self, request: OutgoingRequest) -> Opened:
        """Send a request once, and return the head of its answer.

        Raises:
            NotListeningError: no run listens there.
            ConnectionLostError: no answer came.
        """
        endpoint = self._endpoint or self.locate()
        self._endpoint = None
        opened = await self._open(endpoint, request)
        self._endpoint = endpoint
        return opened

    async def pause(self, deadline: Deadline | None = None) -> None:
        delay = self.retry_delay
        await self._sleep(delay if deadline is None else deadline.limit_wait(delay))

    async def read(self, opened: Opened) -> bytes:
        """Read the next bytes of an answer; empty at its end.

        Raises:
            ConnectionLostError: it is incomplete.
        """
        try:
            return await self._read(opened)
        except ControlError:
            self._endpoint = None
            raise

    @abstractmethod
    async def close_answer(self, opened: Opened) -> None:
        """Close an answer, read to its end or not."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def _open(self, endpoint: RunEndpoint, request: OutgoingRequest) -> Opened: ...

    @abstractmethod
    async def _read(self, opened: Opened) -> bytes: ...

    def _tls_context(self) -> ssl.SSLContext:
        """Return the caller's context, or a default one, which is slow to make and kept."""
        self.tls = self.tls or ssl.create_default_context()
        return self.tls


class ControlConnection:
    """Base of both clients: the address of the run, and an exchange with it."""

    _exchange: RequestSender
    _exchange_type: type[RequestSender]

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        max_retries: int = MAX_RETRIES,
        retry_delay: float = RETRY_DELAY,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        locate = partial(only_endpoint, token) if address is None else endpoint_at(address, token)
        self._exchange = self._exchange_type(locate, max_retries, retry_delay, tls)

    @classmethod
    def of_run(
        cls,
        folder: str | os.PathLike[str],
        token: str | None = None,
        max_retries: int = MAX_RETRIES,
        retry_delay: float = RETRY_DELAY,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """Return a client for the run in this folder, at its current address.

        Address and generated token are read from the run's entry in the runtime folder, again after
        the run was resumed. If the file of the run names tokens, pass one. The events of a finished
        run are read from its journal.
        """
        path = Path(folder).absolute()
        locate, ended = endpoint_of_folder(path, token), partial(read_ended_run, path)
        exchange = cls._exchange_type(locate, max_retries, retry_delay, tls, ended)
        connections = cls.__new__(cls)
        connections._exchange = exchange  # ruff: ignore[private-member-access] - its own
        return connections


def headers_of(endpoint: RunEndpoint, request: OutgoingRequest) -> dict[str, str]:
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    if endpoint.token is not None:
        headers["Authorization"] = f"Bearer {endpoint.token}"
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    return {**headers, **(request.headers or {})}


def json_object(reply: ControlReply) -> JsonObject:
    """Return the JSON object in an answer.

    Raises:
        ApiError: the request was refused.
        UnexpectedAnswerError: it is not one of this API.
    """
    if reply.status != OK:
        raise api_error(reply)
    value = json_value(reply.body)
    if not isinstance(value, Mapping):
        raise answer_error("it is not an object")
    return value


def json_value(body: bytes) -> JsonValue:
    """Return the JSON value of a body; raises `UnexpectedAnswerError`."""
    try:
        return strict_json(body.decode())
    except (ValueError, RecursionError) as error:
        raise answer_error("it is not valid JSON") from error


def decode(kind: type[T], value: JsonValue) -> T:
    """Convert a value of the API to a Python value; raises `UnexpectedAnswerError`."""
    try:
        return value_of(kind, value)
    except ValueError as error:
        raise answer_error(str(error)) from error


def answer_error(why: str) -> UnexpectedAnswerError:
    message = f"the answer is not one of the control API: {shorten(for_line(why), _LONGEST_SAID)}"
    return UnexpectedAnswerError(message, hint="check the address")


def api_error(reply: ControlReply) -> ApiError:
    """Return the error in an answer; that of a proxy has no document of ours."""
    kind = BY_STATUS.get(reply.status, ApiError)
    try:
        document = strict_json(reply.body.decode())
    except (ValueError, RecursionError):
        document = None
    error = document.get("error") if isinstance(document, Mapping) else None
    if not isinstance(error, Mapping):
        return kind(reply.status, NO_DOCUMENT, f"the server answered with status {reply.status}")
    code, message, hint = (error.get(key) for key in ("code", "message", "hint"))
    text = shorten(for_line(str(message)), _LONGEST_SAID)
    hint_text = shorten(for_line(hint), _LONGEST_SAID) if isinstance(hint, str) else None
    return kind(reply.status, for_line(str(code)), text, hint_text)
