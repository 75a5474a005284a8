"""Requests to authorization servers, and for the metadata of servers.

The addresses come from a server that may be hostile. So they are https or of this machine, a
redirect stays within its origin, an answer is small, and nothing is asked that is nearer to us than
the server itself: one of the internet leads to no address of a private network, and one of such a
network to none of this machine.
"""

import ipaddress
import ssl
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import anyio
import httpx

from aish import __version__
from aish.core.frozen import frozen
from aish.core.text import for_line
from aish.net.address_guard import BlockedAddressError, Resolve, is_public, system_addresses
from aish.net.http import DirectTransport, TooManyBytesError, own_tls_context, unknown_host
from aish.net.oauth.failure import LoginError
from aish.net.oauth.metadata import is_secure, origin_of
from aish.net.oauth.settings import OAuthSettings

MOST_BYTES: Final = 1024 * 1024
_MOST_REDIRECTS: Final = 3
_MOST_CONNECTIONS: Final = 2
_LONGEST_SECONDS: Final = 15.0
_NEAREST: Final = 3
_INSECURE: Final = "it is not https, nor of this machine"
_REDIRECTS: Final = {"GET": frozenset({301, 302, 303, 307, 308}), "POST": frozenset({307, 308})}


@frozen
class FetchedPage:
    """An answer, read whole."""

    status: int
    content_type: str
    body: bytes


class OAuthClient:
    """Asks what belongs to the login at one server.

    `url` is the address of the server, `named` are further ones that its entry in the file has:
    these are asked wherever they are. The certificate of the server itself is checked only if
    `verify_server`; with `own_authorities` those of `SSL_CERT_FILE` or `SSL_CERT_DIR` count.
    """

    def __init__(
        self,
        url: str,
        *,
        named: Collection[str] = (),
        verify_server: bool | Path = True,
        own_authorities: bool = False,
        seconds: float = _LONGEST_SECONDS,
        resolve: Resolve = system_addresses,
    ) -> None:
        self._server = origin_of(url)
        self._named = {origin_of(one)[1:] for one in (url, *named)}
        self._verify_server = verify_server
        self._own_authorities = own_authorities
        self.seconds = min(seconds, _LONGEST_SECONDS)
        """How long one answer may take."""
        self._resolve = resolve
        self._farthest = _NEAREST

    def note_server(self, address: str) -> None:
        """The server was met there: its name may mean another address by now."""
        if address:  # else the connection was lost before it was asked for
            self._farthest = min(self._farthest, nearness(address))

    async def get(self, url: str) -> FetchedPage:
        """The answer to a request for a document; that of a redirect to elsewhere is not followed.

        Raises:
            LoginError: there is no usable answer, or it must not be asked for.
        """
        return await self._ask("GET", url, {"accept": "application/json"}, b"")

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> FetchedPage:
        """The answer to a form, or to what the headers say that the body is.

        Raises:
            LoginError: as of `get`.
        """
        kind = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        return await self._ask("POST", url, {**kind, **headers}, body)

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> FetchedPage:
        try:
            with anyio.fail_after(self.seconds):
                return await self._follow(method, url, headers, body)
        except TimeoutError as error:
            said = f"no answer from `{_place_text(url)}` within {self.seconds:g} s"
            raise LoginError(said) from error

    async def _follow(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> FetchedPage:
        target = url
        for _ in range(_MOST_REDIRECTS + 1):
            page, location = await self._once(method, target, headers, body)
            if location is None or page.status not in _REDIRECTS[method]:
                return page
            following = _redirect_target(target, location)
            if following is None or _origin(following) != _origin(url):
                return page
            target = following
        raise LoginError(f"`{_place_text(url)}` redirects more than {_MOST_REDIRECTS} times")

    async def _once(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[FetchedPage, str | None]:
        if not is_secure(url):
            raise LoginError(f"`{_place_text(url)}` is not asked: {_INSECURE}")
        own = {"user-agent": f"aish/{__version__}", "accept-encoding": "identity"}
        is_checked = self._verify_server if origin_of(url) == self._server else True
        is_own = self._own_authorities and origin_of(url)[0] == "https"
        try:
            verify = own_tls_context() if is_own else is_checked
        except httpx.ConnectError as error:
            raise _failure(error, url) from error
        transport = DirectTransport(
            verify=verify,
            most=_MOST_CONNECTIONS,
            kept_seconds=0,
            addresses=self._addresses if origin_of(url)[0] == "https" else self._own_addresses,
            most_bytes=MOST_BYTES,
        )
        try:
            request = httpx.Request(method, url, headers={**own, **headers}, content=body)
            response = await transport.handle_async_request(request)
            async with aclosing(response):
                return await _read(response), response.headers.get("location")
        except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
            raise _failure(error, url) from error
        finally:
            await transport.aclose()

    async def _own_addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host, all of them of this machine: a name may lie.

        Raises:
            BlockedAddressError: one of them is of another.
            OSError: as of `_addresses`.
        """
        found = await self._addresses(host, port)
        if not all(ipaddress.ip_address(address).is_loopback for address in found):
            raise BlockedAddressError(_INSECURE)
        return found

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host, none of them nearer than the server.

        Raises:
            BlockedAddressError: one of them is.
            OSError: there is none.
        """
        found = await self._resolve(host, port)
        if not found:
            raise OSError("no address")
        if (host, port) in self._named:
            return found
        _, server, server_port = self._server
        theirs = await self._resolve(server, server_port)
        farthest = min(self._farthest, *map(nearness, theirs)) if theirs else 0
        if max(map(nearness, found)) > farthest:
            message = f"it is at an address nearer than the server `{server}`, which named it"
            raise BlockedAddressError(message)
        return found


def open_client(
    url: str, settings: OAuthSettings, *, verify_server: bool | Path, seconds: float
) -> OAuthClient:
    """A client for the login at the server with this URL, as the file has it."""
    named = (settings.issuer, settings.token_url, settings.authorization_url)
    return OAuthClient(
        url,
        named=[one for one in named if one is not None],
        verify_server=verify_server,
        seconds=seconds,
    )


def nearness(address: str) -> int:
    """The nearness of an address: of the internet, of a network, of this machine, of its host."""
    if is_public(address):
        return 0
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    # The services of a cloud that give keys to a machine are link-local.
    return (
        _NEAREST if found.is_link_local else 2 if found.is_loopback or found.is_unspecified else 1
    )


async def _read(response: httpx.Response) -> FetchedPage:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    body = b"".join([piece async for piece in response.stream])
    return FetchedPage(response.status_code, response.headers.get("content-type", ""), body)


def _failure(error: Exception, url: str) -> LoginError:
    place = _place_text(url)
    if isinstance(error.__cause__, BlockedAddressError):
        return LoginError(f"`{place}` is not asked: {error.__cause__}")
    if isinstance(error, TooManyBytesError):
        return LoginError(f"the answer of `{place}` is larger than {MOST_BYTES // 1024} KiB")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        why = unknown_host(error, url) or _why(error)
        return LoginError(f"cannot connect to `{place}`: {why}")
    return LoginError(f"the connection to `{place}` was lost: {str(error) or type(error).__name__}")


def _why(error: Exception) -> str:
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.__cause__.verify_message}"
    return str(error) or "timed out"


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        return origin_of(url)
    except ValueError:
        return None


def _redirect_target(url: str, location: str) -> str | None:
    try:
        return urljoin(url, location)
    except ValueError:
        return None


def _place_text(url: str) -> str:
    """A URL for a message, without its query."""
    return for_line(url.partition("?")[0])[:200]
