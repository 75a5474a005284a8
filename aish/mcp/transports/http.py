"""HTTP access to one server's origin through httpx: requests in, statuses and bytes out.

httpx's transport is used without its client: no cookies, no `.netrc`, no proxies from the
environment, no redirects but those followed here, within one origin. Knows no JSON-RPC.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import anyio
import httpx

from aish import __version__
from aish.core.errors import AishError
from aish.mcp.protocol.messages import (
    ConnectionBrokenError,
    CredentialsError,
    LeftError,
    TransportError,
    UnreachableError,
    body_excerpt,
)
from aish.mcp.transports.transport import Headers
from aish.net.http import DirectTransport, unknown_host
from aish.net.oauth.failure import LoginError
from aish.net.rate_limits import LONGEST_WAIT, seconds_to_wait
from aish.net.renewed_secret import RenewedSecret, Token
from aish.system.clock import SystemClock

if TYPE_CHECKING:
    from aish.net.oauth.login import Login

MAX_BODY = 32 * 1024 * 1024
MAX_ERROR_BODY = 4096
DRAIN_SECONDS = 0.02
MAX_REDIRECTS = 3
MAX_PORT = 65535
MAX_CONNECTIONS = 32
KEEP_ALIVE_SECONDS = 5.0
REDIRECTS = frozenset({300, 301, 302, 303, 307, 308})
KEPT = frozenset({307, 308})
"""Redirects of a message that are followed: its method and body stay as they were."""
LASTING = 308
JSON_OR_EVENTS = "application/json, text/event-stream"

_SHOWN = 200
_UNAUTHORIZED = 401
REFUSED_FOR_LOAD = frozenset({429, 503})
MAX_REFUSALS = 5
"""So often one request is sent to a server that says each time when to try again."""

MadeHeaders = Mapping[str, tuple[str, RenewedSecret]]
"""What makes the values of headers, by name, each with what stands before it there."""
Mask = Callable[[str], str]
MakeHttp = Callable[[], httpx.AsyncBaseTransport]
OpenHttp = Callable[[MakeHttp], httpx.AsyncBaseTransport]
"""The seam for what lies between us and a server: takes what makes the real transport."""


class HttpAdapter(Protocol):
    """The part of an adapter that opens HTTP connections."""

    @property
    def replays(self) -> bool: ...

    @property
    def hurries(self) -> bool: ...

    @property
    def open_http(self) -> OpenHttp: ...


class Reply:
    """An HTTP response whose body is not read yet."""

    def __init__(self, response: httpx.Response, mask: Mask) -> None:
        self._response = response
        self._mask = mask
        self._chunks: AsyncIterator[bytes] | None = None
        self._start: str | None = None
        self.status = response.status_code

    def header(self, name: str) -> str:
        value: str = self._response.headers.get(name, "")
        return value

    @property
    def is_events(self) -> bool:
        return self.header("content-type").lower().startswith("text/event-stream")

    async def next_chunk(self) -> bytes | None:
        """The next piece of the body, `None` at its end.

        Raises:
            TransportError: the connection was lost, or the body is compressed.
        """
        if self._chunks is None:
            if self.header("content-encoding").lower() not in {"", "identity"}:
                raise TransportError("the server compressed its answer without being asked to")
            self._chunks = self._response.aiter_raw()
        try:
            return await anext(self._chunks, None)
        except httpx.TransportError as error:
            raise _loss_error(error) from error

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """The whole body.

        Raises:
            TransportError: the connection was lost, or the body is too large.
        """
        parts: list[bytes] = []
        size = 0
        while (chunk := await self.next_chunk()) is not None:
            size += len(chunk)
            if size > limit:
                raise TransportError(f"the answer is larger than {limit} bytes")
            parts.append(chunk)
        return b"".join(parts)

    async def drain(self) -> None:
        """Read the rest if it is available at once, so that the connection can be reused."""
        with anyio.move_on_after(DRAIN_SECONDS), suppress(TransportError):
            await self.read(MAX_ERROR_BODY)

    async def read_start(self) -> str:
        """Read the beginning of an error's body, of any type, with secrets masked.

        Masked before it is cut: a replay, which reads no secrets, cuts it at the same place.
        """
        if self._start is not None:
            return self._start
        start = b""
        # What arrived before a connection broke is still worth showing.
        with suppress(TransportError):
            while len(start) < MAX_ERROR_BODY and (chunk := await self.next_chunk()) is not None:
                start += chunk[: MAX_ERROR_BODY - len(start)]
        self._start = self._mask(start.decode("utf-8", "replace"))
        return self._start

    async def pause(self) -> float | None:
        """The seconds after which a request that was refused for load is to be sent again.

        `None` if the server names none, or the caller would not wait so long. A replay sends it
        again where the recording did.
        """
        if self.status not in REFUSED_FOR_LOAD:
            return None
        if (again := self._response.extensions.get("recorded_again")) is not None:
            return 0.0 if again() else None
        text = await self.read_start()
        wait = seconds_to_wait(self.status, self._response.headers, text, SystemClock().now())
        left = anyio.current_effective_deadline() - anyio.current_time()
        return None if wait is None or wait >= min(left, LONGEST_WAIT) else wait

    def body_start(self, body: bytes) -> str:
        return body_excerpt(self._mask(body[:MAX_ERROR_BODY].decode("utf-8", "replace")), _SHOWN)


class HttpOrigin:
    """MCP endpoint, its connections kept alive.

    With `taking` its exchanges go through a cassette. `mask` removes secrets from errors. The login
    of `open_login` belongs to the real connection, and to no recording. The values of `made`
    headers are made anew, once for a request, where it is answered with 401.
    """

    def __init__(  # ruff: ignore[too-many-arguments] - what an entry says, and what lies between
        self,
        url: str,
        *,
        token: str | None,
        headers: Mapping[str, str],
        connect_seconds: float,
        verify_tls: bool | Path,
        taking: HttpAdapter | None = None,
        mask: Mask = str,
        open_login: Callable[[], "Login"] | None = None,
        made: MadeHeaders | None = None,
    ) -> None:
        self._open_login = open_login
        self._made = made or {}
        self.hurries = taking is not None and taking.hurries
        self.replays = taking is not None and taking.replays
        self._mask = mask
        self.url = _parse_url(url)
        base = _base_headers(token, headers)
        self._headers = {
            "POST": _items({"accept": JSON_OR_EVENTS, "content-type": "application/json"} | base),
            "GET": _items({"accept": "text/event-stream"} | base),
            "DELETE": _items(base),
        }
        self._verify = verify_tls
        self._transport = self._real() if taking is None else taking.open_http(self._real)
        self._timeouts = {"connect": connect_seconds, "read": None, "write": None, "pool": None}

    def _real(self) -> httpx.AsyncBaseTransport:
        real = DirectTransport(
            verify=self._verify, most=MAX_CONNECTIONS, kept_seconds=KEEP_ALIVE_SECONDS
        )
        if self._open_login is None:
            return real
        from aish.net.oauth.transport import LoggedInTransport

        return LoggedInTransport(real, self._open_login())

    @property
    def origin(self) -> str:
        return f"{self.url.scheme}://{self.url.netloc.decode()}"

    def within(self, location: str) -> str:
        """A location given by the server, as an absolute URL.

        Raises:
            TransportError: it is another origin, or not a valid URL.
        """
        try:
            target = self.url.join(location)
            here = _origin(target) == _origin(self.url)
            origin = f"{target.scheme}://{target.netloc.decode()}"
        except (httpx.InvalidURL, ValueError) as error:
            raise TransportError("the server named an address that is not legal") from error
        if not here:
            raise TransportError(f"the server sent us to another origin, {origin}")
        return str(target)

    @asynccontextmanager
    async def open(
        self, method: str, headers: Headers = (), body: bytes = b"", url: str | None = None
    ) -> AsyncGenerator[Reply]:
        """Send a request; the reply's body can be read inside the block.

        Raises:
            TransportError: no answer came, or it leads to another origin.
        """
        target = self.url if url is None else httpx.URL(url)
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send_with_keys(method, target, headers, body)
            try:
                location, status = response.headers.get("location"), response.status_code
                if status not in REDIRECTS or location is None:
                    yield Reply(response, self._mask)
                    return
                await Reply(response, self._mask).drain()
                target = httpx.URL(self.within(location))
                if method == "POST" and status not in KEPT:
                    address = self._mask(f"{self.origin}{target.path}")
                    raise TransportError(
                        f"HTTP {status}: the server redirects to `{address}`, and only 307 and 308"
                        " repeat a message there: write that as its `url`"
                    )
                if status == LASTING and url is None:
                    self.url = target
            finally:
                await response.aclose()
        raise TransportError(f"more than {MAX_REDIRECTS} redirects")

    @asynccontextmanager
    async def post(
        self, headers: Headers, body: bytes, url: str | None = None
    ) -> AsyncGenerator[Reply]:
        """Send a request, again if the server was busy and says when.

        Raises:
            TransportError: no answer came, or it leads to another origin.
        """
        for is_last in (*[False] * (MAX_REFUSALS - 1), True):
            async with self.open("POST", headers, body, url) as reply:
                pause = None if is_last else await reply.pause()
                if pause is None:
                    yield reply
                    return
                await reply.drain()
            await anyio.sleep(pause)

    async def _send_with_keys(
        self, method: str, url: httpx.URL, headers: Headers, body: bytes
    ) -> httpx.Response:
        sent = await tokens_of(self._made)
        response = await self._send(method, url, (*headers, *self._carry(sent)), body)
        if not sent or response.status_code != _UNAUTHORIZED:
            return response
        try:
            # A replay makes none, and sends again what was sent again.
            recorded = response.extensions.get("recorded_again")
            again = sent if recorded is not None else await tokens_of(self._made, sent)
            if not (self._carry(again) != self._carry(sent) if recorded is None else recorded()):
                return response
            await Reply(response, self._mask).drain()
        except BaseException:
            await response.aclose()
            raise
        await response.aclose()
        return await self._send(method, url, (*headers, *self._carry(again)), body)

    def _carry(self, tokens: Mapping[str, Token]) -> Headers:
        return tuple((name, self._made[name][0] + token.value) for name, token in tokens.items())

    async def _send(
        self, method: str, url: httpx.URL, headers: Headers, body: bytes
    ) -> httpx.Response:
        try:
            request = httpx.Request(
                method,
                url,
                headers=[*self._headers[method], *headers],
                content=body,
                extensions=self._extensions(method),
            )
            return await self._transport.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            unknown = unknown_host(error, self.origin)
            why = unknown or str(error) or "timed out"
            is_refused = unknown is None and isinstance(error.__cause__, OSError)
            raise UnreachableError(
                f"cannot connect to {self.origin}: {why}",
                is_down=is_refused and not isinstance(error.__cause__, ssl.SSLError),
            ) from error
        except LoginError as error:
            raise CredentialsError(self._mask(str(error))) from error
        except httpx.TransportError as error:
            raise _loss_error(error) from error

    def _extensions(self, method: str) -> dict[str, object]:
        # Listening streams are closed by their reader; a caller waits for an answer.
        left = {"left": _raise_left} if self.hurries and method == "POST" else {}
        return {"timeout": self._timeouts, **left}

    async def close(self) -> None:
        await self._transport.aclose()


async def tokens_of(
    made: MadeHeaders, refused: Mapping[str, Token] | None = None
) -> dict[str, Token]:
    """The tokens to send now, in the place of those that were refused.

    Raises:
        CredentialsError: one cannot be made.
    """
    tokens: dict[str, Token] = {}
    for name, (_, secret) in made.items():
        try:
            old = None if refused is None else refused[name]
            token = await secret.current() if old is None else await secret.replacement(old)
        except AishError as error:
            raise CredentialsError(f"no value for `{name}`: {error}: {error.hint}") from error
        tokens[name] = token
    return tokens


def _base_headers(token: str | None, extra: Mapping[str, str]) -> dict[str, str]:
    headers = {"accept-encoding": "identity", "user-agent": f"aish/{__version__}"}
    headers |= {name.lower(): value for name, value in extra.items()}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return headers


def _items(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Headers as pairs.

    Raises:
        TransportError: one has a character that is not valid in HTTP.
    """
    for name, value in headers.items():
        if not (name + value).isascii() or not (name + value).isprintable():
            raise TransportError(f"the header `{name}` has a character that is not legal")
    return list(headers.items())


def _parse_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
        host = url.host
    except (httpx.InvalidURL, ValueError) as error:
        raise TransportError(f"the url is not legal: {error}") from error
    if url.scheme not in {"http", "https"} or not host:
        raise TransportError("the url does not begin with http:// or https:// and a host")
    if (url.port or 0) > MAX_PORT:
        raise TransportError(f"the url names a port above {MAX_PORT}")
    return url


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _raise_left() -> NoReturn:  # ruff: ignore[unused-async] - awaited by the recorder's transport
    raise LeftError


def _loss_error(error: httpx.TransportError) -> ConnectionBrokenError:
    return ConnectionBrokenError(f"the connection was lost: {str(error) or type(error).__name__}")
