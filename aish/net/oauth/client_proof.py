"""The proof of a client to a token endpoint that it is itself (RFC 6749, 2.3.1). Pure."""

from base64 import b64encode
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import quote_plus

from aish.core.frozen import frozen
from aish.net.oauth.settings import SecretPlace

_POST: Final = "client_secret_post"
_BASIC: Final = "client_secret_basic"


@frozen
class Proof:
    """The parts of it in the header and in the form of a token request."""

    headers: Mapping[str, str]
    fields: Mapping[str, str]


def pick_place(named: SecretPlace | None, methods: Collection[str]) -> SecretPlace:
    """Choose where the secret goes: as the file says, else as the server wants it.

    A server that says nothing wants `basic`, and its word against both forbids neither.
    """
    return named or ("post" if _POST in methods and _BASIC not in methods else "basic")


def second_place(
    first: SecretPlace, named: SecretPlace | None, methods: Collection[str], *words: str
) -> SecretPlace | None:
    """The other place of a refused id or secret that a form spells in another way."""
    is_altered = any(quote_plus(word) != word for word in words)
    return "post" if is_altered and first == "basic" and not named and _POST in methods else None


def prove_by_secret(place: SecretPlace, client_id: str, secret: str) -> Proof:
    """The secret at that place of a token request."""
    if place == "post":
        return Proof({}, {"client_id": client_id, "client_secret": secret})
    words = (client_id, secret)
    if place == "basic":
        words = (quote_plus(client_id), quote_plus(secret))
    return Proof({"authorization": f"Basic {b64encode(':'.join(words).encode()).decode()}"}, {})


def prove_by_assertion(client_id: str, assertion: str) -> Proof:
    """An assertion in the form of a token request."""
    kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    fields = {"client_assertion_type": kind, "client_assertion": assertion}
    return Proof({}, {"client_id": client_id, **fields})
