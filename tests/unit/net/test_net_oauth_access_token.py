"""Which tokens of an issuer are good, by which of its keys, and when its keys are fetched."""

import json
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

pytest.importorskip("joserfc")

from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from model_endpoint import PATIENCE, json_reply
from samples import each_case
from token_issuer import TokenIssuer, new_key, sign

from aish.net.oauth.access_token import (
    BadTokenError,
    Expected,
    UnknownKeyError,
    read_keys,
    read_token,
)
from aish.net.oauth.discovery import find_issuer_metadata
from aish.net.oauth.failure import LoginError
from aish.net.oauth.issuer_keys import COOL_DOWN, MOST_WAITING, IssuerKeys
from aish.net.oauth.requests import OAuthClient

NOW = 1_790_000_000
EXPECTED = Expected("https://id.example", ("https://tools.example/mcp",))
CLAIMS = {
    "iss": "https://id.example",
    "aud": ["other", "https://tools.example/mcp"],
    "sub": "ada",
    "exp": NOW + 60,
}


def jwks(*keys: Any) -> bytes:
    """A set of keys, of which each is one or is spelled out."""
    rows = [key if isinstance(key, dict) else key.as_dict(private=False) for key in keys]
    return json.dumps({"keys": rows}).encode()


RSA = RSAKey.generate_key(2048, {"kid": "r"})


@each_case(
    "key, algorithm",
    [
        (RSA, "RS256"),
        (RSA, "PS512"),
        (ECKey.generate_key("P-256", {"kid": "e"}), "ES256"),
        (ECKey.generate_key("P-384", {"kid": "e"}), "ES384"),
        (ECKey.generate_key("P-521", {"kid": "e"}), "ES512"),
        (OKPKey.generate_key("Ed25519", {"kid": "o"}), "EdDSA"),
    ],
)
def test_a_token_of_each_usual_algorithm_is_read(key: Any, algorithm: str) -> None:
    claims = {**CLAIMS, "scope": "a b", "scp": ["b", "c", 7], "azp": "app"}
    token = sign(claims, key, alg=algorithm, x5t="of-the-issuer", typ=None)

    found = read_token(token, read_keys(jwks(key)), EXPECTED, NOW)

    assert (found.subject, found.client_id, found.expires) == ("ada", "app", NOW + 60)
    assert found.scopes == {"a", "b", "c"}


def test_a_key_that_is_for_something_else_verifies_nothing() -> None:
    plain = new_key("k").as_dict(private=False)
    others = [
        {**plain, "use": "enc"},
        {**plain, "use": ["sig"]},
        {**plain, "crv": {}},
        {**plain, "key_ops": ["encrypt"]},
        {**plain, "alg": "ES384"},
        {**plain, "alg": []},
        {**plain, "kty": "quantum"},
        {**plain, "crv": "P-999"},
        {"kty": "EC"},
        OctKey.generate_key(256, {"kid": "k"}).as_dict(private=True),
        "no key",
    ]
    small = {"kty": "RSA", "kid": "k", "n": "wQ" * 85, "e": "AQAB"}
    assert read_keys(json.dumps({"keys": [*others, small]}).encode()) == ()
    used = {**plain, "use": "sig", "key_ops": ["verify"], "alg": "ES256"}
    (good,) = read_keys(jwks(*others[:2] * 100, used))
    assert good.algorithms == ("ES256",)
    # A private key that an issuer gives away is used as the public one that it contains.
    (public,) = read_keys(jwks(new_key("k").as_dict(private=True)))
    assert not public.key.is_private


