"""GET requests for addresses that others name, to public hosts only.

Every connection goes where the address guard permits it, also after a redirect. Nothing is read
from the environment: no proxy, no `.netrc`; and no cookie is kept.

A caller gets the bytes of a body, decompressed. What they mean is for it to say.
"""

import ssl
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Final, Literal

import anyio
import httpx

from aish import __version__
from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern
from aish.net.address_guard import (
    PORTS,
    AddressGuard,
    BlockedAddressError,
    Destination,
    Resolve,
    host_text,
    is_host,
    system_addresses,
)
from aish.net.http import INFLATES, DirectTransport, TooManyBytesError, inflate, unknown_host
from aish.system.globs import matches_word

SECONDS: Final = 15.0
"""For all of a request: look-ups, redirects, and the last byte of the body."""
MAX_REDIRECTS: Final = 5
MAX_SENT: Final = 5 * 1024 * 1024
"""Bytes that a server sends in answer to one request."""
MAX_DECODED: Final = 10 * 1024 * 1024
_MOST_CONNECTIONS: Final = 16
_LONGEST_URL: Final = 8_192
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_FIRST_ERROR: Final = 300
_NOT_LEGAL: Final = "the URL or a header has a character that is not legal"
_LAST_PORT: Final = 65_535
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_WORD: Final = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,60}(?:/[A-Za-z0-9.+-]{1,60})?")
_DIGITS: Final = 20

Wanted = Callable[[str], bool]
RequestErrorCode = Literal[
    "bad_arguments", "blocked", "unavailable", "timeout", "too_large", "unsupported"
]


