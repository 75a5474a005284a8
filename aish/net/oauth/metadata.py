"""The documents of discovery: where they are, and what of them counts. Pure.

Those of a protected resource are of RFC 9728, those of an authorization server of RFC 8414 or of
OpenID Connect Discovery.
"""

import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from aish.core.frozen import frozen
from aish.core.json import JsonValue

RESOURCE_PATH: Final = "/.well-known/oauth-protected-resource"
_OAUTH: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"
_PORTS: Final = {"https": 443, "http": 80}


class UnusableMetadataError(Exception):
    """A document that must not be used; the text says why."""


@frozen
class ResourceMetadata:
    """The words of a server about itself: its name as a resource, who issues its tokens."""

    resource: str
    issuers: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None


@frozen
class IssuerMetadata:
    """An authorization server; `issuer` as it spells itself. An empty list says nothing.

    `challenge_methods` are how a code can be bound to its login (PKCE), `takes_client_documents`
    that a client id may be the URL of a document, `promises_issuer` that each answer of its login
    page names the issuer (RFC 9207).
    """

    issuer: str
    token_endpoint: str
    auth_methods: tuple[str, ...] = ()
    signing_algorithms: tuple[str, ...] = ()
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes: tuple[str, ...] = ()
    challenge_methods: tuple[str, ...] = ()
    takes_client_documents: bool = False
    promises_issuer: bool = False
    jwks_uri: str | None = None


@frozen
class MetadataPlace:
    """A URL that may hold the metadata of an issuer; `usual` if a standard names it."""

    url: str
    usual: bool = True


def resource_places(url: str) -> tuple[str, ...]:
    """The places of the metadata of an MCP server that does not name one."""
    base, path = _split(url)
    places = (f"{base}{RESOURCE_PATH}{path}", f"{base}{RESOURCE_PATH}")
    return tuple(dict.fromkeys(places))


def issuer_places(issuer: str) -> tuple[MetadataPlace, ...]:
    """The places of the metadata of an authorization server, in the order to ask."""
    base, path = _split(issuer)
    if not path:
        return MetadataPlace(f"{base}{_OAUTH}"), MetadataPlace(f"{base}{_OPENID}")
    return (
        MetadataPlace(f"{base}{_OAUTH}{path}"),
        MetadataPlace(f"{base}{_OPENID}{path}"),
        MetadataPlace(f"{base}{path}{_OPENID}"),
        MetadataPlace(f"{base}{path}{_OAUTH}", usual=False),
        MetadataPlace(f"{base}{_OAUTH}", usual=False),
    )


def bare_origin(url: str) -> str:
    """The origin of a URL, as text."""
    return _split(url)[0]


def canonical_resource(url: str) -> str:
    """The name of an MCP server as a resource: its URL without query and final slash."""
    return "".join(_split(url))


def read_resource_metadata(body: bytes, url: str) -> ResourceMetadata:
    """The metadata of the server with this URL.

    Raises:
        UnusableMetadataError: it is that of another server, or no metadata.
    """
    fields = _fields(body)
    resource = _text(fields, "resource") or canonical_resource(url)
    if not is_resource_of(resource, url):
        raise UnusableMetadataError(f"it is the metadata of `{resource}`, another server")
    return ResourceMetadata(
        resource,
        _texts(fields, "authorization_servers"),
        _texts(fields, "scopes_supported") or None,
    )


def read_issuer_metadata(body: bytes, issuer: str, *, any_slash: bool = False) -> IssuerMetadata:
    """The metadata of this authorization server; with `any_slash` its name may end with one more.

    Raises:
        UnusableMetadataError: it is that of another one, or no metadata.
    """
    fields = _fields(body)
    spelled = _text(fields, "issuer")
    is_same = spelled is not None and (
        is_same_issuer(spelled, issuer) or (any_slash and spelled.rstrip("/") == issuer.rstrip("/"))
    )
    if spelled is None or not is_same:
        said = "no issuer" if spelled is None else f"the issuer `{spelled}`"
        raise UnusableMetadataError(f"it names {said}, and not `{issuer}`")
    endpoint = _text(fields, "token_endpoint")
    if endpoint is None:
        raise UnusableMetadataError("it names no `token_endpoint`")
    return IssuerMetadata(
        spelled,
        endpoint,
        _texts(fields, "token_endpoint_auth_methods_supported"),
        _texts(fields, "token_endpoint_auth_signing_alg_values_supported"),
        _text(fields, "authorization_endpoint"),
        _text(fields, "registration_endpoint"),
        _texts(fields, "scopes_supported"),
        _texts(fields, "code_challenge_methods_supported"),
        fields.get("client_id_metadata_document_supported") is True,
        fields.get("authorization_response_iss_parameter_supported") is True,
        _text(fields, "jwks_uri"),
    )


def is_same_issuer(one: str, other: str) -> bool:
    """Return true if two issuers are spelled alike; a bare origin may end with a slash."""
    return one == other or _without_bare_slash(one) == _without_bare_slash(other)


def is_resource_of(resource: str, url: str) -> bool:
    """Return true if a resource is the server with this URL, or what it is a part of."""
    try:
        (base, path), (own, below) = _split(resource), _split(url)
        named = urlsplit(resource)
        is_same = origin_of(resource) == origin_of(url)
    except ValueError:
        return False
    is_bare = not named.query and not named.fragment and "@" not in named.netloc
    return bool(base and own) and is_bare and is_same and f"{below}/".startswith(f"{path}/")


def is_secure(url: str) -> bool:
    """Return true if secrets may be sent to a URL: it is https, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback_host(host))


def is_redirect(url: str) -> bool:
    """Return true if a browser may return there after a login: to a program of this machine."""
    parts = urlsplit(url) if is_secure(url) else None
    hosts = {"127.0.0.1", "::1", "localhost"}
    return (
        parts is not None and parts.scheme == "http" and parts.hostname in hosts and not parts.query
    )


def is_loopback_host(host: str) -> bool:
    """Return true if a host is this machine, by its name or its address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL.

    Raises:
        ValueError: it is none.
    """
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


def _split(url: str) -> tuple[str, str]:
    """The origin of a URL as it is written, in lower case, and its path without a final slash."""
    parts: SplitResult = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{host}", parts.path.rstrip("/")


def _without_bare_slash(issuer: str) -> str:
    return issuer[:-1] if issuer.count("/") == _SLASHES and issuer.endswith("/") else issuer


_SLASHES: Final = 3
"""Of a bare origin that ends with one."""


def _fields(body: bytes) -> Mapping[str, JsonValue]:
    try:
        found: JsonValue = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UnusableMetadataError("it is no JSON object")
    return found


def _text(fields: Mapping[str, JsonValue], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) and value else None


def _texts(fields: Mapping[str, JsonValue], name: str) -> tuple[str, ...]:
    return tuple(_each_text(fields.get(name)))


def _each_text(value: JsonValue) -> Iterator[str]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        yield from (one for one in value if isinstance(one, str) and one)
