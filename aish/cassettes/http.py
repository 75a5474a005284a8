"""The transport that records and replays HTTP (C2, C3): put in where a client is built.

While recording, bytes reach the caller as they arrive; in replay nothing is opened, and the chunks
come as they were cut. What is asked for, and what goes live, is the tape's decision.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import httpx

from aish.cassettes.errors import CassetteMissError
from aish.cassettes.http_failure import failure_of, in_words
from aish.cassettes.interaction import NO_ANSWER, NO_ANSWER_REASON, Headers, Request, Response
from aish.cassettes.rpc import Said, peek
from aish.cassettes.tape import LEFT, Kind, Take, Tape

MakeTransport = Callable[[], httpx.AsyncBaseTransport]
Leave = Callable[[], Awaitable[object]]

_DONE = b"data: [DONE]"
_TAIL = 64
_NO_STREAM = Response(405, "Method Not Allowed")
_TAKEN = Response(202, "Accepted")
_JSON = (("content-type", "application/json"),)


def taped(
    tape: Tape, kind: Kind, make: MakeTransport, *, origin: str | None = None
) -> httpx.AsyncBaseTransport:
    """A transport that plays from a tape, records to it, or both.

    `make` opens the real one, once something goes live. `origin` stands in what is recorded in
    place of scheme, host and port, where these differ from run to run. Where a reader left before
    the end, a replay never ends, unless the request has an extension `left` to be awaited instead.
    """
    return _Taped(tape, kind, make, origin)


class _Taped(httpx.AsyncBaseTransport):
    def __init__(self, tape: Tape, kind: Kind, make: MakeTransport, origin: str | None) -> None:
        self._tape = tape
        self._kind = kind
        self._make = make
        self._origin = origin
        self._live: httpx.AsyncBaseTransport | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer from the tape, or from the real transport."""
        asked = _as_recorded(request, await request.aread(), self._origin)
        said = peek(asked) if self._kind == "mcp" else None
        found = self._recorded(asked, said)
        if found is None:
            return await self._go_live(request, asked)
        return await _Player(
            found,
            self._tape,
            self._kind,
            is_listening=request.method == "GET",
            leave=request.extensions.get("left", anyio.sleep_forever),
        ).play()

    async def aclose(self) -> None:
        """Close what went live."""
        live, self._live = self._live, None
        if live is not None:
            await live.aclose()

    def _recorded(self, asked: Request, said: Said | None) -> Response | None:
        if said is None:
            return self._tape.recorded(self._kind, asked)
        if said.is_volatile and self._tape.way("mcp") == "replay" and not self._tape.holds(asked):
            return _TAKEN if asked.method == "POST" else _NO_STREAM
        try:
            return self._tape.recorded(self._kind, asked, fresh=said.is_fresh)
        except CassetteMissError:
            if self._tape.rules.lenient and asked.method == "POST":
                return Response(headers=_JSON, body=said.refusal()) if said.is_request else _TAKEN
            raise

    async def _go_live(self, request: httpx.Request, asked: Request) -> httpx.Response:
        if self._live is None:
            self._live = self._make()
        take = self._tape.begin(self._kind, asked)
        if take is None:
            return await self._live.handle_async_request(request)
        # Until its head has come it is an exchange without an answer.
        take.head(NO_ANSWER, NO_ANSWER_REASON, ())
        try:
            response = await self._live.handle_async_request(request)
        except httpx.HTTPError as error:
            take.end(broken=in_words(error))
            raise
        except BaseException:
            take.end(broken=LEFT)
            raise
        take.head(response.status_code, response.reason_phrase, _pairs(response.headers))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Teed(response.stream, take)
        return response


class _Teed(httpx.AsyncByteStream):
    """A live body; each chunk is noted and handed on at once."""

    def __init__(self, stream: httpx.AsyncByteStream, take: Take) -> None:
        self._stream = stream
        self._take = take

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._stream:
                self._take.chunk(data)
                yield data
        except httpx.HTTPError as error:
            self._take.end(broken=in_words(error))
            raise
        self._take.end()

    async def aclose(self) -> None:
        """Hang up; what was not read to its end was left."""
        try:
            await self._stream.aclose()
        finally:
            self._take.end(broken=LEFT)


class _Player:
    """Plays one recorded answer; `leave` is what happens where its reader left."""

    def __init__(
        self, found: Response, tape: Tape, kind: Kind, *, is_listening: bool, leave: Leave
    ) -> None:
        self._found = found
        self._paced = tape.rules.paced
        self._is_left = found.broken == LEFT and not (kind == "model" and _is_done(found.body))
        self._is_listening = is_listening
        self._leave = leave

    async def play(self) -> httpx.Response:
        """The answer's head; its body comes while it is read."""
        found = self._found
        if found.is_headless:
            if self._is_left and self._is_listening:
                # A stream that nothing was heard on: its listener need not wait for a head.
                found = _NO_STREAM
            elif self._is_left:
                await self._leave()
            else:
                raise failure_of(found.broken or "")
        return httpx.Response(
            found.status,
            headers=[
                (name.encode("utf-8", "replace"), value.encode("utf-8", "replace"))
                for name, value in found.headers
            ],
            stream=_Played(self),
            extensions={
                "http_version": b"HTTP/1.1",
                "reason_phrase": found.reason.encode("ascii", "replace"),
            },
        )

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it was cut, at once or at its pace, and then its end."""
        began = anyio.current_time()
        for data, seconds in self._found.pieces():
            if self._paced:
                await anyio.sleep_until(began + seconds)
            yield data
        if self._is_left:
            await self._leave()
        if self._found.broken not in {None, LEFT}:
            raise failure_of(self._found.broken or "")


class _Played(httpx.AsyncByteStream):
    def __init__(self, player: _Player) -> None:
        self._player = player

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._player.chunks():
            yield data


def _is_done(body: bytes) -> bool:
    """Whether a model has said everything, so that it does not matter who hung up first."""
    return _DONE in body[-_TAIL:]


def _as_recorded(request: httpx.Request, body: bytes, origin: str | None) -> Request:
    url = request.url
    # Not `str(url)`: that has the password of an address in it.
    shown = origin or f"{url.scheme}://{url.netloc.decode()}"
    headers = _pairs(request.headers)
    if origin is not None:
        host = origin.partition("://")[2]
        headers = tuple((k, host if k.lower() == "host" else v) for k, v in headers)
    return Request(request.method, f"{shown}{url.raw_path.decode()}", headers, body)


def _pairs(headers: httpx.Headers) -> Headers:
    return tuple(headers.multi_items())
