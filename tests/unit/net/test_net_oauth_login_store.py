"""Where the login of a person is kept: in a keyring that works, else in a private file."""

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aish.net.oauth.failure import LoginError
from aish.net.oauth.login_store import (
    KeptLogin,
    LoginSecrets,
    LoginStore,
    list_logins,
    remove_login,
)
from aish.net.oauth.settings import OAuthSettings

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
    """A keyring in memory, which forgets at once, or is locked, if it is told to."""

    priority = -1  # no other test gets it by itself

    def __init__(self, *, forgets: bool = False, locked: bool = False) -> None:
        self.passwords: dict[tuple[str, str], str] = {}
        self.forgets, self.locked = forgets, locked

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise keyring.errors.KeyringLocked("locked")
        return self.passwords.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
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

    kept = store.write(LOGIN)

    assert kept == replace(LOGIN, in_keyring=True) == store.read()
    text = store.path.read_text("utf-8")
    assert "-token" not in text
    assert [user for _, user in ring.passwords] == [f"{URL} {store.path.stem}"]
    assert [login.in_keyring for _, login in list_logins(print)] == [True]
    ring.locked = True
    with pytest.raises(LoginError, match="the keyring does not answer"):
        store.read()
    ring.locked = False
    assert remove_login(store.path)
    assert ring.passwords == {}
    assert store.read() is None


@pytest.mark.parametrize("ring", [Ring(forgets=True), Ring(locked=True), "fail"])
def test_a_keyring_that_keeps_nothing_is_not_used(store: LoginStore, ring: Ring | str) -> None:
    keyring.set_keyring(keyring.backends.fail.Keyring() if isinstance(ring, str) else ring)

    assert store.write(LOGIN) == LOGIN == store.read()
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_a_login_that_a_keyring_has_lost_is_none(store: LoginStore) -> None:
    ring = Ring()
    keyring.set_keyring(ring)
    store.write(LOGIN)
    ring.passwords.clear()

    lost = store.read()

    assert lost is not None
    assert lost.secrets == LoginSecrets()


def test_a_file_that_is_damaged_or_of_another_server_is_no_login(store: LoginStore) -> None:
    keyring.set_keyring(Ring(forgets=True))
    store.write(LOGIN)
    fields = json.loads(store.path.read_text("utf-8"))
    store.path.write_text(json.dumps({**fields, "server": "https://other.example"}), "utf-8")
    assert store.read() is None
    for text in ("{", "[]", "{}", json.dumps({**fields, "unknown": 1})):
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
