"""Where the login of a person is kept: in a keyring that works, else in a private file."""

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp_emulators import McpEndpoint
from mcp_scenes import Notices, http, play, registry
from oauth_person import LoginServer, guard_of

from aish.net.oauth.failure import LoginError
from aish.net.oauth.login_store import (
    KeptLogin,
    LoginSecrets,
    LoginStore,
    list_logins,
    remove_login,
)
from aish.net.oauth.settings import Credentials, OAuthSettings

keyring = pytest.importorskip("keyring")
BACKEND: Any = keyring.backend.KeyringBackend
URL = "https://notes.example/mcp"
LOGIN = KeptLogin(
    server=URL,
    resource=URL,
    issuer="https://login.example",
    token_url="https://login.example/token",
    client_id="aish",
    asked=("a", "b"),
    expires=1.5,
    secrets=LoginSecrets("an-access-token", "a-refresh-token"),
)


class Ring(BACKEND):  # type: ignore[misc]  # the package may be absent
    """A keyring in memory, which forgets at once, takes nothing or is locked, if told to."""

    priority = -1  # no other test gets it by itself

    def __init__(self, *, forgets: bool = False, locked: bool = False) -> None:
        self.passwords: dict[tuple[str, str], str] = {}
        self.forgets, self.locked = forgets, locked
        self.read_only = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise keyring.errors.KeyringLocked("locked")
        return self.passwords.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        if self.read_only:
            raise keyring.errors.PasswordSetError("it is read-only")
        if not self.forgets:
            self.passwords[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.passwords[service, username]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoginStore]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = keyring.get_keyring()
    yield LoginStore(URL, OAuthSettings(login=True))
    keyring.set_keyring(before)


def test_a_keyring_has_the_secrets_and_the_file_has_none(store: LoginStore) -> None:
    ring = Ring()
    keyring.set_keyring(ring)

    kept = store.write(LOGIN, pytest.fail)

    assert kept == replace(LOGIN, in_keyring=True) == store.read()
    text = store.path.read_text("utf-8")
    assert "-token" not in text
    assert [user for _, user in ring.passwords] == [f"{URL} {store.path.stem}"]
    assert [login.in_keyring for _, login in list_logins(print)] == [True]
    ring.locked = True
    with pytest.raises(LoginError, match=r"does not answer \(locked\): `aish login` makes a new"):
        store.read()
    ring.locked = False
    assert remove_login(store.path)
    assert ring.passwords == {}
    assert store.read() is None


@pytest.mark.parametrize(
    ("ring", "told"),
    [
        (Ring(forgets=True), "the keyring does not keep what it is given"),
        (Ring(locked=True), "the keyring does not answer (locked)"),
        (None, ""),
    ],
)
def test_a_keyring_that_keeps_nothing_is_not_used_and_that_is_told(
    store: LoginStore, ring: Ring | None, told: str
) -> None:
    keyring.set_keyring(ring or keyring.backends.fail.Keyring())
    words: list[str] = []

    assert store.write(LOGIN, words.append) == LOGIN == store.read()
    place = f"`{store.path}`, which only you can read"
    assert words == ([f"{told}: the login is kept in {place}"] if told else [])
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_file_that_others_can_read_or_change_is_not_used(store: LoginStore, mode: int) -> None:
    ring = Ring()
    keyring.set_keyring(ring)
    store.write(LOGIN, pytest.fail)
    store.path.chmod(mode)

    with pytest.raises(LoginError, match=f"its mode is {mode:04o}.*: `log in` replaces it"):
        store.read("log in")
    told: list[str] = []
    assert not [*list_logins(told.append)]
    assert "`chmod 600` keeps it" in told[0]
    store.path.chmod(0o600)
    assert store.read() is not None
    store.path.chmod(mode)
    assert remove_login(store.path)
    assert ring.passwords == {}