class GuardedRequestError(Exception):
    """A request without an answer; `code` says what kind of reason it has."""

    def __init__(self, code: RequestErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: RequestErrorCode = code
        self.message = message


@frozen
class Fetched:
    """An answer; `reason` is ours. `body` is decompressed, and empty where `status` is an error."""

    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


def destination_of(text: str) -> Destination:
    """Parse an entry `host:port` of `allow`.

    Raises:
        ValueError: it is no host with a port.
    """
    try:
        url = _parse_url(f"http://{text}/")
    except GuardedRequestError as error:
        raise ValueError(error.message) from error
    # A URL does not keep the usual port of its scheme.
    if url.raw_path != b"/" or (url.port is None and not text.endswith(":80")):
        raise ValueError("it is not a host and a port")
    return _destination(url)


def destination_of_url(text: str) -> Destination:
    """The host and the port of a configured address.

    Raises:
        ValueError: it is none that could be asked.
    """
    try:
        return _destination(_parse_url(text))
    except GuardedRequestError as error:
        raise ValueError(error.message) from error


class GuardedClient:
    """Asks for public pages, and for what its options name.

    `allow` are destinations that may be connected to whatever their address is, `hosts` globs of
    the hosts that may be asked for, all if there are none: both have to permit a request.
    `resolve` and `tls` are the look-up and the certificates to be used instead of the system's.
    """

    def __init__(
        self,
        *,
        allow: Collection[Destination] = (),
        hosts: Sequence[str] = (),
        resolve: Resolve = system_addresses,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._guard = AddressGuard(allow, resolve)
        self._hosts = tuple(_as_asked_for(host) for host in hosts)
        self._transport = DirectTransport(
            verify=True if tls is None else tls,
            most=_MOST_CONNECTIONS,
            kept_seconds=0,
            addresses=self._guard.addresses,
            most_bytes=MAX_SENT,
        )

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        seconds: float = SECONDS,
        is_wanted: Wanted | None = None,
        same_origin: bool = False,
    ) -> Fetched:
        """The answer to a GET request, after redirects, of the same origin only if so wanted.

        `is_wanted` decides by the header `Content-Type`, empty where it is missing, whether the
        body of a successful answer is read.

        Raises:
            GuardedRequestError: it is refused, or there is no usable answer.
        """
        first = _parse_url(url)
        try:
            with anyio.fail_after(seconds):
                return await self._follow(first, headers, is_wanted, same_origin=same_origin)
        except TimeoutError as error:
            message = f"no complete answer from `{_origin(first)}` within {seconds:g} seconds"
            raise GuardedRequestError("timeout", message) from error

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _follow(
        self,
        first: httpx.URL,
        headers: Mapping[str, str],
        is_wanted: Wanted | None,
        *,
        same_origin: bool,
    ) -> Fetched:
        target = first
        for _ in range(MAX_REDIRECTS + 1):
            self._check(target)
            found = await self._once(target, headers, is_wanted)
            if isinstance(found, Fetched):
                return found
            target = found
            if same_origin and _origin(target) != _origin(first):
                message = f"`{_origin(first)}` redirects to another origin"
                raise GuardedRequestError("unavailable", message)
        raise GuardedRequestError("unavailable", f"more than {MAX_REDIRECTS} redirects")

    def _check(self, url: httpx.URL) -> None:
        """Check what can be checked without a look-up.

        Raises:
            GuardedRequestError: the host or the port is not permitted.
        """
        wanted = _destination(url)
        if self._hosts and not any(matches_word(glob, wanted.host) for glob in self._hosts):
            message = f"the host `{host_text(wanted.host)}` is not one of the permitted `hosts`"
            raise GuardedRequestError("blocked", message)
        try:
            self._guard.check_port(wanted)
        except BlockedAddressError as error:
            raise GuardedRequestError("blocked", str(error)) from error

    async def _once(
        self, url: httpx.URL, headers: Mapping[str, str], is_wanted: Wanted | None
    ) -> Fetched | httpx.URL:
        """The answer of one server, or where it redirects to."""
        try:
            request = httpx.Request("GET", url, headers={**_HEADERS, **headers})
        except UnicodeError as error:
            raise GuardedRequestError("bad_arguments", _NOT_LEGAL) from error
        try:
            response = await self._transport.handle_async_request(request)
            async with aclosing(response):
                status, location = response.status_code, response.headers.get("location")
                if status in _REDIRECTS and location is not None:
                    return _redirect_target(url, location)
                body = await _body(response, is_wanted) if status < _FIRST_ERROR else b""
        except httpx.TransportError as error:
            raise _failure(error, url) from error
        return Fetched(str(url), status, _PHRASES.get(status, ""), dict(response.headers), body)


_HEADERS: Final = {
    "user-agent": f"Mozilla/5.0 (compatible; aish/{__version__})",
    "accept-encoding": "gzip, deflate",
    "accept-language": "en, *;q=0.5",
    # A connection is of no use to the reader of a single page once it is read.
    "connection": "close",
}


def _parse_url(text: str) -> httpx.URL:
    """The URL, with its host in the one form that is looked up, compared and asked for.

    Raises:
        GuardedRequestError: it is no URL, or has a scheme or a user that is not permitted.
    """
    if len(text) > _LONGEST_URL:
        raise GuardedRequestError("bad_arguments", f"the URL is longer than {_LONGEST_URL:,}")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise GuardedRequestError("bad_arguments", "the URL is not valid") from error
    if not url.scheme or (url.scheme in PORTS and not url.raw_host):
        message = "the URL does not begin with `https://` or `http://` and a host"
        raise GuardedRequestError("bad_arguments", message)
    if url.scheme not in PORTS:
        message = f"`{host_text(url.scheme)}:` is blocked: only `http:` and `https:` are permitted"
        raise GuardedRequestError("blocked", message)
    if url.userinfo:
        raise GuardedRequestError("blocked", "a URL with a user or a password is blocked")
    host = url.raw_host.decode("ascii", "replace").lower().rstrip(".")
    port = 1 if url.port is None else url.port
    if not is_host(host) or not 0 < port <= _LAST_PORT:
        raise GuardedRequestError("bad_arguments", "the host or the port of the URL is not valid")
    return url.copy_with(host=host, fragment=None)


def _redirect_target(url: httpx.URL, location: str) -> httpx.URL:
    """Return the target of a redirect.

    Raises:
        GuardedRequestError: that is no URL, or has what none may have.
    """
    try:
        return _parse_url(str(url.join(location)))
    except (httpx.InvalidURL, UnicodeError, ValueError, GuardedRequestError) as error:
        if isinstance(error, GuardedRequestError) and error.code == "blocked":
            raise
        message = f"`{_origin(url)}` redirects to an invalid address"
        raise GuardedRequestError("unavailable", message) from error


def _destination(url: httpx.URL) -> Destination:
    return Destination(url.raw_host.decode("ascii"), url.port or PORTS[url.scheme])


def _as_asked_for(glob: str) -> str:
    """A glob of hosts in the form in which hosts are asked for, which is ASCII.

    Raises:
        ValueError: it can be the name of no host.
    """
    parts = glob.lower().rstrip(".").split(".")
    try:
        parts = [
            part if part.isascii() else httpx.URL(f"http://{part}/").raw_host.decode("ascii")
            for part in parts
        ]
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ValueError(f"`{glob}` can be the name of no host") from error
    return ".".join(parts)


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{host_text(str(_destination(url)))}"


def _quote_if_name(word: str) -> str:
    """A word of a server for a message; nothing where it could be more than a name."""
    return f" `{word}`" if _WORD.fullmatch(word) else ""


def _failure(error: httpx.TransportError, url: httpx.URL) -> GuardedRequestError:
    """The failure in words of ours: what a server sends could be meant for a model."""
    origin = _origin(url)
    if isinstance(error.__cause__, BlockedAddressError):
        return GuardedRequestError("blocked", str(error.__cause__))
    if isinstance(error, TooManyBytesError):
        return _too_large(MAX_SENT)
    if isinstance(error, httpx.LocalProtocolError):
        return GuardedRequestError("bad_arguments", _NOT_LEGAL)
    if isinstance(error, httpx.RemoteProtocolError):
        message = f"the answer of `{origin}` is incomplete or not valid HTTP"
        return GuardedRequestError("unavailable", message)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        why = unknown_host(error, origin) or _why(error)
        return GuardedRequestError("unavailable", f"cannot connect to `{origin}`: {why}")
    return GuardedRequestError("unavailable", f"the connection to `{origin}` was lost")


def _why(error: Exception) -> str:
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.__cause__.verify_message}"
    return "TLS failed" if isinstance(error.__cause__, ssl.SSLError) else "no connection"


