"""The logins of persons: who logged in where, and the tokens that came of it.

A login is a private file of the state folder, and its secrets are in the keyring of the platform
where there is one, else in that file. Its name is made of the server, the client and the issuer
that the pipeline file names, so that no other login is ever found for them.
"""

import json
import os
import stat
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, replace
from dataclasses import fields as fields_of
from hashlib import sha256
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar

import anyio.from_thread
import anyio.to_thread

from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.core.text import for_line
from aish.net.oauth.failure import LoginError
from aish.net.oauth.metadata import canonical_resource
from aish.net.oauth.settings import OAuthSettings, SecretPlace
from aish.system.file_lock import hold_lock
from aish.system.files import (
    atomic_write,
    is_open_to_others,
    logins_folder,
    open_own,
    private_folder,
)

SERVICE: Final = "aish"
_MOST_BYTES: Final = 1024 * 1024
_LOCK_SECONDS: Final = 30.0
_DIGITS: Final = 24
_COMMAND: Final = "aish login"
_OF_OTHERS: Final = 0o077
_OF_STATE: Final = 2
"""Folders above that of the logins that are of aish."""


@frozen
class LoginSecrets:
    """The secrets of a login; a client has one if it registered by itself and was given it."""

    access_token: str = ""
    refresh_token: str = ""
    client_secret: str = ""


@frozen
class KeptLogin:
    """A login as it is kept.

    `server` is its name as a resource, `asked` the scopes that were asked for and `granted` those
    that were given. `expires` is when the access token does, in seconds since the epoch; nobody is
    logged in any more unless it `is_open`. The client registered by itself, for this
    `redirect_url`, if it is `registered`.
    """

    server: str
    resource: str
    issuer: str
    token_url: str
    client_id: str
    token_auth: SecretPlace | None = None
    registered: bool = False
    client_expires: float = 0.0
    redirect_url: str = ""
    asked: tuple[str, ...] = ()
    granted: tuple[str, ...] | None = None
    expires: float | None = None
    is_open: bool = True
    in_keyring: bool = False
    secrets: LoginSecrets = LoginSecrets()

    def without_tokens(self) -> "KeptLogin":
        """The rest of it once nobody is logged in: the client and its port."""
        rest = LoginSecrets(client_secret=self.secrets.client_secret)
        return replace(self, secrets=rest, expires=None, granted=None, is_open=False)


_Kept = TypeVar("_Kept", KeptLogin, LoginSecrets)
_TYPES: Final[Mapping[str, type | UnionType]] = {
    "token_auth": str | None,
    "registered": bool,
    "client_expires": float | int,
    "asked": tuple,
    "granted": tuple | None,
    "expires": float | int | None,
    "is_open": bool,
    "in_keyring": bool,
    "secrets": LoginSecrets,
}
"""The types of what is no text."""