@pytest.mark.parametrize("above", [0, 1, 2])
def test_a_login_below_a_folder_that_others_can_change_is_not_used(
    store: LoginStore, above: int
) -> None:
    keyring.set_keyring(keyring.backends.fail.Keyring())
    store.write(LOGIN, pytest.fail)
    folder = store.path.parents[above]
    folder.chmod(0o777)

    words = f"other users can change the folder `{folder}`: `chmod go-w` ends that"
    with pytest.raises(LoginError, match=re.escape(words)):
        store.read()
    if above:
        with pytest.raises(LoginError, match=re.escape(words)):
            store.make_folder()
    else:
        store.make_folder()  # that one is ours, and is made private
        assert store.read() == LOGIN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_a_file_of_another_user_is_not_used(store: LoginStore) -> None:
    keyring.set_keyring(keyring.backends.fail.Keyring())
    store.write(LOGIN, pytest.fail)
    os.chown(store.path, 12345, 12345)

    with pytest.raises(LoginError, match="is not a regular file of this user"):
        store.read()


def test_a_renewal_that_the_keyring_does_not_take_is_told_once(store: LoginStore) -> None:
    ring = Ring()
    keyring.set_keyring(ring)
    with LoginServer() as issuer, McpEndpoint(guard_of(issuer)) as server:
        issuer.new_tokens()
        own = LoginStore(server.url, OAuthSettings(login=True))
        login = replace(
            LOGIN,
            server=server.url,
            resource=server.url,
            issuer=issuer.issuer,
            token_url=f"{issuer.origin}/token",
            secrets=LoginSecrets(issuer.tokens[0], *issuer.refreshing),
        )
        assert own.write(login, pytest.fail).in_keyring
        ring.read_only = True
        connection = replace(
            http(server.url), login=Credentials(OAuthSettings(login=True), None, "log in")
        )

        async def scene() -> tuple[list[str], Notices]:
            async with registry(connection) as s:
                first = await s.text("web__add", a=1, b=2)
                issuer.tokens[-1] = "revoked"
                return [first, await s.text("web__add", a=2, b=3)], s.notices

        texts, notices = play(scene)

    assert texts == ["3", "5"]
    assert issuer.grants == ["refresh_token"] * 2
    assert notices.codes == ["oauth_keyring"]
    kept = own.read()
    assert kept is not None
    assert (kept.in_keyring, kept.secrets.refresh_token) == (False, "refresh-token-3")
    words = f"does not answer (it is read-only): the login is kept in `{own.path}`"
    assert words in notices.texts("oauth_keyring")[0]


def test_a_login_that_a_keyring_has_lost_is_none(store: LoginStore) -> None:
    ring = Ring()
    keyring.set_keyring(ring)
    store.write(LOGIN, pytest.fail)
    ring.passwords.clear()

    lost = store.read()

    assert lost is not None
    assert lost.secrets == LoginSecrets()
    for text in ("[]", "[" * 100_000, '{"access_token": 5}'):
        ring.passwords["aish", f"{URL} {store.path.stem}"] = text
        with pytest.raises(LoginError, match="something else than a login"):
            store.read()


def test_a_file_that_is_damaged_or_of_another_server_is_no_login(store: LoginStore) -> None:
    keyring.set_keyring(keyring.backends.fail.Keyring())
    store.write(LOGIN, pytest.fail)
    fields = json.loads(store.path.read_text("utf-8"))
    store.path.write_text(json.dumps({**fields, "server": "https://other.example"}), "utf-8")
    assert store.read() is None
    changes: list[dict[str, Any]] = [
        {"token_url": []},
        {"expires": "soon"},
        {"registered": 1},
        {"asked": 5},
        {"unknown": 1},
        {"secrets": {"access_token": 5}},
        {"secrets": {"refresh_token": []}},
        {"secrets": {"client_secret": None}},
    ]
    texts = ["{", "[]", "{}", "[" * 100_000, *(json.dumps({**fields, **one}) for one in changes)]
    for text in texts:
        store.path.write_text(text, "utf-8")
        assert store.look() is None
        with pytest.raises(LoginError, match="cannot be read"):
            store.read()


def test_a_login_is_found_for_its_server_client_and_issuer_only(store: LoginStore) -> None:
    found = {
        LoginStore(url, settings).path
        for url in (URL, "https://notes.example", "http://notes.example/mcp")
        for settings in (
            OAuthSettings(login=True),
            OAuthSettings("x", login=True),
            OAuthSettings("x", login=True, issuer="https://a"),
        )
    }
    assert len(found) == 9
    assert LoginStore(f"{URL}/?key=1", OAuthSettings(login=True)).path == store.path
