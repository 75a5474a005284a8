from collections.abc import Mapping, Sequence

import pytest

from aish.core.errors import UnavailableError
from aish.net.address_guard import Destination, Resolve
from aish.net.destinations import (
    ListedDestination,
    parse_destination,
    resolve_network,
)

FIRST, SECOND, SIX = "93.184.216.34", "93.184.216.35", "2606:2800:220:1::1"


@pytest.mark.parametrize(
    ("text", "host", "port", "is_public"),
    [
        ("api.example", "api.example", 443, True),
        ("API.Example.", "api.example", 443, True),
        ("api.example:443", "api.example", 443, False),
        ("127.0.0.1:8080", "127.0.0.1", 8080, False),
        (FIRST, FIRST, 443, True),
        (SIX, SIX, 443, True),
        (f"[{SIX}]:80", SIX, 80, False),
        ("[::1]:80", "::1", 80, False),
    ],
)
def test_a_destination_is_a_host_and_a_port(
    *, text: str, host: str, port: int, is_public: bool
) -> None:
    assert parse_destination(text) == ListedDestination(Destination(host, port), is_public)


@pytest.mark.parametrize(
    "text",
    [
        *("", "https://api.example", "api.example/path", "*.example", "api.example:", "a b"),
        *("api.example:0", "api.example:65536", "api.example:http", "user@api.example"),
        *("0.0.0.0:80", "[::]:80", "224.0.0.1:80", "fe80::1%lo", "[fe80::1%lo]:80", "1::2::3"),
        "127.53.53.53:53",
        *("bücher.example", "api.example\n", "-", "[api.example]:80", "api..example\0"),
    ],
)
def test_what_is_no_destination_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|valid|port|address"):
        parse_destination(text)


def resolving(found: Mapping[str, Sequence[str]]) -> Resolve:
    async def resolve(host: str, _: int) -> Sequence[str]:  # ruff: ignore[unused-async] - the system's is
        return found[host]

    return resolve


@pytest.mark.anyio
async def test_each_host_has_an_address_that_it_really_has_and_its_own_where_it_can() -> None:
    listed = [
        parse_destination(text)
        for text in ("a.example", "b.example", "a.example:80", "c.example", "127.0.0.1:9", "d.test")
    ]
    found = {
        "a.example": [SIX, FIRST],
        "b.example": [FIRST, SECOND],
        "c.example": [FIRST],
        "127.0.0.1": ["127.0.0.1"],
        "d.test": [SIX],
    }

    network = await resolve_network(listed, resolving(found))

    assert network.addresses == {
        "a.example": FIRST,
        "b.example": SECOND,
        "c.example": FIRST,
        "127.0.0.1": "127.0.0.1",
        "d.test": SIX,
    }
    assert network.sockets == (
        ("tcp", FIRST, 443),
        ("tcp", SECOND, 443),
        ("tcp", FIRST, 80),
        ("tcp", "127.0.0.1", 9),
        ("tcp", SIX, 443),
        ("udp", "127.53.53.53", 53),
        ("tcp", "127.53.53.53", 53),
    )
    local, *lines = network.hosts.splitlines()
    assert local.split()[:2] == ["127.0.0.1", "localhost"]
    assert lines == [
        f"{FIRST} a.example",
        f"{SECOND} b.example",
        f"{FIRST} c.example",
        f"{SIX} d.test",
    ]


@pytest.mark.anyio
async def test_a_host_without_a_permitted_address_is_an_error_that_says_what_to_write() -> None:
    found = {"db.internal": ["10.0.0.5"], "gone.example": [], "null.example": ["0.0.0.0"]}

    with pytest.raises(UnavailableError) as private:
        await resolve_network([parse_destination("db.internal")], resolving(found))
    with pytest.raises(UnavailableError) as gone:
        await resolve_network([parse_destination("gone.example")], resolving(found))
    with pytest.raises(UnavailableError) as null:
        await resolve_network([parse_destination("null.example:80")], resolving(found))
    named = await resolve_network([parse_destination("db.internal:443")], resolving(found))

    assert private.value.message == "`db.internal` has an address that is not public"
    assert private.value.hint == "`db.internal:443` permits any address"
    assert gone.value.message == "no address was found for `gone.example`"
    assert null.value.message == "`null.example` has no address that can be connected to"
    assert named.addresses == {"db.internal": "10.0.0.5"}
