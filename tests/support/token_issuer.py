"""An issuer whose tokens a test makes as it likes; its keys are real, and it is a real HTTP server.

with TokenIssuer() as issuer:
    token = issuer.token("tools:read", sub="ada")
"""

import json
import ssl
import time
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry, serialize_compact
from model_endpoint import Recorded, Reply, json_reply
from oauth_servers import AuthorizationServer, basic_of, refusal, token_answer

AUDIENCE = "https://tools.example.com/mcp"
Key = RSAKey | ECKey | OctKey | OKPKey


def new_key(kid: str) -> ECKey:
    """A key that signs by ES256."""
    return ECKey.generate_key("P-256", {"kid": kid})


def sign(claims: Any, key: Key, **header: Any) -> str:
    """A JWT; a header of `None` is left out."""
    usual = {"alg": "ES256", "typ": "at+jwt", "kid": key.kid}
    found = {name: one for name, one in {**usual, **header}.items() if one is not None}
    registry = JWSRegistry(algorithms=[found["alg"]], strict_check_header=False)
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    with warnings.catch_warnings():
        # It has `EdDSA` renamed.
        warnings.simplefilter("ignore", SecurityWarning)
        made: str = serialize_compact(found, payload, key, registry=registry)
    return made


def forge(header: Any, claims: Any, signature: bytes = b"") -> str:
    """A token of which nothing was signed."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


class TokenIssuer(AuthorizationServer):
    """Has its keys at `/jwks`, or answers there by `jwks`."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._tls = tls
        self.keys: list[Key] = [new_key("first")]
        self.jwks: Reply | None = None

    @property
    def fetches(self) -> int:
        """How often its keys were asked for."""
        return self.asked_for.count("/jwks")

    def document(self) -> dict[str, Any]:
        own = {"jwks_uri": f"{self.origin}/jwks", **super().document()}
        return {name: one for name, one in own.items() if self.metadata.get(name, one) is not None}

    def claims(self, scope: Any = None, **changes: Any) -> dict[str, Any]:
        """The claims of a token; what is `None` is left out."""
        now = int(time.time())
        usual = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": "ada",
            "client_id": "nightly",
            "iat": now,
            "exp": now + 3600,
            "scope": scope,
        }
        return {name: one for name, one in {**usual, **changes}.items() if one is not None}

    def token(self, scope: Any = None, **changes: Any) -> str:
        """A token that its newest key has signed."""
        return sign(self.claims(scope, **changes), self.keys[-1])

    def _handle(self, request: Recorded) -> Reply:
        if request.path == "/jwks":
            keys = [key.as_dict(private=False) for key in self.keys]
            return self.jwks or json_reply(200, {"keys": keys})
        return super()._handle(request)


class ProgramIssuer(TokenIssuer):
    """Gives programs tokens of its own: each of `granted` those of the scopes that it asks for.

    The secret of a client is `secret-of-` and its name.
    """

    def __init__(self, granted: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self._granted = granted

    def _handle(self, request: Recorded) -> Reply:
        if request.method != "POST":
            return super()._handle(request)
        client, secret = basic_of(request)
        if client not in self._granted or secret != f"secret-of-{client}":
            return refusal("invalid_client", status=401)
        allowed = self._granted[client].split()
        form = dict(parse_qsl(request.body.decode()))
        scope = " ".join(one for one in form.get("scope", "").split() if one in allowed)
        return token_answer(self.token(scope, sub=client, client_id=client), scope=scope)


@contextmanager
def issuer_for_programs() -> Generator[str]:
    """The URL of an issuer that knows two programs."""
    granted = {"nightly": "tools:read", "release": "tools:read tools:write"}
    with ProgramIssuer(granted, scopes_supported=["tools:read", "tools:write"]) as issuer:
        yield issuer.origin
