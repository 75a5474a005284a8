"""Where requests of a login may go, by the addresses of the server that leads them there."""

from collections.abc import Sequence

import anyio
import httpx
import pytest
from mcp_emulators import McpEndpoint
from model_endpoint import json_reply

from aish.net.http import DirectTransport
from aish.net.oauth.discovery import find_issuer
from aish.net.oauth.failure import LoginError
from aish.net.oauth.requests import OAuthClient, nearness

HOSTS = {
    "public.example": ["93.184.216.34"],
    "other.example": ["1.1.1.1", "2606:4700::1111"],
    "private.example": ["10.1.2.3"],
    "mixed.example": ["93.184.216.34", "10.0.0.1"],
    "cloud.example": ["169.254.169.254"],
    "here.example": ["127.0.0.1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "localhost": ["127.0.0.1"],
    "nobody.example": [],
}


async def resolve(host: str, _port: int) -> Sequence[str]:  # ruff: ignore[unused-async] - `Resolve`
    return HOSTS.get(host, [host])


@pytest.mark.parametrize(
    ("server", "target", "ok"),
    [
        ("public.example", "other.example", True),
        ("public.example", "private.example", False),
        ("public.example", "mixed.example", False),
        ("public.example", "localhost", False),
        ("public.example", "mapped.example", False),
        ("public.example", "cloud.example", False),
        ("public.example", "[::1]", False),
        ("public.example", "0.0.0.0", False),
        ("public.example", "public.example", True),
        ("mixed.example", "private.example", False),
        ("private.example", "other.example", True),
        ("private.example", "private.example", True),
        ("private.example", "10.9.9.9", True),
        ("private.example", "localhost", False),
        ("private.example", "cloud.example", False),
        ("localhost", "private.example", True),
        ("localhost", "localhost", True),
        ("localhost", "cloud.example", False),
    ],
)
def test_a_server_leads_to_nothing_that_is_nearer_than_itself(
    server: str, target: str, *, ok: bool
) -> None:
    client = OAuthClient(f"https://{server}/mcp", resolve=resolve)
    host = target.strip("[]")

    if ok:
        assert anyio.run(client._addresses, host, 8443) == HOSTS.get(host, [host])
    else:
        with pytest.raises(OSError, match="nearer than the server"):
            anyio.run(client._addresses, host, 8443)


def test_what_the_file_names_is_asked_wherever_it_is() -> None:
    named = "https://private.example:8443/token"
    client = OAuthClient("https://public.example/mcp", named=[named], resolve=resolve)
    assert anyio.run(client._addresses, "private.example", 8443) == ["10.1.2.3"]


def test_a_server_is_where_it_was_met_whatever_its_name_means_later() -> None:
    async def scene() -> None:
        with McpEndpoint(lambda _request: json_reply(401, {})) as end:
            transport = DirectTransport(verify=True, most=1, kept_seconds=0)
            response = await transport.handle_async_request(httpx.Request("GET", end.url))
            await response.aclose()
            await transport.aclose()
        client = OAuthClient("https://here.example/mcp", resolve=resolve)
        client.note_server(response.extensions["server_address"])
        assert await client._addresses("localhost", 8443)
        client.note_server("93.184.216.34")
        with pytest.raises(OSError, match="nearer than the server"):
            await client._addresses("localhost", 8443)

    anyio.run(scene)


def test_a_blocked_address_is_told_and_not_connected_to() -> None:
    with McpEndpoint(lambda _request: json_reply(200, {})) as end:
        client = OAuthClient("https://public.example/mcp", resolve=resolve)
        with pytest.raises(LoginError) as caught:
            anyio.run(client.get, f"{end.origin}/.well-known/x?secret=1")
        assert end.connections == 0
    assert str(caught.value) == (
        f"`{end.origin}/.well-known/x` is not asked: it is at an address nearer than the server"
        " `public.example`, which named it"
    )


@pytest.mark.parametrize("host", ["localhost", "service.localhost"])
def test_a_name_of_this_machine_without_tls_leads_to_this_machine_alone(host: str) -> None:
    url = f"http://{host}:8443/token"

    async def resolve_elsewhere(_host: str, _port: int) -> Sequence[str]:  # ruff: ignore[unused-async] - `Resolve`
        return ["127.0.0.1", "192.0.2.1"]

    client = OAuthClient("https://x.example/mcp", named=[url], resolve=resolve_elsewhere)
    with pytest.raises(LoginError, match="is not asked: it is not https, nor of this machine"):
        anyio.run(client.get, url)


def test_a_redirect_to_another_origin_is_the_answer() -> None:
    moved = json_reply(302, {}, {"location": "http://169.254.169.254/latest"})
    with McpEndpoint(lambda _request: moved) as end:
        page = anyio.run(OAuthClient(end.url).get, f"{end.origin}/x")
        assert page.status == 302
        assert end.connections == 1


def test_redirects_without_end_are_told() -> None:
    moved = json_reply(302, {}, {"location": "/x"})
    with McpEndpoint(lambda _request: moved) as end:
        with pytest.raises(LoginError, match="redirects more than 3 times"):
            anyio.run(OAuthClient(end.url).get, f"{end.origin}/x")
        assert len(end.requests) == 4


@pytest.mark.parametrize("url", ["http://public.example/x", "file:///etc/passwd", "http://[x", "x"])
def test_a_place_that_is_not_secure_is_not_asked(url: str) -> None:
    with pytest.raises(LoginError, match="is not asked: it is not https, nor of this machine"):
        anyio.run(OAuthClient("https://public.example/mcp", resolve=resolve).get, url)


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("8.8.8.8", 0), ("10.0.0.1", 1), ("100.64.0.1", 1), ("fd00::1", 1), ("127.9.9.9", 2),
        ("::1", 2), ("0.0.0.0", 2), ("::", 2), ("::ffff:10.0.0.1", 1), ("::ffff:127.0.0.1", 2),
        ("169.254.1.1", 3), ("fe80::1", 3), ("::ffff:169.254.169.254", 3),
    ],
)  # fmt: skip
def test_how_near_an_address_is(address: str, near: int) -> None:
    assert nearness(address) == near


def test_a_long_address_of_an_issuer_is_cut_in_the_message() -> None:
    with McpEndpoint(lambda _request: json_reply(404, {})) as end:
        issuer = f"{end.origin}/{'x' * 3000}"
        with pytest.raises(LoginError) as caught:
            anyio.run(find_issuer, OAuthClient(end.url), issuer, lambda *_: None)
    assert len(str(caught.value)) < 2000
