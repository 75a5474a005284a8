"""The transport that records and replays HTTP, used in place of the client's own.

While recording, bytes reach the caller as they arrive; in replay no connection is opened, and the
chunks arrive as recorded. The recorder decides which requests go live.

Connection failures as text in a cassette, and the reverse.
"""

from collections.abc import AsyncIterator, Callable

import anyio
import httpx
from anyio.lowlevel import checkpoint

from aish.cassettes.format.interaction import (
    NO_ANSWER,
    NO_ANSWER_REASON,
    CassetteMissError,
    Exchange,
    Headers,
    Request,
    Response,
)
from aish.cassettes.format.rpc import Said, peek
from aish.cassettes.record.recorder import LEFT, CassetteRecorder, Kind
from aish.core.patterns import lazy_pattern
from aish.net.oauth.failure import LoginError
from aish.system.offline import permit_attempts


def in_words(error: httpx.HTTPError) -> str:
    """The failure as written in a cassette, such as `ConnectError: no route`."""
    return f"{type(error).__name__}: {error}"


def failure_of(words: str) -> httpx.TransportError:
    """The failure described by the text; a broken connection by default."""
    name, _, text = words.partition(": ")
    kind = LoginError if name == LoginError.__name__ else getattr(httpx, name, None)
    if isinstance(kind, type) and issubclass(kind, httpx.TransportError):
        return kind(text)
    return httpx.ReadError(words)


MakeTransport = Callable[[], httpx.AsyncBaseTransport]
Cue = Callable[[], int]

PATIENCE = 5.0
"""Seconds that an answer waits for what was answered to the server when it was recorded."""

_DEADLINE = "deadline: "
_DONE = b"data: [DONE]"
_TAIL = 64
_NO_STREAM = Response(405, "Method Not Allowed")
_TAKEN = Response(202, "Accepted")
_JSON = (("content-type", "application/json"),)
_PLACEHOLDER = lazy_pattern(r"%3Csecret:([\w.-]+)%3E")


def cassette_transport(
    recorder: CassetteRecorder, kind: Kind, make: MakeTransport, *, origin: str | None = None
) -> httpx.AsyncBaseTransport:
    """A transport that replays from a cassette, records to it, or both.

    `make` opens the real one, once a request goes live. `origin` is recorded in place of scheme,
    host and port, if these differ between runs. If a reader left before the end, a replay never
    ends, unless the request has an extension `left` to be awaited instead. If a deadline passed,
    which its extension `deadline` names, `pass_deadline` makes it pass. `chunks_apart` tells live
    requests that each chunk of the response is recorded separately.
    """
    return _CassetteTransport(recorder, kind, make, origin)


