"""The blocking client of the control API of a run: the shared operations over `http.client`.

The operations are coroutines that never suspend, because what they await blocks. So they need
neither an event loop nor a thread, and Ctrl-C interrupts a call anywhere.
"""

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

from aish.control.event_stream import AsyncEventStream
from aish.control.http_exchange import (
    CONNECT_SECONDS,
    ControlConnection,
    Deadline,
    Opened,
    OutgoingRequest,
    RequestSender,
    headers_of,
)
from aish.control.operations import Operations
from aish.control.run_endpoint import RunEndpoint
from aish.core.json import JsonObject

P = ParamSpec("P")
T = TypeVar("T")

_PORTS: Final = {"http": 80, "https": 443}
_MOST_READ: Final = 1 << 16
# A server closes a connection that is idle for longer than this; one must not use it just then.
_KEPT_SECONDS: Final = 5.0


class _Connection(HTTPConnection):
    """A connection to the address of a run."""

    def __init__(self, endpoint: RunEndpoint, tls: ssl.SSLContext | None, seconds: float) -> None:
        url = urlsplit(endpoint.url)
        self.default_port = _PORTS[url.scheme]
        super().__init__(url.netloc, timeout=seconds)
        self.idle_since = 0.0
        self.base = url.path
        self._seconds = seconds
        self._path = endpoint.path
        self._tls = tls

    def connect(self) -> None:
        """Connect by the socket file, or to the port."""
        if self._path is None:
            super().connect()
            if self._tls is not None:
                # A certificate that this machine does not trust is an error, as for any client.
                self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # With a time-out of Python a full queue of the listener would be an error at once.
            seconds, rest = divmod(self._seconds, 1)
            patience = struct.pack("ll", int(seconds), int(rest * 1e6))  # `struct timeval`
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            self.sock.connect(self._path)
        except BaseException:
            self.close()
            raise

    @property
    def is_usable(self) -> bool:
        """True if the connection is open; a server that sends unasked ends it."""
        if time.monotonic() - self.idle_since > _KEPT_SECONDS:
            return False
        waiting = select.poll()
        waiting.register(self.sock.fileno(), select.POLLIN)
        return not waiting.poll(0)


@dataclass(eq=False)
class BlockingExchange(RequestSender):
    """Sends and receives with `http.client`; several threads may use it."""

    _idle: dict[RunEndpoint, list[_Connection]] = field(default_factory=dict, init=False)
    _busy: set[_Connection] = field(default_factory=set, init=False)

    async def close_answer(self, opened: Opened) -> None:
        """Close an answer, and keep its connection if another request can use it."""
        connection, response = opened.handle
        is_read = response.isclosed() or response.length == 0
        response.close()
        self._busy.discard(connection)
        if is_read and not response.will_close:
            connection.idle_since = time.monotonic()
            self._idle.setdefault(opened.endpoint, []).append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        while self._busy:
            self._busy.pop().close()
        while self._idle:
            _, connections = self._idle.popitem()
            for connection in connections:
                connection.close()

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # ruff: ignore[blocking-sleep-in-async-function] - all here blocks

    async def _open(self, endpoint: RunEndpoint, request: OutgoingRequest) -> Opened:
        connection = self._connection(endpoint, min(request.seconds, CONNECT_SECONDS))
        self._busy.add(connection)
        try:
            with _translate_errors(endpoint):
                connection.sock.settimeout(request.seconds)
                path, headers = f"{connection.base}{request.path}", headers_of(endpoint, request)
                connection.request(request.method, path, request.content, headers)
                response = connection.getresponse()
        except BaseException:
            self._busy.discard(connection)
            connection.close()
            raise
        return Opened(response.status, endpoint, (connection, response))

    async def _read(self, opened: Opened) -> bytes:
        _, response = opened.handle
        assert isinstance(response, HTTPResponse)
        with _translate_errors(opened.endpoint):
            data = response.read1(_MOST_READ)
            if not data and response.length:
                raise IncompleteRead(data, response.length)
        return data

    def _connection(self, endpoint: RunEndpoint, seconds: float) -> _Connection:
        with suppress(IndexError):  # of what is idle, another thread may have taken the last one
            while not (idle := self._idle.get(endpoint, []).pop()).is_usable:
                idle.close()
            return idle
        tls = self._tls_context() if endpoint.is_tls else None
        connection = _Connection(endpoint, tls, seconds)
        try:
            connection.connect()
        except OSError as error:
            reason = error.strerror if endpoint.path is not None else None
            raise endpoint.not_listening(reason or str(error) or type(error).__name__) from error
        return connection


