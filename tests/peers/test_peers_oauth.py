"""Our login against servers that others wrote: authlib's issuer, the official SDK's MCP server."""

import json
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_peers import accepting, open_socket, port_of
from mcp_scenes import http, play, registry
from oauth_person import visit
from oauth_setups import KEYED, OTHERS, SET_UPS, USUAL, SetUp, spell

from aish.net.oauth.fresh_login import log_in_person
from aish.net.oauth.login_site import SecretMask, open_site
from aish.net.oauth.login_store import KeptLogin, LoginStore
from aish.net.oauth.person_login import Person, PersonLogin
from aish.net.oauth.settings import Credentials, OAuthSettings

pytestmark = pytest.mark.peers

SERVER = Path(__file__).parents[1] / "support" / "oauth_peer_server.py"
SECRET = "a secret: with + and % in it"
SCOPES = ("notes:read",)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("authlib")
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("keys")
    key = ec.generate_private_key(ec.SECP256R1())
    pem = forms.Encoding.PEM
    private = key.private_bytes(pem, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    public = key.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo)
    (folder / "private.pem").write_bytes(private)
    (folder / "public.pem").write_bytes(public)
    return folder


@contextmanager
def sites(keys: Path, *set_ups: SetUp) -> Generator[dict[str, str]]:
    """The origins of authorization servers that are set up so, each with an MCP server."""
    sockets = [open_socket() for _ in set_ups]
    named = zip(set_ups, sockets, strict=True)
    origins = {row.name: f"http://127.0.0.1:{port_of(one)}" for row, one in named}
    words = (f"{one.fileno()}={row.name}" for row, one in zip(set_ups, sockets, strict=True))
    argv = (sys.executable, str(SERVER), str(keys / "public.pem"), *words)
    with accepting(*argv, sockets=sockets, environment={"SECRET": SECRET}):
        yield origins


@pytest.fixture(scope="module")
def origin(keys: Path) -> Generator[str]:
    with sites(keys, USUAL) as found:
        yield found[USUAL.name]


@pytest.fixture(scope="module")
def origins(keys: Path) -> Generator[dict[str, str]]:
    with sites(keys, *SET_UPS, *OTHERS) as found:
        yield found


def outcome(origin: str, oauth: OAuthSettings, secret: str | None, **fields: Any) -> str:
    """The sum of a call, or why there was no connection."""
    server = replace(http(f"{origin}/mcp", **fields), login=Credentials(oauth, secret))

    async def scene() -> str:
        async with registry(server) as s:
            return s.registry.failure("web") or await s.text("web__add", a=1, b=2)

    found = play(scene)
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("protocol", ["2025-11-25", "2026-07-28"])
def test_a_key_logs_in_in_both_eras(origin: str, keys: Path, protocol: str) -> None:
    oauth = OAuthSettings("with-a-key", private_key_file=keys / "private.pem", scopes=SCOPES)
    assert outcome(origin, oauth, None, protocol=protocol) == "3"


def test_a_secret_that_authlib_reads_plain_is_sent_so_if_the_file_says_so(origin: str) -> None:
    plain = OAuthSettings("with-a-secret", client_secret_env="S", token_auth="basic-plain")
    assert outcome(origin, replace(plain, scopes=SCOPES), SECRET) == "3"
    encoded = outcome(origin, replace(plain, token_auth=None), SECRET)
    assert "`invalid_client`" in encoded
    assert "`token_auth`" in encoded


def test_scopes_come_from_the_challenge_of_the_sdk(origin: str, keys: Path) -> None:
    oauth = OAuthSettings("with-a-key", private_key_file=keys / "private.pem")
    assert outcome(origin, oauth, None) == "3"


def test_scopes_that_are_lacking_right_after_the_login_are_asked_for(
    origin: str, keys: Path
) -> None:
    key = keys / "private.pem"
    oauth = OAuthSettings("with-a-key", private_key_file=key, scopes=("notes:write",))
    assert outcome(origin, oauth, None) == "3"


def test_a_token_for_no_resource_is_refused_by_the_sdk_and_that_is_told(
    origin: str, keys: Path
) -> None:
    key = keys / "private.pem"
    oauth = OAuthSettings("with-a-key", private_key_file=key, scopes=SCOPES, resource=False)
    found = outcome(origin, oauth, None)
    assert "HTTP 401 `invalid_token`" in found
    assert "(`resource`)" in found


def log_in(url: str, credentials: Credentials) -> KeptLogin:
    """The login of a person whose browser opens the address at once."""

    async def scene() -> KeptLogin:
        person = Person(lambda address, _: threading.Thread(target=visit, args=(address,)).start())
        site = open_site(
            url,
            credentials,
            name="web",
            verify_server=True,
            seconds=30,
            secret_mask=SecretMask(lambda _name, _value: None, str),
            notice=lambda _code, _text: None,
        )
        flow = PersonLogin(site, person)
        return await log_in_person(flow, headers={}, verify_server=True, seconds=30)

    return anyio.run(scene)


def test_a_person_logs_in_and_the_login_is_renewed(
    origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    oauth = OAuthSettings(login=True)
    assert "nobody is logged in" in outcome(origin, oauth, None)

    first = log_in(f"{origin}/mcp", Credentials(oauth))

    assert (first.issuer, first.granted) == (origin, SCOPES)
    assert outcome(origin, oauth, None) == "3"
    path = LoginStore(f"{origin}/mcp", oauth).path
    for _ in range(2):
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "expires": 1}), "utf-8")
        assert outcome(origin, oauth, None) == "3"
    renewed = LoginStore(f"{origin}/mcp", oauth).read()
    assert renewed is not None
    assert renewed.client_id == first.client_id
    assert renewed.secrets.refresh_token != first.secrets.refresh_token
    # A refresh token that was used already, as a thief would.
    fields = json.loads(path.read_text("utf-8"))
    fields["secrets"]["refresh_token"] = first.secrets.refresh_token
    path.write_text(json.dumps({**fields, "expires": 1}), "utf-8")
    assert "`invalid_grant`" in outcome(origin, oauth, None)
    assert "nobody is logged in" in outcome(origin, oauth, None)


def settings_of(row: SetUp, keys: Path) -> tuple[OAuthSettings, str | None]:
    """The settings of the client of a set-up, and its secret if it has one."""
    by_key = row.client.get("client_id") == KEYED["client_id"]
    key = keys / "private.pem" if by_key else None
    secret = SECRET if "client_secret_env" in row.client else None
    return OAuthSettings(**row.client, private_key_file=key), secret


@pytest.mark.parametrize("row", SET_UPS, ids=lambda row: row.name)
def test_each_valid_set_up_ends_in_a_tool_call(
    row: SetUp,
    origins: dict[str, str],
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    oauth, secret = settings_of(row, keys)
    origin = origins[row.name]
    if oauth.login:
        login = log_in(f"{origin}/mcp", Credentials(oauth))
        assert bool(login.secrets.client_secret) == row.gives_secret
        assert bool(login.secrets.refresh_token) == row.refreshes

    assert outcome(origin, oauth, secret) == "3"


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row.name)
def test_an_issuer_that_spells_itself_otherwise_is_refused_with_both_spellings(
    row: SetUp, origins: dict[str, str], keys: Path
) -> None:
    origin = origins[row.name]

    found = outcome(origin, *settings_of(row, keys))

    spelled, listed = (spell(text, origin) for text in (row.issuer, row.listed or ""))
    assert f"it names the issuer `{spelled}`, and not `{listed}`" in found
