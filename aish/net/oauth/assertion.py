"""The assertion by which a client with a private key proves who it is (RFC 7523).

Needs the extra `oauth`; imported only for a client that has a key.
"""

import json
import uuid
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jwt import encode

PrivateKey: TypeAlias = Key
_SECONDS: Final = 60
_SLOW_CLOCK: Final = 5
"""Seconds by which the clock of the server may be behind ours; many allow it none."""
_KINDS: Final[Mapping[str, type[RSAKey | ECKey | OKPKey]]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}
_ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "PS256", "RS384", "RS512", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA", "Ed25519"),
}
"""What a key can sign with, by its kind or its curve; the first is used where nothing is said."""


class UnusableKeyError(Exception):
    """A file that has no private key for an assertion; the text says why."""


def read_private_key(path: Path) -> tuple[str, PrivateKey]:
    """The text of a file with a private key, as PEM or as a JWK, and the key.

    Raises:
        UnusableKeyError: it cannot be read, or has none.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return text, _jwk(json.loads(text)) if text.lstrip().startswith("{") else _pem(text)
    except (OSError, ValueError, TypeError, RecursionError, JoseError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise UnusableKeyError(
            why or "it is no private key (PEM without a password, or a JWK)"
        ) from error


def sign_assertion(
    key: PrivateKey,
    *,
    client_id: str,
    audience: str,
    now: float,
    algorithms: Collection[str],
    key_id: str | None,
) -> str:
    """A new assertion, valid for less than a minute, by an algorithm that the server takes.

    Raises:
        UnusableKeyError: it takes none for a key of this kind.
    """
    header = {"alg": _algorithm(key, algorithms), "typ": "JWT"}
    if key_id or key.kid:
        header["kid"] = key_id or key.kid or ""
    begin = int(now) - _SLOW_CLOCK
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "iat": begin,
        "exp": begin + _SECONDS,
        "jti": str(uuid.uuid4()),
    }
    with warnings.catch_warnings():
        # It has `EdDSA` renamed, and hardly a server knows the new name.
        warnings.simplefilter("ignore", SecurityWarning)
        signed: str = encode(header, claims, key, algorithms=[header["alg"]])
    return signed


def _algorithm(key: PrivateKey, wanted: Collection[str]) -> str:
    usable = _ALGORITHMS.get(key.key_type) or _ALGORITHMS.get(
        str(getattr(key, "curve_name", "")), ()
    )
    for algorithm in usable:
        if not wanted or algorithm in wanted:
            return algorithm
    raise UnusableKeyError(f"the server takes {', '.join(wanted) or 'no key of its kind'}")


def _jwk(found: Any) -> PrivateKey:
    key = _KINDS[found["kty"]].import_key(found) if found.get("kty") in _KINDS else None
    if key is None or not key.is_private:
        raise ValueError("no private key")
    return key


def _pem(text: str) -> PrivateKey:
    match load_pem_private_key(text.encode(), password=None):
        case RSAPrivateKey():
            return RSAKey.import_key(text)
        case EllipticCurvePrivateKey():
            return ECKey.import_key(text)
        case Ed25519PrivateKey():
            return OKPKey.import_key(text)
        case _:
            raise ValueError("another kind of key")