@contextmanager
def _translate_errors(endpoint: RunEndpoint) -> Generator[None]:
    """Translate failures of a connection into errors of the control API."""
    try:
        yield
    except TimeoutError as error:
        raise endpoint.silent() from error
    except (OSError, HTTPException) as error:
        raise endpoint.loss_error(str(error) or type(error).__name__) from error


def run(call: Coroutine[Any, Any, T]) -> T:
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a call over an exchange that blocks has waited for an event loop")


def _make_blocking(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[Client, P], T]":
    @wraps(operation)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(operation(Operations(self._exchange), *args, **kwargs))

    return method


class Client(ControlConnection):
    """Reads and answers a live run over its control API, and waits for events in it.

    `address` is `unix:PATH`, `HOST:PORT` or a URL; a port needs the `token`. Without an address the
    client connects to the only run that listens, in this folder or anywhere. Reads, and requests
    whose connection was refused, are repeated up to `max_retries` times, after `retry_delay`
    seconds each; nothing else is sent twice. `tls` replaces the certificates that the system
    trusts.

    No connection is opened before the first call. Several threads may use one client. Use it in a
    `with`, or `close` it.

    Raises:
        UsageError: the address is not one.
    """

    _exchange_type = BlockingExchange

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        run(self._exchange.close())

    status = _make_blocking(Operations.status)
    events = _make_blocking(Operations.events)
    approvals = _make_blocking(Operations.approvals)
    approval = _make_blocking(Operations.approval)
    answer = _make_blocking(Operations.answer)
    approve = _make_blocking(Operations.approve)
    deny = _make_blocking(Operations.deny)
    session = _make_blocking(Operations.session)
    performance = _make_blocking(Operations.performance)
    values = _make_blocking(Operations.values)
    value = _make_blocking(Operations.value)
    change_value = _make_blocking(Operations.change_value)
    ask = _make_blocking(Operations.ask)
    respond = _make_blocking(Operations.respond)
    command = _make_blocking(Operations.command)
    stop = _make_blocking(Operations.stop)
    cancel = _make_blocking(Operations.cancel)
    wait_for_server = _make_blocking(Operations.wait_for_server)
    wait_for_event = _make_blocking(Operations.wait_for_event)
    wait_for_approval = _make_blocking(Operations.wait_for_approval)
    wait_for_value = _make_blocking(Operations.wait_for_value)
    wait_for_end = _make_blocking(Operations.wait_for_end)

    # As older programs call them.
    get_status = _make_blocking(Operations.get_status)
    get_project = _make_blocking(Operations.get_project)
    get_session = _make_blocking(Operations.get_session)
    get_performance = _make_blocking(Operations.get_performance)
    get_mma_status = _make_blocking(Operations.get_mma_status)
    get_value = _make_blocking(Operations.get_value)
    get_text_value = _make_blocking(Operations.get_text_value)
    get_events = _make_blocking(Operations.get_events)
    get_indicator_state = _make_blocking(Operations.get_indicator_state)
    get_node_status = _make_blocking(Operations.get_node_status)
    set_value = _make_blocking(Operations.set_value)
    click = _make_blocking(Operations.click)
    select_tab = _make_blocking(Operations.select_tab)
    select_list_item = _make_blocking(Operations.select_list_item)
    push_event = _make_blocking(Operations.push_event)
    post_gui = _make_blocking(Operations.post_gui)
    reset_session = _make_blocking(Operations.reset_session)
    request_confirmation = _make_blocking(Operations.request_confirmation)

    def follow(self, after: int | None = None, *, timeout: float | None = None) -> "EventStream":
        """Yield the events after a number as they happen, by default from the oldest kept one.

        Ends with `run.finished`. With a `timeout`, iterating longer is a `WaitTimeoutError`.
        """
        deadline = Deadline(timeout, "the stream of events did not end")
        return EventStream(AsyncEventStream(self._exchange, after, deadline))


class EventStream:
    """The events of a run, one by one, until its `run.finished`; use it in a `with`.

    No event is missed after the beginning of the block. `after` is the number of the last event.
    """

    def __init__(self, events: AsyncEventStream) -> None:
        self._events = events

    def __enter__(self) -> Self:
        run(self._events.__aenter__())
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> JsonObject:
        try:
            return run(self._events.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def after(self) -> int | None:
        """The number of the last event."""
        return self._events.after

    def close(self) -> None:
        """Close its connection."""
        run(self._events.close())
