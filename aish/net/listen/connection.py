"""One HTTP connection: uvicorn's, with what it lacks (H16, H19, X11).

Framing that two readers could understand differently is refused before it is parsed; a request has
to arrive whole within a time, and an answer has to be read. A connection that is refused is read to
its end for a moment, so that the client sees the answer and not a reset.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from aish.core.json import json_text
from aish.net.listen.access import Call, Limits
from aish.net.listen.http_error import HttpError, error_document
from aish.net.listen.routes import JSON_TYPE, ConnectionState

_VERSIONS = frozenset({"1.0", "1.1"})
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


class _Part(Enum):
    """What of a request is received next."""

    NOTHING = "nothing has come"
    HEAD = "head"
    BODY = "body"


class _FramingError(Exception):
    """The head of a request is refused."""


class _JoinedWrites(asyncio.Transport):
    """Writes the head of an answer and what follows at once together: one packet, one wake-up."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._has_begun = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep the first piece until the loop's next turn, or the second piece."""
        if not self._has_begun:
            self._has_begun = True
            self._head = bytes(data)
            self._loop.call_soon(self._flush)
        elif self._head is None:
            self._transport.write(data)
        else:
            head, self._head = self._head, None
            self._transport.write(head + bytes(data))

    def close(self) -> None:
        """Close after all that was written."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)


class HttpConnection(HttpToolsProtocol):
    """A connection; with `refusal`, all that it hears is that.

    One request at a time: what comes after one that is still being answered is not read, and the
    connection ends with that answer.
    """

    def __init__(
        self, shared: Connections, peer_state: ConnectionState, refusal: HttpError | None = None
    ) -> None:
        super().__init__(shared.config, shared.state, {"connection": peer_state})
        self.peer_state = peer_state
        self.since = self.loop.time()
        self.logger = _SILENT
        self.access_log = False
        self._shared = shared
        self._limits = shared.limits
        self._refusal = refusal
        self._is_lingering = False
        self._problem: HttpError | None = None
        self._part = _Part.NOTHING
        self._head = 0
        self._received = 0
        self._is_ignored = False
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
        for tell in tuple(self.peer_state.on_gone):
            tell()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, or let it go where the connection was refused."""
        if self._is_ignored:
            return
        if self._is_lingering:
            self._received += len(data)
            if self._received > _MOST_DRAINED:
                self.transport.abort()
            return
        if self._part is not _Part.BODY:
            if self.is_answering:
                self._ignore_rest()
                return
            self._head += len(data)
            self.expect_request()
        try:
            super().data_received(data)
        except Exception as error:  # ruff: ignore[blind-except] - asyncio would write it to stderr
            self._shared.report(error)
            self.transport.abort()
            return
        is_head = self._part is not _Part.BODY and not self._is_lingering
        if is_head and self._head > self._limits.head:
            self._refuse(_too_long(self._limits.head))

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
        if self._part is _Part.NOTHING and self.is_answering:
            self._ignore_rest()  # what follows the request that is answered
        elif self._head > self._limits.head:
            self._refuse(_too_long(self._limits.head))
        else:
            self._refuse(self._problem or HttpError(400, "bad_request", msg.rstrip(".")))

    def expect_request(self) -> None:
        """Let the time run that a request has to arrive, unless it does already."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.receive, self._on_deadline)

    def on_message_begin(self) -> None:
        """The first byte of a request is there."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._ignore_rest()
            return
        self._part = _Part.HEAD
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of its target is there."""
        if not self._is_ignored:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of it is there."""
        if not self._is_ignored:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head is there.

        Raises:
            _FramingError: it is refused.
        """
        if self._is_ignored:
            return
        self._method = self.parser.get_method()
        self._problem = self._problem_of_head()
        if self._problem is not None:
            raise _FramingError
        self._part = _Part.BODY
        self._head = 0
        self._received = 0
        super().on_headers_complete()
        self.cycle.transport = _JoinedWrites(self.transport, self.loop)
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # what follows could be anything

    def on_body(self, body: bytes) -> None:
        """A part of its body is there."""
        if self._is_ignored:
            return
        self._received += len(body)
        if not self.cycle.response_complete:
            super().on_body(body)
        # The answer was given before the body was read: an end of it has to be in sight.
        elif self._received > self._limits.body + _MOST_DRAINED:
            self.transport.abort()

    def on_message_complete(self) -> None:
        """All of it is there."""
        if self._is_ignored:
            return
        self._part = _Part.NOTHING
        self._stop_deadline()
        super().on_message_complete()

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

    def _ignore_rest(self) -> None:
        """Answer the request that is there, and close."""
        self._is_ignored = True
        self.cycle.keep_alive = False
        self._stop_deadline()

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._part is _Part.NOTHING and not self._head:
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
        if self._part is not _Part.BODY or cycle is None or not cycle.response_complete:
            self._write_error(error)
            self._shared.log(Call("", "", "", self.peer_state.peer, error.status, error.code))
        self._linger()

    def _write_error(self, error: HttpError) -> None:
        body = json_text(error_document(error)).encode()
        headers = {"content-type": JSON_TYPE, "content-length": str(len(body)), **error.headers}
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = f"{''.join(lines)}connection: close\r\n\r\n".encode("latin-1")
        rest = b"" if self._method == b"HEAD" else body
        self.transport.write(STATUS_LINE[error.status] + head + rest)

    def _problem_of_head(self) -> HttpError | None:
        """What is wrong with the head of a request, as far as the parser lets it pass."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.head:
            return _too_long(self._limits.head)
        version = self.parser.get_http_version()
        names = [name for name, _ in self.headers]
        message: str | None = None
        if version not in _VERSIONS:
            message = "the request is not HTTP/1.1"
        elif names.count(b"host") > 1:
            message = "the request names two hosts"
        elif names.count(b"content-length") > 1:
            message = "the request has two lengths"
        elif b"transfer-encoding" in names and b"content-length" in names:
            message = "the request has a length and is chunked"
        elif b"transfer-encoding" in names and version == "1.0":
            message = "a request of HTTP/1.0 cannot be chunked"
        elif not self.url.startswith(b"/"):
            message = "the target of the request is not a path"
        return None if message is None else HttpError(400, "bad_request", message)

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
            with suppress(OSError):  # the client has gone already
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


def _too_long(most: int) -> HttpError:
    said = f"the head of the request is longer than {most} bytes"
    return HttpError(431, "head_too_large", said)