class LoginStore:
    """The one login at a server, for the client and the issuer that a pipeline file names."""

    def __init__(self, url: str, settings: OAuthSettings) -> None:
        self.server = canonical_resource(url)
        binding = json.dumps([self.server, settings.client_id, settings.issuer or ""])
        self._id = sha256(binding.encode()).hexdigest()[:_DIGITS]
        self.path = logins_folder() / f"{self._id}.json"

    def read(self, command: str = _COMMAND) -> KeptLogin | None:
        """The login with its secrets; `None` if there is none. `command` makes a new one.

        Raises:
            LoginError: it cannot be read, or others may have read or changed it.
        """
        login = read_login(self.path, command)
        if login is None or login.server != self.server:
            return None
        if not login.in_keyring:
            return login
        try:
            text = _ask_keyring("get_password", self._account(login))
        except LoginError as error:
            why = f"the login of `{self.server}` cannot be read: {error}"
            raise LoginError(f"{why}: `{command}` makes a new one") from error
        if text is None:
            return login.without_tokens()
        try:
            return replace(login, secrets=_check_types(LoginSecrets(**json.loads(text))))
        except (ValueError, TypeError, RecursionError) as error:
            message = f"the keyring has something else than a login for `{self.server}`"
            raise LoginError(message) from error

    def look(self) -> KeptLogin | None:
        """The login without the secrets that a keyring has; `None` if nobody is logged in."""
        try:
            login = read_login(self.path)
        except LoginError:
            return None
        return login if login is not None and login.is_open else None

    def make_folder(self) -> None:
        """Make the folder of logins, if it is missing.

        Raises:
            LoginError: nothing can be kept there.
        """
        folder = self.path.parent
        try:
            private_folder(folder)
            if open_one := _open_folder(folder):
                raise LoginError(f"no login can be kept in `{folder}`: {open_one}")
            if os.access(folder, os.W_OK):
                return
            why = "it is read-only"
        except (OSError, AishError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise LoginError(f"no login can be kept in `{folder}`: {why}")

    def write(self, login: KeptLogin, tell: Callable[[str], None]) -> KeptLogin:
        """Keep a login, and return it as it is kept.

        `tell` gets the words about a keyring that does not take it.

        Raises:
            LoginError: it cannot be written.
        """
        login = replace(login, in_keyring=_has_keyring())
        if login.in_keyring:
            try:
                _put_into_keyring(self._account(login), json.dumps(asdict(login.secrets)))
            except LoginError as error:
                login = replace(login, in_keyring=False)
                tell(f"{error}: the login is kept in {place_of(login, self.path)}")
        fields: dict[str, Any] = asdict(login)
        if login.in_keyring:
            del fields["secrets"]
        try:
            private_folder(self.path.parent)
            atomic_write(self.path, json.dumps(fields, indent=2).encode())
        except (OSError, AishError) as error:
            raise LoginError(f"the login cannot be kept in `{self.path}`: {error}") from error
        return login

    @asynccontextmanager
    async def lock(self) -> AsyncGenerator[None]:
        """Let no other process use the refresh token within such a block.

        Raises:
            LoginError: another process takes too long with it.
        """
        self.make_folder()
        with ExitStack() as stack:
            try:
                lock = hold_lock(self.path.with_suffix(".lock"), _LOCK_SECONDS, _pause)
                await anyio.to_thread.run_sync(stack.enter_context, lock)
            except (OSError, AishError) as error:
                raise LoginError(
                    f"the login of `{self.server}` cannot be renewed: {error}"
                ) from error
            yield

    def _account(self, login: KeptLogin) -> str:
        return f"{login.server} {self._id}"


def list_logins(tell: Callable[[str], None]) -> Iterator[tuple[Path, KeptLogin]]:
    """All logins that are kept, without the secrets that a keyring has.

    `tell` gets the words about one that cannot be read.
    """
    for path in sorted(logins_folder().glob("*.json")):
        try:
            login = read_login(path)
        except LoginError as error:
            tell(str(error))
            continue
        if login is not None:
            yield path, login


def read_login(
    path: Path, command: str = _COMMAND, *, must_be_private: bool = True
) -> KeptLogin | None:
    """A login as its file has it; `None` if there is none. `command` makes a new one.

    Raises:
        LoginError: it cannot be read, or others may have read or changed it.
    """
    try:
        with os.fdopen(open_own(path), "rb") as file:
            status, content = os.fstat(file.fileno()), file.read(_MOST_BYTES)
        if must_be_private:
            _check_private(path, status, command)
        return _parse(content)
    except FileNotFoundError:
        return None
    except (
        OSError,
        AishError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        why = f"the login in `{path}` cannot be read: {for_line(str(error))}"
        raise LoginError(f"{why}: `{command}` replaces it") from error


def _parse(content: bytes) -> KeptLogin:
    fields: Mapping[str, Any] = json.loads(content)
    lists = {name: _tuple(fields.get(name)) for name in ("asked", "granted")}
    secrets = _check_types(LoginSecrets(**fields.get("secrets", {})))
    return _check_types(
        KeptLogin(**{**fields, **lists, "asked": lists["asked"] or (), "secrets": secrets})
    )


def _check_types(kept: _Kept) -> _Kept:
    """Return what a file or a keyring had, if each field is of its type.

    Raises:
        TypeError: one is of another.
    """
    for one in fields_of(kept):
        if not isinstance(getattr(kept, one.name), _TYPES.get(one.name, str)):
            raise TypeError(f"`{one.name}` has a value of another type")
    return kept


def _check_private(path: Path, status: os.stat_result, command: str) -> None:
    """Check that only the user can have read or changed a login, as `ssh` does with a key.

    Raises:
        LoginError: others could.
    """
    if stat.S_IMODE(status.st_mode) & _OF_OTHERS:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise LoginError(
            f"the login in `{path}` is not used: its mode is {mode}, so that others may have read"
            f" or changed it: `{command}` replaces it, and `chmod 600` keeps it"
        )
    if open_one := _open_folder(path.parent):
        raise LoginError(f"the login in `{path}` is not used: {open_one}")


def _open_folder(folder: Path) -> str:
    """The words about a folder of the state that others can change; empty if there is none."""
    for one in (folder, *folder.parents[:_OF_STATE]):
        if is_open_to_others(one.stat(), is_parent=one != folder):
            return f"other users can change the folder `{one}`: `chmod go-w` ends that"
    return ""


def remove_login(path: Path) -> bool:
    """Remove a login and what a keyring has of it; return whether there was one.

    Raises:
        UsageError: another process renews it all the time.
    """
    if not path.exists():
        return False
    with hold_lock(path.with_suffix(".lock"), _LOCK_SECONDS):
        with suppress(LoginError):
            login = read_login(path, must_be_private=False)
            if login is not None and login.in_keyring:
                _ask_keyring("delete_password", f"{login.server} {path.stem}")
        path.unlink(missing_ok=True)
    return True


def place_of(login: KeptLogin, path: Path) -> str:
    """The place of the secrets of a login, for a message."""
    return "the keyring" if login.in_keyring else f"`{path}`, which only you can read"


def _pause(seconds: float) -> None:
    """Wait in a thread, whose task can be cancelled meanwhile."""
    anyio.from_thread.check_cancelled()
    time.sleep(seconds)


def _tuple(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(map(str, value))


def _has_keyring() -> bool:
    """Return true if the extra is installed and the platform has a keyring."""
    try:
        import keyring
        from keyring.backends import fail, null
    except ImportError:
        return False
    return not isinstance(keyring.get_keyring(), (fail.Keyring, null.Keyring))


def _put_into_keyring(account: str, text: str) -> None:
    """Put a text into the keyring.

    Raises:
        LoginError: it does not take it, or does not have it afterwards.
    """
    _ask_keyring("set_password", account, text)
    if _ask_keyring("get_password", account) != text:
        raise LoginError("the keyring does not keep what it is given")


def _ask_keyring(what: str, *words: str) -> str | None:
    """Call a function of the keyring.

    Raises:
        LoginError: it is locked, or is not there.
    """
    try:
        import keyring
        import keyring.errors
    except ImportError as error:
        message = "the login is in the keyring, and the extra `keyring` is not installed"
        raise LoginError(message) from error
    try:
        found: str | None = getattr(keyring, what)(SERVICE, *words)
    except keyring.errors.PasswordDeleteError:
        return None
    except Exception as error:
        raise LoginError(f"the keyring does not answer ({for_line(str(error))})") from error
    return found
