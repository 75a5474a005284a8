"""Judges an access token that an issuer has signed: a JWT, as RFC 9068 has it.

Needs the extra `oauth`; imported only by a server that takes such tokens. Only the signature is
left to the library: which algorithm and which key may verify it is decided here, and not by the
token.
"""

import warnings
from base64 import b64decode
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry, deserialize_compact

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, strict_json
from aish.core.phrases import backticked
from aish.core.text import safe_utf8
from aish.net.oauth.failure import quote

LEEWAY: Final = 30
"""Seconds by which the clocks of this server and of an issuer may differ."""
_MOST_KEYS: Final = 100
_LONGEST_NAME: Final = 255
_LATEST: Final = 1e12
"""Seconds since the epoch from which on a number is no time."""
_SHORTEST_RSA: Final = 2048
_LONGEST_HEADER: Final = 16 * 1024
_PARTS: Final = 3
_ENCRYPTED_PARTS: Final = 5
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": _RSA,
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA", "Ed25519"),
}
"""What a key verifies, by its kind or its curve; no secret that two sides share is among them."""
_TAKEN: Final = frozenset(name for names in _ALGORITHMS.values() for name in names)
_KINDS: Final[Mapping[str, tuple[type[RSAKey | ECKey | OKPKey], tuple[str, ...]]]] = {
    "RSA": (RSAKey, ("kty", "n", "e")),
    "EC": (ECKey, ("kty", "crv", "x", "y")),
    "OKP": (OKPKey, ("kty", "crv", "x")),
}
"""The keys that are used, and the public members of each."""


class BadTokenError(Exception):
    """A token that lets nobody in; the text says why."""


class UnknownKeyError(BadTokenError):
    """The token may be good: it is signed by a key that is not known."""


@frozen
class VerificationKey:
    """A public key of an issuer, and the algorithms that it verifies."""

    kid: str | None
    algorithms: tuple[str, ...]
    key: RSAKey | ECKey | OKPKey


@frozen
class AccessToken:
    """The claims of a token that was verified; `expires` and the other times are of its issuer."""

    subject: str
    client_id: str
    scopes: frozenset[str]
    expires: float


@frozen
class Expected:
    """The claims that a token must have."""

    issuer: str
    audience: tuple[str, ...]