@each_case(
    "body, said",
    [
        (b"[]", "no list `keys`"),
        (b'{"keys": "x"}', "no list `keys`"),
        (b"{", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_what_is_no_set_of_keys_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said or None):
        read_keys(body)


@each_case(
    "claims, ok",
    [
        ({"exp": NOW - 29}, True),
        ({"exp": NOW - 30}, False),
        ({"iat": NOW + 30}, True),
        ({"iat": NOW + 31}, False),
        ({"nbf": NOW + 30.0}, True),
        ({"nbf": NOW + 31}, False),
        ({"exp": True}, False),
        ({"exp": 1e300}, False),
        ({"iat": 10**400}, False),
        ({"sub": "x" * 256}, False),
    ],
)
def test_times_have_a_leeway_of_30_seconds(claims: Any, ok: bool) -> None:  # ruff: ignore[boolean-type-hint-positional-argument] - of a table
    key = new_key("k")
    token = sign({**CLAIMS, **claims}, key)

    if ok:
        assert read_token(token, read_keys(jwks(key)), EXPECTED, NOW).subject == "ada"
        return
    with pytest.raises(BadTokenError) as refused:
        read_token(token, read_keys(jwks(key)), EXPECTED, NOW)
    if claims.get("iat") == NOW + 31:
        assert "the clocks differ by 31 seconds, and 30 are allowed" in str(refused.value)


def test_names_that_cannot_be_encoded_are_refused() -> None:
    key = new_key("k")
    for name in ("sub", "client_id"):
        token = sign({**CLAIMS, name: "a\ud800"}, key)
        with pytest.raises(BadTokenError, match=f"`{name}` of the token has half"):
            read_token(token, read_keys(jwks(key)), EXPECTED, NOW)


def test_a_token_without_a_kid_may_be_of_any_key_and_of_a_new_one() -> None:
    first, second = new_key("1"), new_key("2")
    token = sign(CLAIMS, second, kid=None)

    assert read_token(token, read_keys(jwks(first, second)), EXPECTED, NOW).subject == "ada"
    with pytest.raises(UnknownKeyError):
        read_token(token, read_keys(jwks(first)), EXPECTED, NOW)
    # One that names a key is of that, or of none.
    with pytest.raises(BadTokenError) as forged:
        read_token(sign(CLAIMS, second, kid="1"), read_keys(jwks(first)), EXPECTED, NOW)
    assert not isinstance(forged.value, UnknownKeyError)


@dataclass
class HandClock:
    """A clock that a test moves."""

    time: float = 1000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def test_many_unknown_keys_are_one_fetch_in_a_while_and_an_ordinary_one_counts_not() -> None:
    told: list[str | None] = []
    clock = HandClock()

    async def scene(issuer: TokenIssuer) -> list[tuple[int, int]]:
        keys = IssuerKeys(OAuthClient(issuer.origin), f"{issuer.origin}/jwks", clock, told.append)
        counts = []

        async def crowd() -> None:
            waits = [keys.look_again() for _ in range(50)]
            async with anyio.create_task_group() as waiting:
                for wait in waits:
                    if wait is not None:
                        waiting.start_soon(wait)
            counts.append((sum(wait is not None for wait in waits), issuer.fetches))

        await keys.fetch()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keys.stay_current)
            await crowd()
            await crowd()
            clock.time += COOL_DOWN
            issuer.jwks = json_reply(200, {"keys": []})
            await crowd()
            assert len(keys.known) == 1
            clock.time += COOL_DOWN
            issuer.jwks = None
            await crowd()
            tasks.cancel_scope.cancel()
        return counts

    with TokenIssuer() as issuer:
        counts = anyio.run(scene, issuer)

    assert counts == [(MOST_WAITING, 2), (0, 2), (MOST_WAITING, 3), (MOST_WAITING, 4)]
    assert told == [f"`{issuer.origin}/jwks` has no key that can verify a signature", None]


def test_a_fault_in_a_fetch_lets_nobody_wait_and_is_told_once() -> None:
    told: list[str | None] = []

    async def resolve(host: str, port: int) -> list[str]:  # ruff: ignore[unused-async] - `Resolve`
        raise RuntimeError(f"no {host}:{port}")

    async def scene() -> None:
        clock, client = HandClock(), OAuthClient("https://id.example", resolve=resolve)
        keys = IssuerKeys(client, "https://id.example/jwks", clock, told.append)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keys.stay_current)
            for _ in range(2):
                wait = keys.look_again()
                assert wait is not None
                with anyio.fail_after(PATIENCE):
                    await wait()
                assert keys.is_failing
                clock.time += COOL_DOWN
            tasks.cancel_scope.cancel()

    anyio.run(scene)

    assert told == ["RuntimeError('no id.example:443'), a bug in aish"]


def test_keys_at_a_private_address_are_not_fetched_for_an_issuer_of_the_internet() -> None:
    async def resolve(host: str, _port: int) -> list[str]:  # ruff: ignore[unused-async] - `Resolve`
        return {"id.example": ["93.184.216.34"]}.get(host, ["10.0.0.7"])

    client = OAuthClient("https://id.example", resolve=resolve)
    keys = IssuerKeys(client, "https://keys.example/jwks", HandClock(), lambda _: None)

    with pytest.raises(LoginError, match=r"nearer than the server `id\.example`"):
        anyio.run(keys.fetch)


def test_an_issuer_with_a_path_may_be_spelled_with_one_more_slash() -> None:
    async def scene(origin: str, named: str) -> str:
        client = OAuthClient(origin)
        found = await find_issuer_metadata(client, named, lambda *_: None, hint="", any_slash=True)
        assert found.jwks_uri == f"{origin}/jwks"
        return found.issuer

    with TokenIssuer(path="/realms/team") as issuer:
        issuer.metadata["issuer"] = f"{issuer.origin}/realms/team/"
        assert anyio.run(scene, issuer.origin, issuer.issuer) == f"{issuer.issuer}/"
        issuer.metadata["issuer"] = f"{issuer.origin}/realms/other"
        with pytest.raises(LoginError, match="and not"):
            anyio.run(scene, issuer.origin, issuer.issuer)