class _CassetteTransport(httpx.AsyncBaseTransport):
    def __init__(
        self, recorder: CassetteRecorder, kind: Kind, make: MakeTransport, origin: str | None
    ) -> None:
        self._recorder = recorder
        self._kind = kind
        self._make = make
        self._origin = origin
        self._live: httpx.AsyncBaseTransport | None = None
        self._last_reply = 0
        self._open: list[Exchange] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Respond from the cassette, or from the real transport."""
        asked = _as_recorded(request, await request.aread(), self._origin)
        message = peek(asked) if self._kind == "mcp" else None
        found = self._find_response(asked, message)
        if found is None:
            return await self._go_live(request, asked, message)
        # Unsolicited messages on another stream that this request triggers are played first.
        await checkpoint()
        is_listening = message is not None and message.is_listening
        response = await _Player(found, self._recorder, request, is_listening=is_listening).play()
        # How often a model request was retried depended on what else ran then.
        response.extensions["recorded_again"] = lambda: self._recorder.holds(asked)
        return response

    async def aclose(self) -> None:
        """Close the real transport."""
        live, self._live = self._live, None
        if live is not None:
            await live.aclose()

    def _find_response(self, asked: Request, said: Said | None) -> Response | None:
        if said is None:
            return self._recorder.recorded(self._kind, asked)
        if (
            said.is_volatile
            and self._recorder.way("mcp") == "replay"
            and not self._recorder.holds(asked)
        ):
            return _TAKEN if asked.method == "POST" else _NO_STREAM
        try:
            return self._recorder.recorded(self._kind, asked, fresh=self._is_fresh(said))
        except CassetteMissError:
            if self._recorder.rules.lenient and asked.method == "POST":
                return Response(headers=_JSON, body=said.refusal()) if said.is_request else _TAKEN
            raise

    def _is_fresh(self, message: Said) -> bool:
        """Return true if it goes live with anything else; a response does if its request did."""
        self._open = [take for take in self._open if not take.ended]
        return message.is_fresh or (message.is_reply and bool(self._open))

    async def _go_live(
        self, request: httpx.Request, asked: Request, message: Said | None
    ) -> httpx.Response:
        if self._live is None:
            self._live = self._make()
        take = self._recorder.begin(self._kind, asked)
        if take is None:
            with permit_attempts():
                return await self._live.handle_async_request(request)
        request.extensions["chunks_apart"] = True
        cue = self._cue_of(take, message)
        # Until its head has arrived it is an exchange without a response.
        take.head(NO_ANSWER, NO_ANSWER_REASON, ())
        try:
            response = await self._live.handle_async_request(request)
        except httpx.HTTPError as error:
            take.end(broken=in_words(error))
            raise
        except BaseException:
            take.end(broken=_how_left(request))
            raise
        take.head(response.status_code, response.reason_phrase, _pairs(response.headers))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Teed(response.stream, take, cue, request)
        return response

    def _cue_of(self, take: Exchange, message: Said | None) -> Cue:
        """The request that must precede the next chunk of a response (`Chunk.after`).

        For unsolicited messages: the latest request. For the rest of a response: our reply to the
        server, which waits for it.
        """
        if message is None:
            return lambda: 0
        if message.is_reply:
            self._last_reply = take.number
        if message.is_listening:
            return lambda: self._recorder.latest if self._recorder.latest != take.number else 0
        self._open.append(take)
        return lambda: self._last_reply if self._last_reply > take.number else 0


class _Teed(httpx.AsyncByteStream):
    """A live body; each chunk is recorded and passed on at once."""

    def __init__(
        self, stream: httpx.AsyncByteStream, take: Exchange, cue: Cue, request: httpx.Request
    ) -> None:
        self._stream = stream
        self._take = take
        self._cue = cue
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._stream:
                self._take.chunk(data, self._cue())
                yield data
        except httpx.HTTPError as error:
            self._take.end(broken=in_words(error))
            raise
        self._take.end()

    async def aclose(self) -> None:
        """Close the connection; a body not read to its end was left."""
        try:
            await self._stream.aclose()
        finally:
            self._take.end(broken=_how_left(self._request))


class _Player:
    """Plays one recorded response."""

    def __init__(
        self,
        found: Response,
        recorder: CassetteRecorder,
        request: httpx.Request,
        *,
        is_listening: bool,
    ) -> None:
        self._found = found
        self._recorder = recorder
        self._request = request
        self._paced = recorder.rules.paced
        self._broken = found.broken or ""
        self._was_left = self._broken == LEFT or self._broken.startswith(_DEADLINE)
        # Once a model's answer is complete it does not matter who closed first.
        self._is_left = self._was_left and _DONE not in found.body[-_TAIL:]
        self._is_listening = is_listening

    async def play(self) -> httpx.Response:
        """The response's head; its body follows while it is read."""
        recorded = self._found
        if recorded.is_headless:
            if self._is_left and self._is_listening:
                # A stream on which nothing was received: its listener need not wait for a head.
                recorded = _NO_STREAM
            elif self._is_left:
                await self._leave()
            else:
                raise failure_of(self._broken)
        return httpx.Response(
            recorded.status,
            headers=[
                (name.encode("utf-8", "replace"), value.encode("utf-8", "replace"))
                for name, value in recorded.headers
                if name.lower() != "content-encoding" or not _is_text(recorded.body)
            ],
            stream=_Played(self),
            extensions={
                "http_version": b"HTTP/1.1",
                "reason_phrase": recorded.reason.encode("ascii", "replace"),
            },
        )

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in its recorded chunks, at once or at its pace, and then its end."""
        began = anyio.current_time()
        after = [chunk.after for chunk in self._found.chunks] or [0]
        for (data, seconds), number in zip(self._found.pieces(), after, strict=False):
            if number:
                # A listener lasts as long as the run; a response has to arrive in the end.
                with anyio.move_on_after(None if self._is_listening else PATIENCE):
                    await self._recorder.wait_for_request(number)
            if self._paced:
                await anyio.sleep_until(began + seconds)
            yield data
        if self._is_left:
            await self._leave()
        elif self._broken and not self._was_left:
            raise failure_of(self._broken)

    async def _leave(self) -> None:
        """Never end, and repeat what ended it in the recording, if that is possible now."""
        pass_deadline = self._request.extensions.get("pass_deadline")
        if self._broken.startswith(_DEADLINE) and pass_deadline and not self._paced:
            pass_deadline(self._broken.removeprefix(_DEADLINE))
        await self._request.extensions.get("left", anyio.sleep_forever)()
        await anyio.sleep_forever()


class _Played(httpx.AsyncByteStream):
    def __init__(self, player: _Player) -> None:
        self._player = player

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._player.chunks():
            yield data


def _how_left(request: httpx.Request) -> str:
    """Return `LEFT`, or the deadline that passed."""
    passed = request.extensions.get("deadline")
    name = passed() if passed else None
    return LEFT if name is None else f"{_DEADLINE}{name}"


def _is_text(body: bytes) -> bool:
    """Return true if a body is text: some programs record it decoded, with its old headers."""
    try:
        return bool(body.decode())
    except UnicodeDecodeError:
        return False


def _as_recorded(request: httpx.Request, body: bytes, origin: str | None) -> Request:
    url = request.url
    # Not `str(url)`: that includes the password of an address.
    prefix = origin or f"{url.scheme}://{url.netloc.decode()}"
    headers = _pairs(request.headers)
    if origin is not None:
        host = origin.partition("://")[2]
        headers = tuple((k, host if k.lower() == "host" else v) for k, v in headers)
    # In a replay without the secret its placeholder was escaped as a part of the path.
    target = _PLACEHOLDER.sub(r"<secret:\1>", url.raw_path.decode())
    return Request(request.method, f"{prefix}{target}", headers, body)


def _pairs(headers: httpx.Headers) -> Headers:
    return tuple(headers.multi_items())
