"""One HTTP connection: uvicorn's, with what it lacks (H16, H19, X11).

Framing that two readers could understand differently is refused before it is parsed; a request has
to arrive whole within a time, and an answer has to be read. A connection that is refused is read to
its end for a moment, so that the client sees the answer and not a reset.
"""

import asyncio
import logging
import re
from collections.abc import Callable

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from aish.core.json import json_text
from aish.net.listen.access import Call, Limits
from aish.net.listen.routes import JSON_TYPE, ConnectionState, HttpError, error_document

_END_OF_HEAD = re.compile(rb"\n\r?\n")
_VERSION = re.compile(rb" HTTP/1\.[01]\r")
_MOST_DRAINED = 1 << 20
_LINGER_SECONDS = 2.0
# What uvicorn would say of clients; what goes wrong in a handler is reported by the guards.
_SILENT = logging.getLogger("aish.net.listen")
_SILENT.setLevel(logging.CRITICAL + 1)
_SILENT.propagate = False


class Connections:
    """All connections of a server, and what they share."""

    def __init__(
        self,
        config: Config,
        limits: Limits,
        log: Callable[[Call], None],
        report: Callable[[Exception], None],
    ) -> None:
        self.config = config
        self.limits = limits
        self.log = log
        self.report = report
        self.state = ServerState()
        self.refused: set[HttpConnection] = set()

    @property
    def served(self) -> "list[HttpConnection]":
        """Those that were not refused."""
        return [one for one in self.state.connections if isinstance(one, HttpConnection)]

    def make_room(self) -> bool:
        """Whether there may be one more; closes the one that deserves its place least.

        That is one without a credential, and without a request that is being answered, for the
        longest time. A connection that answers a request is not closed.
        """
        served = self.served
        if len(served) < self.limits.connections:
            return True
        waiting = [one for one in served if not one.is_answering]
        if not waiting:
            return False
        min(waiting, key=lambda one: (one.peer_state.trusted, one.since)).close_now()
        return True


