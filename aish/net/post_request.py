"""Sends one JSON request on a connection of its own, and no credentials but the caller's.

For notifications, and for endpoints that packs ask. The caller names the URL, and decides what an
answer means and whether to ask again.
"""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Final
from urllib.parse import urlsplit

import anyio
import httpx

from aish.core.frozen import frozen
from aish.net.http import DirectTransport, own_tls_context, unknown_host

_MOST_OF_A_POST: Final = 64 * 1024


class PostError(Exception):
    """A request got no answer; the message says why."""


async def post_json(url: str, body: bytes, seconds: float) -> int:
    """Send JSON, and return the status of the answer, of which nothing else is read.

    With no proxy and no credentials of the environment; redirects are not followed. Authorities
    are those of `SSL_CERT_FILE` or `SSL_CERT_DIR`, where one is set: what is told may be a server
    of one's own.

    Raises:
        TimeoutError: there was no answer in that time.
        PostError: there was none at all.
    """
    is_https = urlsplit(url).scheme == "https"
    headers = {"Content-Type": "application/json"}
    try:
        verify = own_tls_context() if is_https else False
        transport = DirectTransport(
            verify=verify, most=1, kept_seconds=0, most_bytes=_MOST_OF_A_POST
        )
        with anyio.fail_after(seconds):
            async with (
                httpx.AsyncClient(transport=transport, trust_env=False, timeout=seconds) as client,
                client.stream(
                    "POST", url, content=body, headers=headers, follow_redirects=False
                ) as response,
            ):
                return response.status_code
    except httpx.TimeoutException as error:
        raise TimeoutError from error
    except httpx.TransportError as error:
        raise PostError(str(error)) from error


@frozen
class PostAnswer:
    """A complete answer; the names in `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def post_for_answer(
    url: str, body: bytes, *, headers: Mapping[str, str], connect_seconds: float, most_bytes: int
) -> PostAnswer:
    """Send JSON on a connection of its own, and read the whole answer.

    With no proxy and no credentials of the environment; redirects are not followed. How long it
    takes in all is for the caller to limit.

    Raises:
        PostError: there was no answer, or a longer one.
    """
    transport = DirectTransport(verify=True, most=1, kept_seconds=0, most_bytes=most_bytes)
    fixed = {"content-type": "application/json", "connection": "close"}
    try:
        request = httpx.Request(
            "POST",
            url,
            content=body,
            headers={**fixed, **headers},
            extensions={"timeout": {"connect": connect_seconds}},
        )
        async with aclosing(await transport.handle_async_request(request)) as response:
            assert isinstance(response.stream, httpx.AsyncByteStream)
            data = b"".join([piece async for piece in response.stream])
    except (httpx.TransportError, UnicodeError) as error:
        why = unknown_host(error, url) or str(error) or "the connection was lost"
        raise PostError(why) from error
    finally:
        await transport.aclose()
    return PostAnswer(response.status_code, response.headers, data)