def read_keys(body: bytes) -> tuple[VerificationKey, ...]:
    """The keys of a JWK set that can verify a signature; the others are passed over.

    Raises:
        ValueError: it is no JWK set.
    """
    try:
        found = strict_json(body.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    keys = found.get("keys") if isinstance(found, Mapping) else None
    if keys is None or isinstance(keys, str) or not isinstance(keys, Sequence):
        message = "it is no JWK set: it has no list `keys`"
        raise ValueError(message)
    read = (_read_key(key) for key in keys if isinstance(key, Mapping))
    return tuple(islice((key for key in read if key is not None), _MOST_KEYS))


def _read_key(fields: JsonObject) -> VerificationKey | None:
    kind, members = _KINDS.get(str(fields.get("kty")), (None, ()))
    use, operations = fields.get("use"), fields.get("key_ops")
    is_for_other = (use is not None and use != "sig") or (
        isinstance(operations, Sequence) and "verify" not in operations
    )
    if kind is None or is_for_other:
        return None
    public: Any = {name: fields[name] for name in members if name in fields}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            key = kind.import_key(public)
            name = key.key_type if isinstance(key, RSAKey) else str(key.curve_name)
            if isinstance(key, RSAKey) and key.raw_value.key_size < _SHORTEST_RSA:
                return None
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    own, kid = fields.get("alg"), fields.get("kid")
    algorithms = tuple(one for one in _ALGORITHMS.get(name, ()) if own is None or own == one)
    if not algorithms:
        return None
    return VerificationKey(kid if isinstance(kid, str) else None, algorithms, key)


def read_token(
    value: str, keys: Iterable[VerificationKey], expected: Expected, now: float
) -> AccessToken:
    """The claims of a token, once everything about it is right.

    Raises:
        UnknownKeyError: none of the keys is that of the token.
        BadTokenError: the token lets nobody in.
    """
    parts = value.split(".")
    if len(parts) == _ENCRYPTED_PARTS:
        raise BadTokenError("the token is encrypted, and only signed ones are taken")
    if len(parts) != _PARTS:
        raise BadTokenError("the token is no JWT, and not one of this server")
    header = _object(parts[0], "header")
    algorithm, kid = header.get("alg"), header.get("kid")
    _check_header(header)
    assert isinstance(algorithm, str), "the header was checked"
    fitting = [key for key in keys if algorithm in key.algorithms]
    if kid is not None:
        fitting = [key for key in fitting if key.kid == kid]
    if not fitting:
        which = "no `kid`" if kid is None else f"the `kid` `{quote(str(kid))}`"
        raise UnknownKeyError(f"the issuer has no key for the token, which has {which}")
    if not any(_verifies(value, algorithm, key) for key in fitting):
        # Without a `kid` a new key looks like this.
        failure = BadTokenError if kid is not None else UnknownKeyError
        raise failure("the signature of the token is not by a key of the issuer")
    return _read_claims(_object(parts[1], "claims"), expected, now)


def _check_header(header: JsonObject) -> None:
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in _TAKEN:
        said = "names no algorithm" if algorithm is None else f"is signed by `{_word(algorithm)}`"
        taken = backticked(sorted(_TAKEN))
        raise BadTokenError(f"the token {said}, and only {taken} are taken")
    if "crit" in header:
        raise BadTokenError(f"the token has critical headers ({_word(header['crit'])})")
    if header.get("b64", True) is not True:
        raise BadTokenError("the token has the header `b64`, which no JWT has")
    kind = header.get("typ")
    if kind is not None and not (isinstance(kind, str) and kind.lower() in _TYPES):
        raise BadTokenError(f"the token is of the type `{_word(kind)}`, and no access token")
    if not isinstance(header.get("kid"), str | None):
        raise BadTokenError("the `kid` of the token is no text")


def _verifies(value: str, algorithm: str, key: VerificationKey) -> bool:
    # Issuers have headers of their own, and certificates in them.
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = _LONGEST_HEADER
    try:
        with warnings.catch_warnings():
            # It has `EdDSA` renamed, and hardly an issuer knows the new name.
            warnings.simplefilter("ignore", SecurityWarning)
            deserialize_compact(value, key.key, registry=registry)
    except (JoseError, ValueError, TypeError):
        return False
    return True


def _read_claims(claims: JsonObject, expected: Expected, now: float) -> AccessToken:
    issuer, audience = claims.get("iss"), claims.get("aud")
    if issuer != expected.issuer:
        said = "no issuer" if issuer is None else f"the issuer `{_word(issuer)}`"
        raise BadTokenError(f"the token names {said} (`iss`), and not `{expected.issuer}`")
    named = audience if isinstance(audience, list) else [audience]
    if not any(one in expected.audience for one in named if isinstance(one, str)):
        said = "nobody" if audience is None else backticked(map(_word, named), 3)
        wanted = backticked(expected.audience, 3)
        raise BadTokenError(f"the token is for {said} (`aud`), and not for {wanted}")
    if "cnf" in claims:
        message = "the token is bound to a key (`cnf`), and the proof of that is not taken here"
        raise BadTokenError(message)
    expires = _check_times(claims, now)
    client_id = _name(claims, "client_id") or _name(claims, "azp")
    subject = _name(claims, "sub") or client_id
    if not subject:
        raise BadTokenError("the token names nobody: it has neither `sub` nor `client_id`")
    scopes = frozenset([*_scopes(claims, "scope"), *_scopes(claims, "scp")])
    return AccessToken(subject, client_id, scopes, expires)


def _check_times(claims: JsonObject, now: float) -> float:
    """The time at which the token expires, if it is good now."""
    expires, begins, issued = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None:
        raise BadTokenError("the token never expires: it has no `exp`")
    if expires + LEEWAY <= now:
        raise BadTokenError(f"the token expired {now - expires:.0f} seconds ago (`exp`)")
    for name, time, said in (("iat", issued, "was issued"), ("nbf", begins, "is good only")):
        if time is not None and time > now + LEEWAY:
            ahead = f"{time - now:.0f} seconds"
            text = f"the token {said} {ahead} from now (`{name}`): the clocks differ by {ahead}"
            raise BadTokenError(f"{text}, and {LEEWAY} are allowed")
    return expires


def _time(claims: JsonObject, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LATEST:
        raise BadTokenError(f"`{name}` of the token is no time")
    return float(value)


def _name(claims: JsonObject, name: str) -> str:
    value = claims.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise BadTokenError(f"`{name}` of the token is no text of {_LONGEST_NAME} characters")
    if safe_utf8(value) != value:
        raise BadTokenError(f"`{name}` of the token has half of a character in it")
    return value


def _scopes(claims: JsonObject, name: str) -> Collection[str]:
    value = claims.get(name)
    if isinstance(value, str):
        return value.split()
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else ()


def _object(part: str, what: str) -> JsonObject:
    try:
        raw = b64decode(f"{part}{'=' * (-len(part) % 4)}", altchars=b"-_", validate=True)
        found = strict_json(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise BadTokenError(f"the {what} of the token cannot be read")
    return found


def _word(value: JsonValue) -> str:
    return quote(value if isinstance(value, str) else str(value))