class HttpConnection(H11Protocol):
    """A connection; with `refusal`, all that it hears is that."""

    def __init__(
        self, shared: Connections, peer_state: ConnectionState, refusal: HttpError | None = None
    ) -> None:
        super().__init__(shared.config, shared.state, {"connection": peer_state})
        self.peer_state = peer_state
        self.since = self.loop.time()
        self.logger = _SILENT
        self.access_log = False
        self.conn: h11.Connection = _CheckedFraming(self, shared.limits.head)
        self.framing_problem: HttpError | None = None
        self._shared = shared
        self._limits = shared.limits
        self._refusal = refusal
        self._is_lingering = False
        self._received = 0
        self._method = b""
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None

    @property
    def is_answering(self) -> bool:
        """Whether a whole request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        is_whole = self._deadline is None and not self.transport.is_closing()
        return is_whole and cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin; the time to receive a request runs."""
        super().connection_made(transport)
        self.peer_state.abort = transport.abort
        if self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self.expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, by either side."""
        super().connection_lost(exc)
        self._shared.refused.discard(self)
        self._unset_keepalive_if_required()
        self._stop_deadline()
        self._stop_write_deadline()
        if self._ending is not None:
            self._ending.cancel()
        self.peer_state.gone.set()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, or let it go where the connection was refused."""
        if self._is_lingering:
            self._received += len(data)
            if self._received > _MOST_DRAINED:
                self.transport.abort()
            return
        try:
            super().data_received(data)
        except Exception as error:  # ruff: ignore[blind-except] - asyncio would write it to stderr
            self._shared.report(error)
            self.transport.abort()

    def pause_writing(self) -> None:
        """The client reads more slowly than is written."""
        super().pause_writing()
        self._stop_write_deadline()
        self._write_deadline = self.loop.call_later(self._limits.write, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._stop_write_deadline()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.since = self.loop.time()
        self._method = b""
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed."""
        self._refuse(self.framing_problem or HttpError(400, "bad_request", msg.rstrip(".")))

    def expect_request(self) -> None:
        """Let the time run that a request has to arrive, unless it does already."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.receive, self._on_deadline)

    def on_request(self, method: bytes) -> None:
        """The head of a request is there."""
        self._method = method
        self._received = 0

    def on_data(self, size: int) -> None:
        """A part of its body is there."""
        self._received += size
        # The answer was given before the body was read: an end of it has to be in sight.
        if (
            self.conn.our_state in {h11.DONE, h11.MUST_CLOSE}
            and self._received > self._limits.body + _MOST_DRAINED
        ):
            self.transport.abort()

    def on_whole_request(self) -> None:
        """All of it is there."""
        self._stop_deadline()

    def drain(self) -> None:
        """Close after the answer that is being given, or now."""
        if self.is_answering:
            self.cycle.keep_alive = False
        else:
            self.close_now()

    def close_now(self) -> None:
        """Close without a word; what was written is still sent."""
        self._stop_deadline()
        self.connections.discard(self)
        self.transport.close()
        self._abort_soon()

    def _on_deadline(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.close_now()  # it has asked for nothing
            return
        seconds = f"{self._limits.receive:g}"
        message = f"the request did not arrive within {seconds} seconds"
        self._refuse(HttpError(408, "timeout", message))

    def _refuse(self, error: HttpError) -> None:
        """Answer with an error if that is still possible, and close."""
        self._stop_deadline()
        self._unset_keepalive_if_required()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started:
                self.transport.abort()
                return
            # What waits for the rest of the request ends, and its answer is not sent.
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._write_error(error)
            self._shared.log(Call("", "", "", self.peer_state.peer, error.status, error.code))
        self._linger()

    def _write_error(self, error: HttpError) -> None:
        body = json_text(error_document(error)).encode()
        headers = [("content-type", JSON_TYPE), ("content-length", str(len(body)))]
        headers += [("connection", "close"), *error.headers.items()]
        events: list[h11.Event] = [
            h11.Response(
                status_code=error.status, headers=headers, reason=STATUS_PHRASES[error.status]
            )
        ]
        if self._method != b"HEAD":
            events.append(h11.Data(data=body))
        events.append(h11.EndOfMessage())
        for event in events:
            self.transport.write(self.conn.send(event) or b"")

    def _linger(self) -> None:
        """Read and forget for a moment: a socket closed with unread data loses what was written."""
        self.connections.discard(self)
        if len(self._shared.refused) >= self._limits.connections:
            self.transport.close()
            self.transport.abort()
            return
        self._shared.refused.add(self)
        self._is_lingering = True
        self._received = 0
        self.flow.resume_reading()
        self._abort_soon()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _abort_soon(self) -> None:
        if self._ending is None:
            self._ending = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


class _CheckedFraming(h11.Connection):
    """The parser, which tells its connection how far a request has come."""

    def __init__(self, connection: HttpConnection, most_head: int) -> None:
        super().__init__(h11.SERVER, most_head)
        self._connection = connection
        self._most_head = most_head

    def next_event(self) -> "type[h11.NEED_DATA | h11.PAUSED] | h11.Event":
        """The next part of a request.

        Raises:
            h11.RemoteProtocolError: it is no request, or one that can be understood in two ways.
        """
        if self.their_state is h11.IDLE:
            received, _ = self.trailing_data
            if received:
                self._connection.expect_request()
            problem = _problem_of(received, self._most_head)
            if problem is not None:
                self._connection.framing_problem = problem
                raise h11.RemoteProtocolError(problem.message)
        event = super().next_event()
        match event:
            case h11.Request():
                self._connection.on_request(event.method)
            case h11.Data():
                self._connection.on_data(len(event.data))
            case h11.EndOfMessage():
                self._connection.on_whole_request()
        return event


def _problem_of(received: bytes, most: int) -> HttpError | None:
    """What is wrong with the head of a request, as far as the parser lets it pass."""
    end = _END_OF_HEAD.search(received)
    if (len(received) if end is None else end.end()) > most:
        said = f"the head of the request is longer than {most} bytes"
        return HttpError(431, "head_too_large", said)
    if end is None:
        return None
    *lines, _, _ = received[: end.end()].split(b"\n")
    message: str | None = None
    if any(not line.endswith(b"\r") for line in lines):
        message = "a line of the head ends without a carriage return"
    elif not _VERSION.search(lines[0]):
        message = "the request is not HTTP/1.1"
    elif any(line.startswith((b" ", b"\t")) for line in lines):
        message = "a header is folded over two lines"
    else:
        message = _problem_of_length([line.partition(b":") for line in lines[1:]], lines[0])
    return None if message is None else HttpError(400, "bad_request", message)


def _problem_of_length(headers: list[tuple[bytes, bytes, bytes]], first: bytes) -> str | None:
    lengths = [value for name, _, value in headers if name.lower() == b"content-length"]
    codings = [value for name, _, value in headers if name.lower() == b"transfer-encoding"]
    if len(lengths) > 1 or any(b"," in value for value in lengths):
        return "the request has two lengths"
    if codings and lengths:
        return "the request has a length and is chunked"
    if codings and b"HTTP/1.0" in first:
        return "a request of HTTP/1.0 cannot be chunked"
    return None
