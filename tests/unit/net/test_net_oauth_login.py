"""When a token is renewed, by a clock of the test."""

import subprocess
import sys
from collections.abc import Sequence
from typing import cast

import anyio
import pytest
from mcp_emulators import McpEndpoint
from model_endpoint import Gate, json_reply

from aish.net.oauth.challenges import AuthChallenge
from aish.net.oauth.client_credentials import ClientCredentials
from aish.net.oauth.discovery import discover
from aish.net.oauth.failure import LoginError
from aish.net.oauth.login import Login
from aish.net.oauth.login_site import SecretMask, open_site
from aish.net.oauth.settings import Credentials, OAuthSettings
from aish.net.oauth.token_answer import IssuedToken


class Flow:
    """Issues what it is told to; then it fails."""

    issuer = "https://login.example"
    listed_scopes = ()
    site = open_site(
        "https://notes.example/mcp",
        Credentials(OAuthSettings()),
        name="notes",
        verify_server=True,
        seconds=30,
        secret_mask=SecretMask(lambda _name, _value: None, str),
        notice=lambda _code, _text: None,
    )

    def __init__(self, *lives: float | None) -> None:
        self.lives = list(lives)
        self.issued = 0

    async def is_ready(self) -> bool:
        return False

    async def usual_scopes(self, _: AuthChallenge) -> tuple[str, ...]:
        return ()

    async def issue(self, scopes: Sequence[str], _: AuthChallenge) -> IssuedToken:
        if "never" in scopes:
            raise LoginError("no such scope")
        if not self.lives:
            raise LoginError("the issuer is down")
        self.issued += 1
        return IssuedToken(f"token-{self.issued}", self.lives.pop(0), None)


def tokens_at(flow: Flow, *times: float) -> list[str]:
    """The tokens that are sent at these times after the login, or why there is none."""
    now = [0.0]

    async def scene() -> list[str]:
        login = Login(cast("ClientCredentials", flow), lambda: now[0])
        assert await login.current() is None
        await login.log_in(None, AuthChallenge())
        found = []
        for now[0] in times:
            try:
                token = await login.current()
                found.append("" if token is None else token.value)
            except LoginError as error:
                found.append(str(error))
        return found

    return anyio.run(scene)


def test_a_login_with_a_secret_imports_no_library_for_keys() -> None:
    program = """
import sys, aish.net.oauth.transport
print(sorted({"authlib", "joserfc", "cryptography", "requests"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


@pytest.mark.parametrize(
    ("life", "times", "tokens"),
    [
        (600.0, (0, 539, 541), ["token-1", "token-1", "token-2"]),
        (20.0, (0, 9, 11), ["token-1", "token-1", "token-2"]),
        (None, (0, 1e6), ["token-1", "token-1"]),
    ],
)
def test_a_token_is_renewed_a_minute_early_or_at_half_its_life(
    life: float | None, times: tuple[float, ...], tokens: list[str]
) -> None:
    assert tokens_at(Flow(life, 600.0), *times) == tokens


def test_a_token_is_used_to_its_end_if_it_cannot_be_renewed_before() -> None:
    assert tokens_at(Flow(600.0), 541, 599, 600) == ["token-1", "token-1", "the issuer is down"]


def test_scopes_that_the_issuer_refuses_do_not_spoil_later_tokens() -> None:
    async def scene() -> str:
        login = Login(cast("ClientCredentials", Flow(None, None)), lambda: 0.0)
        first = await login.log_in(None, AuthChallenge())
        with pytest.raises(LoginError, match="no such scope"):
            await login.step_up(first, AuthChallenge(scopes=("never",)))
        return (await login.log_in(first, AuthChallenge())).value

    assert anyio.run(scene) == "token-2"


def test_a_server_that_lets_each_place_hang_ends_the_search() -> None:
    gate = Gate()
    with McpEndpoint(lambda _: json_reply(200, {}).but(before_head=gate)) as server:
        site = open_site(
            server.url,
            Credentials(OAuthSettings(issuer=f"{server.origin}/a/path")),
            name="notes",
            verify_server=True,
            seconds=0.1,
            secret_mask=SecretMask(lambda _name, _value: None, str),
            notice=lambda _code, _text: None,
        )
        with pytest.raises(LoginError, match=r"not found within 0\.2 s"):
            anyio.run(discover, site, f"{server.origin}/metadata")
        gate.open()

    # Three places of the server, and five of the issuer.
    assert len(server.requests) <= 3