def _too_large(limit: int) -> GuardedRequestError:
    return GuardedRequestError("too_large", f"the answer is larger than {limit // 2**20} MiB")


async def _body(response: httpx.Response, is_wanted: Wanted | None) -> bytes:
    """The body, decompressed.

    Raises:
        GuardedRequestError: it is too large, of a type that is not wanted, or compressed in a way
            that was not offered.
        httpx.TransportError: the connection failed.
    """
    kind = response.headers.get("content-type", "")
    if is_wanted is not None and not is_wanted(kind):
        message = f"the content type{_quote_if_name(kind.partition(';')[0])} is not supported"
        raise GuardedRequestError("unsupported", message)
    said = response.headers.get("content-length", "")
    if said.isdecimal() and int(said[:_DIGITS]) > MAX_SENT:
        raise _too_large(MAX_SENT)
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in {"", "identity", *INFLATES}:
        message = f"the compression{_quote_if_name(coding)} is not supported"
        raise GuardedRequestError("unsupported", message)
    assert isinstance(response.stream, httpx.AsyncByteStream)
    pieces: list[bytes] = []
    left = MAX_DECODED
    stream = inflate(response.stream, coding) if coding in INFLATES else response.stream
    try:
        async for piece in stream:
            pieces.append(piece)
            left -= len(piece) if coding in INFLATES else 0
            if left < 0:
                raise _too_large(MAX_DECODED)
    except httpx.RemoteProtocolError as error:
        if not isinstance(error.__cause__, zlib.error):
            raise
        raise GuardedRequestError("unavailable", str(error)) from error
    return b"".join(pieces)
