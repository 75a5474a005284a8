import json
from typing import Any

import pytest

from aish.net.oauth.metadata import (
    IssuerMetadata,
    ResourceMetadata,
    UnusableMetadataError,
    canonical_resource,
    is_resource_of,
    is_same_issuer,
    is_secure,
    issuer_places,
    read_issuer_metadata,
    read_resource_metadata,
    resource_places,
)

ISSUER = "https://login.example/tenant"
WELL = "https://login.example/.well-known"


def issuer_document(**changes: Any) -> bytes:
    fields = {"issuer": ISSUER, "token_endpoint": f"{ISSUER}/token", **changes}
    return json.dumps({k: v for k, v in fields.items() if v != "(none)"}).encode()


def test_the_places_of_an_issuer_with_a_path_come_in_the_order_of_the_standard() -> None:
    found = issuer_places(f"{ISSUER}/")
    assert [place.url for place in found] == [
        f"{WELL}/oauth-authorization-server/tenant",
        f"{WELL}/openid-configuration/tenant",
        f"{ISSUER}/.well-known/openid-configuration",
        f"{ISSUER}/.well-known/oauth-authorization-server",
        f"{WELL}/oauth-authorization-server",
    ]
    assert [place.usual for place in found] == [True, True, True, False, False]


@pytest.mark.parametrize("issuer", ["https://login.example", "https://login.example/"])
def test_a_bare_issuer_has_two_places(issuer: str) -> None:
    assert [place.url for place in issuer_places(issuer)] == [
        f"{WELL}/oauth-authorization-server",
        f"{WELL}/openid-configuration",
    ]


def test_the_places_of_a_resource() -> None:
    base = "https://h:8443/.well-known/oauth-protected-resource"
    assert resource_places("https://h:8443/a/mcp/?q=1") == (f"{base}/a/mcp", base)
    assert resource_places("https://u:p@h:8443/") == (base,)
    assert canonical_resource("https://H:8443/a/mcp/?q=1#x") == "https://h:8443/a/mcp"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://h", "https://h/", True), ("https://h/", "https://h/", True),
        ("https://h/a", "https://h/a/", False), ("https://h", "https://H", False),
        ("https://h", "https://h:443", False), ("https://h", "http://h", False),
        ("https://h/a", "https://h/b", False), ("https://h", "https://h//", False),
    ],
)  # fmt: skip
def test_issuers_are_compared_exactly_but_for_the_slash_of_a_bare_origin(
    one: str, other: str, *, same: bool
) -> None:
    assert is_same_issuer(one, other) is is_same_issuer(other, one) is same


@pytest.mark.parametrize(
    ("resource", "url", "ok"),
    [
        ("https://h/mcp", "https://h/mcp", True), ("https://h/mcp/", "https://h/mcp", True),
        ("https://h/mcp", "https://h/mcp/", True), ("https://h", "https://h/mcp", True),
        ("https://h/", "https://h/mcp", True), ("https://h:443/mcp", "https://h/mcp", True),
        ("https://H/mcp", "https://h/mcp", True), ("https://h/mc", "https://h/mcp", False),
        ("https://h/mcp/x", "https://h/mcp", False), ("https://g/mcp", "https://h/mcp", False),
        ("http://h/mcp", "https://h/mcp", False), ("https://h:8443/mcp", "https://h/mcp", False),
        ("https://h@g/mcp", "https://g/mcp", False), ("https://h/mcp#x", "https://h/mcp", False),
        ("https://h/mcp?x", "https://h/mcp", False), ("urn:mcp", "https://h/mcp", False),
        ("https://h:x/mcp", "https://h/mcp", False), ("https://[/mcp", "https://h/mcp", False),
    ],
)  # fmt: skip
def test_a_resource_is_the_server_or_what_it_is_a_part_of(
    resource: str, url: str, *, ok: bool
) -> None:
    assert is_resource_of(resource, url) is ok


@pytest.mark.parametrize(
    ("url", "ok"),
    [
        ("https://h", True), ("http://localhost:1/x", True), ("http://127.0.0.9", True),
        ("http://[::1]:8", True), ("http://a.localhost", True), ("http://h", False),
        ("http://localhost.evil.example", False), ("http://10.0.0.1", False), ("ftp://h", False),
        ("https://u@h", False), ("https://h#f", False), ("https://", False), ("h", False),
        ("https://h:99999", False), ("http://0.0.0.0", False), ("", False),
    ],
)  # fmt: skip
def test_secrets_go_to_https_or_to_this_machine(url: str, *, ok: bool) -> None:
    assert is_secure(url) is ok


def test_the_metadata_of_an_issuer_is_read_leniently_where_that_does_no_harm() -> None:
    body = issuer_document(
        token_endpoint_auth_methods_supported=["client_secret_post", None, 3],
        token_endpoint_auth_signing_alg_values_supported=None,
        scopes_supported={"a": 1},
        jwks_uri="",
    )
    assert read_issuer_metadata(body, ISSUER) == IssuerMetadata(
        ISSUER, f"{ISSUER}/token", ("client_secret_post",)
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (issuer_document(issuer="https://login.example/other"),
         "it names the issuer `https://login.example/other`, and not"),
        (issuer_document(issuer=f"{ISSUER}/"), f"the issuer `{ISSUER}/`, and not `{ISSUER}`"),
        (issuer_document(issuer=None), "it names no issuer"),
        (issuer_document(issuer=["x"]), "it names no issuer"),
        (issuer_document(token_endpoint=""), "it names no `token_endpoint`"),
        (b"<html>", "no JSON object"), (b"[]", "no JSON object"), (b"\xff\xfe", "no JSON object"),
        (b"[" * 100_000, "no JSON object"), (b"", "no JSON object"),
    ],
)  # fmt: skip
def test_the_metadata_of_somebody_else_is_not_used(body: bytes, why: str) -> None:
    with pytest.raises(UnusableMetadataError) as caught:
        read_issuer_metadata(body, ISSUER)
    assert why in str(caught.value)


def test_the_metadata_of_a_resource() -> None:
    body = json.dumps(
        {
            "resource": "https://h/",
            "authorization_servers": ["https://a", None, "", "https://b"],
            "scopes_supported": [],
        }
    ).encode()
    assert read_resource_metadata(body, "https://h/mcp") == ResourceMetadata(
        "https://h/", ("https://a", "https://b"), None
    )
    assert (
        read_resource_metadata(b'{"resource": null}', "https://h/mcp/").resource == "https://h/mcp"
    )
    with pytest.raises(UnusableMetadataError, match="another server"):
        read_resource_metadata(b'{"resource": "https://evil"}', "https://h/mcp")
