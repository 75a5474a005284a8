"""Registers a client by itself at an authorization server (RFC 7591)."""

import json
from collections.abc import Collection
from typing import Final

from aish.core.frozen import frozen
from aish.net.oauth.failure import LoginError, quote
from aish.net.oauth.metadata import is_secure
from aish.net.oauth.requests import FetchedPage, OAuthClient
from aish.net.oauth.settings import SecretPlace

_GOOD: Final = frozenset({200, 201})
_REFUSED: Final = 400
_PUBLIC: Final = "none"
_PLACES: Final[dict[str, SecretPlace]] = {
    "client_secret_post": "post",
    "client_secret_basic": "basic",
}


@frozen
class RegisteredClient:
    """A client as it was registered; `expires` is when its secret does, in seconds, 0 never."""

    client_id: str
    secret: str | None = None
    token_auth: SecretPlace | None = None
    expires: float = 0.0


async def register(
    client: OAuthClient, endpoint: str, redirect_url: str, methods: Collection[str]
) -> RegisteredClient:
    """Register a public client; a server that gives it a secret all the same is obeyed.

    `methods` are those by which clients prove themselves there.

    Raises:
        LoginError: it registers none.
    """
    place = f"`{quote(endpoint)}`"
    if not is_secure(endpoint):
        raise LoginError(
            f"no client is registered at {place}: it is not https, nor of this machine"
        )
    page = await _ask(client, endpoint, redirect_url, _PUBLIC)
    listed = next((method for method in _PLACES if method in methods), None)
    if page.status == _REFUSED and listed is not None and _PUBLIC not in methods:
        # Most servers register public clients whatever they list; authlib's do not.
        page = await _ask(client, endpoint, redirect_url, listed)
    try:
        fields = json.loads(page.body)
    except (ValueError, RecursionError):
        fields = None
    fields = fields if isinstance(fields, dict) else {}
    id = fields.get("client_id")
    if page.status not in _GOOD or not isinstance(id, str) or not _is_plain(id):
        error, said = fields.get("error"), fields.get("error_description")
        words = " ".join(f"{one}" for one in (error, said) if isinstance(one, str) and one)
        why = quote(words or page.body.decode("utf-8", "replace").strip())
        raise LoginError(
            f"no client is registered at {place}: HTTP {page.status} {why}: register one there for"
            f" `{redirect_url}`, and write its `client_id`"
        )
    return _read(id, fields, methods)


async def _ask(client: OAuthClient, endpoint: str, redirect_url: str, method: str) -> FetchedPage:
    # No scopes: half of the servers refuse a registration that has some.
    asked = {
        "client_name": "aish",
        "application_type": "native",
        "redirect_uris": [redirect_url],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }
    body = json.dumps(asked).encode()
    return await client.post(endpoint, {"content-type": "application/json"}, body)


def _is_plain(text: str) -> bool:
    """Return true for an id or a secret as RFC 6749 has them: some text in ASCII."""
    return bool(text) and text.isascii() and text.isprintable()


def _read(id: str, fields: dict[str, object], methods: Collection[str]) -> RegisteredClient:
    secret, method = fields.get("client_secret"), fields.get("token_endpoint_auth_method")
    if not isinstance(secret, str) or not _is_plain(secret) or method == _PUBLIC:
        return RegisteredClient(id)
    known = _PLACES.get(method) if isinstance(method, str) else None
    place = known or ("post" if "client_secret_post" in methods else "basic")
    expires = fields.get("client_secret_expires_at")
    is_time = isinstance(expires, (int, float)) and not isinstance(expires, bool)
    return RegisteredClient(id, secret, place, float(str(expires)) if is_time else 0.0)
